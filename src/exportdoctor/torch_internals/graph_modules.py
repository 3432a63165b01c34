"""How torch writes and compiles the code of a graph, and what it reads for the stack of each node."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.hook import Hook
from exportdoctor.torch_internals.shape_env import may_get_guards


@contextmanager
def compile_graphs_once(note_code_that_fails: Callable[[], None]) -> Iterator[None]:
    """Within it, a graph's Python code is compiled by `finish_graphs` and not after each of a dozen passes.

    Of a whole program torch only warns that its code is no Python; then the function is called: an earlier pass would
    have raised that.
    """
    with ExitStack() as stack:
        if LAZY_GRAPHS.is_supported():
            from torch.fx._lazy_graph_module import _use_lazy_graph_module

            stack.enter_context(_use_lazy_graph_module(True))
            if PROGRAM_CODE.is_supported():
                stack.enter_context(_watch_program_code(note_code_that_fails))
        yield


def _watch_program_code(note: Callable[[], None]) -> AbstractContextManager[None]:
    from torch.export import exported_program

    make: Any = exported_program._create_graph_module_for_export

    def make_and_note(root: Any, graph: Any) -> Any:
        made = make(root, graph)
        if "return" not in made.code:
            note()
        return made

    return patch_attribute(exported_program, make.__name__, make_and_note)


def program_nodes(program: Any) -> Iterator[Any]:
    """The nodes of an exported program, those of the graphs inside it too."""
    for module in program.graph_module.modules():
        yield from getattr(getattr(module, "graph", None), "nodes", ())


def _makes_program_code() -> bool:
    from torch.export import exported_program

    return callable(getattr(exported_program, "_create_graph_module_for_export", None))


PROGRAM_CODE = Hook(
    id="program-code",
    api="torch.export.exported_program._create_graph_module_for_export",
    used_for="noticing that the code of a program, which is compiled once for speed, is no Python",
    lost="an export that fails for that is told as one that passes",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_makes_program_code,
)


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
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
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
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_symbolizer,
)


def walk_node_stacks() -> AbstractContextManager[None]:
    """Within it, the stack of a node is read off Python's frames; outside of the outermost forward only the frames that
    a tracer may keep. torch reads all of some 100 frames, for each node, and drops most.
    """
    if not NODE_STACKS.is_supported():
        return nullcontext()
    from torch.fx import proxy

    # by the identity of the code, which stays alive, and the place in it: to hash code or to find a line takes longer
    known: dict[tuple[int, int], tuple[traceback.FrameSummary, Any]] = {}
    anchors: dict[int, tuple[bool, Any]] = {}

    def summary_of(frame: Any) -> traceback.FrameSummary:
        code = frame.f_code
        key = id(code), frame.f_lasti
        found = known.get(key)
        if found is None:
            summary = traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name, lookup_line=False)
            found = known[key] = summary, code
        return found[0]

    def is_anchor(code: Any) -> bool:
        """Whether a tracer may keep its frames outside of a forward."""
        found = anchors.get(id(code))
        if found is None:
            name = code.co_filename
            kept = (name, code.co_name) in proxy._STACK_TRACE_ANCHORS or name.endswith("torch/__init__.py")
            found = anchors[id(code)] = kept, code
        return found[0]

    class FrameStack:
        """Stands for CapturedTraceback where a node is created."""

        def __init__(self, frame: Any) -> None:
            self._frame = frame

        @staticmethod
        def extract() -> FrameStack:
            return FrameStack(sys._getframe(1))

        def summary(self) -> traceback.StackSummary:
            within: list[Any] = []
            outside: list[Any] = []
            frame = self._frame
            while frame is not None:
                outside.append(frame)
                if frame.f_code.co_name == "forward":
                    within += outside
                    outside = []
                frame = frame.f_back
            stack = traceback.StackSummary()
            stack.extend(summary_of(one) for one in reversed(outside) if is_anchor(one.f_code))
            stack.extend(map(summary_of, reversed(within)))
            return stack

    return patch_attribute(proxy, "CapturedTraceback", FrameStack)


def _has_node_stacks() -> bool:
    from torch.fx import proxy
    from torch.utils import _traceback

    names = proxy.TracerBase._filter_traceback_frames.__code__.co_varnames
    anchors = hasattr(proxy, "_STACK_TRACE_ANCHORS")
    same = getattr(proxy, "CapturedTraceback", None) is _traceback.CapturedTraceback
    return same and "first_forward" in names and anchors


NODE_STACKS = Hook(
    id="node-stacks",
    api="torch.fx.proxy.{CapturedTraceback, TracerBase._filter_traceback_frames, _STACK_TRACE_ANCHORS}",
    used_for="exports of large models in less time",
    lost="exports of large models take longer",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_node_stacks,
)


def leave_memory_formats_unasked() -> AbstractContextManager[None]:
    """Within it, a node does not note its memory format, which no export reads.

    Where a size follows from a dynamic dimension, asking may add a guard, so there it is asked.
    """
    if not MEMORY_FORMATS.is_supported():
        return nullcontext()
    import torch
    from torch.fx.experimental import proxy_tensor

    extract: Any = vars(proxy_tensor)["_extract_tensor_metadata"]

    def extract_without_format(result: Any, include_contiguity: bool = True) -> Any:
        asked = include_contiguity and (result.layout != torch.strided or result.is_nested or may_get_guards(result))
        return extract(result, asked)

    return patch_attribute(proxy_tensor, "_extract_tensor_metadata", extract_without_format)


def _has_memory_formats() -> bool:
    import torch
    from torch.fx.experimental import proxy_tensor
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    extract: Any = vars(proxy_tensor).get("_extract_tensor_metadata")
    names = getattr(getattr(extract, "__code__", None), "co_varnames", ())[:2]
    same = names == ("result", "include_contiguity") and hasattr(ShapeEnv, "is_unbacked_symint")
    return same and hasattr(torch.Tensor, "_has_symbolic_sizes_strides")


MEMORY_FORMATS = Hook(
    id="memory-formats",
    api="torch.fx.experimental.proxy_tensor._extract_tensor_metadata(result, include_contiguity)",
    used_for="exports of large models in less time",
    lost="exports of large models take longer",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_memory_formats,
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
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_onnx_preparation,
    imports_onnx=True,
)

HOOKS = (LAZY_GRAPHS, PROGRAM_CODE, SYMBOLIZER, NODE_STACKS, MEMORY_FORMATS, ONNX_PREPARATION)
