"""How torch writes and compiles the code of a graph, and what it reads for the stack of each node."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.hook import Hook


def compile_graphs_once() -> AbstractContextManager[None]:
    """Within it, a graph's Python code is compiled by `finish_graphs` and not after each of a dozen passes."""
    if not LAZY_GRAPHS.is_supported():
        return nullcontext()
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    return _use_lazy_graph_module(True)


def finish_graphs(program: Any) -> None:
    """Write and compile the code of an exported program's graphs, as each pass would have; raises what that raises."""
    for module in program.graph_module.modules():
        recompile = getattr(module, "real_recompile", None)
        if recompile is not None:
            recompile()


def _has_lazy_graphs() -> bool:
    from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module

    return callable(_use_lazy_graph_module) and hasattr(_LazyGraphModule, "real_recompile")


LAZY_GRAPHS = Hook(
    id="lazy-graph-modules",
    api="torch.fx._lazy_graph_module.{_use_lazy_graph_module, _LazyGraphModule.real_recompile}",
    used_for="exports of large models in less time",
    lost="exports of large models take longer",
    seen_on=("2.13.0",),
    is_there=_has_lazy_graphs,
)


def keep_source_lines_unread() -> AbstractContextManager[None]:
    """Within it, source lines of a node's stack are read when they are printed.

    A node's stack has about 60 frames, of which torch keeps the few of a forward.
    """
    if not SYMBOLIZER.is_supported():
        return nullcontext()
    from torch.utils import _traceback

    def without_lines(frames: list[dict[str, Any]], skip: int) -> traceback.StackSummary:
        stack = traceback.StackSummary()
        stack.extend(
            traceback.FrameSummary(one["filename"], one["line"], one["name"], lookup_line=False)
            for one in reversed(frames[skip:])
        )
        return stack

    return patch_attribute(_traceback, "_extract_symbolized_tb", without_lines)


def _has_symbolizer() -> bool:
    from torch.utils._traceback import _extract_symbolized_tb

    return list(_extract_symbolized_tb.__code__.co_varnames[:2]) == ["tb", "skip"]


SYMBOLIZER = Hook(
    id="stack-symbolizer",
    api="torch.utils._traceback._extract_symbolized_tb(tb, skip)",
    used_for="exports of large models in less time",
    lost="exports of large models take longer",
    seen_on=("2.13.0",),
    is_there=_has_symbolizer,
)


def after_onnx_preparation(change: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Within it, `change` is called with each program that torch's exporter for ONNX has decomposed, and may edit it.

    Raises AttributeError or ImportError where the installed torch has no such step.
    """
    from torch.onnx._internal.exporter import _core

    prepare: Callable[..., Any] = _core._prepare_exported_program_for_export

    @functools.wraps(prepare)
    def prepare_and_change(*args: Any, **kwargs: Any) -> Any:
        program = prepare(*args, **kwargs)
        change(program)
        return program

    return patch_attribute(_core, "_prepare_exported_program_for_export", prepare_and_change)


def _has_onnx_preparation() -> bool:
    try:
        from torch.onnx._internal.exporter import _core
    except ImportError:  # without the onnx extra there is nothing to look at
        return True
    return callable(_core._prepare_exported_program_for_export)


ONNX_PREPARATION = Hook(
    id="onnx-preparation",
    api="torch.onnx._internal.exporter._core._prepare_exported_program_for_export",
    used_for="transformers' fixes of the graph before it is translated to ONNX, as shims",
    lost="shims that edit the graph before its translation are not applicable",
    seen_on=("2.13.0",),
    is_there=_has_onnx_preparation,
    imports_onnx=True,
)

HOOKS = (LAZY_GRAPHS, SYMBOLIZER, ONNX_PREPARATION)
