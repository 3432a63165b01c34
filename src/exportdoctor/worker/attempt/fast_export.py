"""What the non-strict exporter makes and no verdict reads is not made: the same graph and the same errors, sooner.

Each saving stands alone, and is left out where this torch lacks what it hooks into. An answer that a saving might have
changed is doubted (`FastExport.may_differ`), and is asked again without any.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.worker.capture.session import PartCapture

ExportContext = Callable[[], AbstractContextManager[None]]
"""Surrounds an export: `FastExport.within`, or nothing."""

_TRACES = "dispatch_trace"
"""torch.fx.experimental.proxy_tensor's function within which the model's forward runs."""


@dataclass
class FastExport:
    """The savings of one attempt. `checks_skipped`: something was left out that might have raised an error."""

    checks_skipped: bool = False

    @contextmanager
    def within(self) -> Iterator[None]:
        """Export thriftily inside, in non-strict mode: dynamo is at odds with what is compiled late."""
        with self.while_tracing(), _if_supported(_graphs_compiled_once):
            yield

    @contextmanager
    def while_tracing(self) -> Iterator[None]:
        """Trace thriftily inside, in any mode."""
        with _if_supported(self._unbacked_results_not_cached), _if_supported(_lines_read_when_shown):
            yield

    def may_differ(self, outcome: Outcome) -> bool:
        """Whether the answer might be another without savings.

        So is a failure that does not come out of the traced forward, and a success for which a check was skipped.
        """
        if outcome.failure is None:
            return outcome.passed and self.checks_skipped
        frames = outcome.failure.frames
        return outcome.failure.stage == "export" and not any(frame.function == _TRACES for frame in frames)

    def _unbacked_results_not_cached(self) -> AbstractContextManager[None]:
        """No cache entry for a fake result whose size is an unbacked symbol.

        To make one, torch computes such a result a second time, which is where symbolic shapes cost most.
        """
        from torch._subclasses.fake_tensor import FakeTensorMode, _BypassDispatchCache
        from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

        make = FakeTensorMode._make_cache_entry

        def make_entry(mode: Any, *rest: Any) -> Any:
            results = rest[-1] if isinstance(rest[-1], tuple) else rest[-1:]
            if any(isinstance(one, torch.Tensor) and has_free_unbacked_symbols(one) for one in results):
                self.checks_skipped = True
                raise _BypassDispatchCache("the result has an unbacked size")
            return make(mode, *rest)

        return _replaced(FakeTensorMode, "_make_cache_entry", make_entry)


def _if_supported(saving: ExportContext) -> AbstractContextManager[None]:
    """The saving, or nothing where this torch has not what it hooks into."""
    try:
        return saving()
    except (ImportError, AttributeError):
        return nullcontext()


def finish_graphs(program: Any) -> None:
    """Write and compile the code of an exported program's graphs, as each pass would have: raises what that raises."""
    for module in program.graph_module.modules():
        recompile = getattr(module, "real_recompile", None)
        if recompile is not None:
            recompile()


def _graphs_compiled_once() -> AbstractContextManager[None]:
    """A graph's Python code is written and compiled when it is `finish_graphs`, not after each of a dozen passes."""
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    return _use_lazy_graph_module(True)


def _lines_read_when_shown() -> AbstractContextManager[None]:
    """A node's stack has 60 frames, of which torch keeps the few of a forward: only their source lines are read."""
    from torch.utils import _traceback

    def unread(frames: list[dict[str, Any]], skip: int) -> traceback.StackSummary:
        stack = traceback.StackSummary()
        stack.extend(
            traceback.FrameSummary(one["filename"], one["line"], one["name"], lookup_line=False)
            for one in reversed(frames[skip:])
        )
        return stack

    return _replaced(_traceback, "_extract_symbolized_tb", unread)


def _replaced(owner: Any, name: str, stand_in: Callable[..., Any]) -> AbstractContextManager[None]:
    """Raises AttributeError at once where the owner has no such attribute."""
    before = getattr(owner, name)

    @contextmanager
    def replaced() -> Iterator[None]:
        setattr(owner, name, stand_in)
        try:
            yield
        finally:
            setattr(owner, name, before)

    return replaced()


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor, int, float, bool, type(None))


def has_no_side_effects(part: PartCapture, probe: Probe) -> bool:
    """Whether the probe asks a plain export of a childless layer that torch brings, with tensors and numbers alone."""
    plain = probe.to == "export" and not probe.shims and not probe.watch and probe.fqn != part.prefix
    if not plain or not EXPORTERS[probe.exporter].has_fast_path:
        return False
    call = part.calls_of(probe.fqn)[probe.call]
    leaves = tree_leaves((call.args, call.kwargs))
    return _is_plain_layer(part.module_at(probe.fqn)) and all(type(leaf) in _PLAIN for leaf in leaves)


def _is_plain_layer(module: torch.nn.Module) -> bool:
    if not type(module).__module__.startswith("torch.nn.modules.") or "forward" in vars(module) or module.training:
        return False
    hooks = module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    parameters = all(type(value) in _PLAIN for value in module._parameters.values())
    return parameters and not (hooks or module._buffers or module._modules)
