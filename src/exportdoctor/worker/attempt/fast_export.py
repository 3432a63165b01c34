"""A faster non-strict export with the same graph and the same errors, and which attempts may share a process.

It skips work in torch that we never look at. Where that may have changed the outcome (`FastExport.may_differ`), the
attempt is made again without shortcuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.torch_internals.fake_tensors import fake_tensor_class, skip_cache_entries
from exportdoctor.torch_internals.graph_modules import (
    compile_graphs_once,
    keep_source_lines_unread,
    leave_memory_formats_unasked,
    walk_node_stacks,
)
from exportdoctor.torch_internals.shape_env import has_unbacked_size
from exportdoctor.torch_internals.tracer_frames import FORWARD_RUNS_IN
from exportdoctor.torch_internals.tracing_modes import has_global_hooks
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.capture.session import PartCapture


class NextAttempt(IntEnum):
    """How an attempt whose outcome is in doubt is made again, as the exit code of its process (75 is EX_TEMPFAIL of
    sysexits.h): without shortcuts, or so that all input sets are made before the export as well."""

    WITHOUT_SHORTCUTS = 75
    IN_FULL = 76


class InDoubt(BaseException):
    """Ends an attempt after its export: what follows is done once, by an attempt without shortcuts."""


def leave_in_doubt() -> None:
    """Raises InDoubt."""
    raise InDoubt


@dataclass
class FastExport:
    """The shortcuts of one attempt. `checks_skipped`: something was left out that might have raised an error; not where
    the attempt `will_pass`, since a program that was made so is made again."""

    will_pass: bool = False
    checks_skipped: bool = False

    def require_checks(self) -> None:
        """Raises InDoubt where a check was skipped."""
        if self.checks_skipped:
            leave_in_doubt()

    @contextmanager
    def within(self) -> Iterator[None]:
        """Every shortcut, for non-strict mode: dynamo does not work with graphs that are compiled late."""
        with self.while_tracing(), compile_graphs_once(self._note_skipped):
            yield

    @contextmanager
    def while_tracing(self) -> Iterator[None]:
        """The shortcuts that work in any mode."""
        with (
            nullcontext() if self.will_pass else skip_cache_entries(self._has_unbacked_size),
            keep_source_lines_unread(),
            walk_node_stacks(),
            leave_memory_formats_unasked(),
        ):
            yield

    def may_differ(self, outcome: Outcome) -> bool:
        """Whether the outcome might be another one without shortcuts.

        True for a failure that was not raised by the traced forward or is our own, and for a success where a check was
        skipped.
        """
        if outcome.status == OutcomeStatus.OWN_FAULT:
            return True
        if outcome.failure is None:
            return outcome.passed and self.checks_skipped
        frames = outcome.failure.frames
        return outcome.failure.stage == "export" and not any(frame.function == FORWARD_RUNS_IN for frame in frames)

    def _note_skipped(self) -> None:
        self.checks_skipped = True

    def _has_unbacked_size(self, results: Sequence[Any]) -> bool:
        found = any(isinstance(one, torch.Tensor) and has_unbacked_size(one) for one in results)
        self.checks_skipped = self.checks_skipped or found
        return found


_PLAIN = (torch.Tensor, torch.nn.Parameter, fake_tensor_class(), int, float, bool, type(None))


def has_no_side_effects(part: PartCapture, probe: Probe) -> bool:
    """Whether the probe asks a plain export of a childless layer that torch brings, with tensors and numbers alone."""
    plain = probe.to == "export" and not probe.shims and not probe.watch and probe.fqn != part.prefix
    if not plain or not EXPORTERS[probe.exporter].has_fast_path:
        return False
    call = part.calls_of(probe.fqn)[probe.call]
    leaves = tree_leaves((call.args, call.kwargs))
    return _is_plain_layer(part.module_at(probe.fqn)) and all(type(leaf) in _PLAIN for leaf in leaves)


def _is_plain_layer(module: torch.nn.Module) -> bool:
    kind = type(module)
    if not kind.__module__.startswith("torch.nn.modules.") or "forward" in vars(module) or module.training:
        return False
    if not is_defined_in_torch(kind.forward) or not is_defined_in_torch(kind.__call__) or has_global_hooks():
        return False  # the user's code would run in it
    hooks = module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    parameters = all(type(value) in _PLAIN for value in module._parameters.values())
    return parameters and not (hooks or module._buffers or module._modules)
