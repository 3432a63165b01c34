"""The graph that had been traced when an export failed, found through the tracer on the exception's traceback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from exportdoctor.core.records.outcome import OpFact
from exportdoctor.torch_internals.dynamo_frames import interpreted_graph, partial_code
from exportdoctor.torch_internals.tracer_frames import (
    dispatched_op,
    is_operator,
    is_operator_family,
    leaked_constant,
    symbolic_node,
    traced_graph,
)
from exportdoctor.worker.describe.python_frames import tracebacks

_GRAPH_LIMIT = 200_000


def partial_graph(chain: tuple[BaseException, ...]) -> str:
    """The traced part as torch prints it, its last 200,000 characters at most; empty where none was traced."""
    for error in chain:
        if text := partial_code(error):
            return text[-_GRAPH_LIMIT:]
    for graph in traced_graphs(chain):
        return str(graph)[-_GRAPH_LIMIT:]
    return ""


def traced_graphs(chain: tuple[BaseException, ...]) -> Iterator[torch.fx.Graph]:
    """The graphs of the tracers on the tracebacks, innermost first."""
    for error in chain:
        for link in reversed(tuple(tracebacks(error))):
            graph = traced_graph(link.tb_frame)
            if isinstance(graph, torch.fx.Graph) and len(graph.nodes):
                yield graph


def trace_progress(chain: tuple[BaseException, ...]) -> tuple[int | None, int | None]:
    """How many nodes had been traced, and of how many submodules; `None` where no tracer is on the tracebacks."""
    largest = max(traced_graphs(chain), key=lambda graph: len(graph.nodes), default=None)
    if largest is None:
        return None, None
    inside = {path for node in largest.nodes for path, _ in (node.meta.get("nn_module_stack") or {}).values()}
    return len(largest.nodes), len(inside)


def dynamo_graphs(chain: tuple[BaseException, ...]) -> Iterator[torch.fx.Graph]:
    """The graphs of dynamo's interpreters on the tracebacks, innermost first: of torch functions, not operators."""
    for error in chain:
        for link in reversed(tuple(tracebacks(error))):
            graph = interpreted_graph(link.tb_frame.f_locals.get("self"))
            if isinstance(graph, torch.fx.Graph) and len(graph.nodes):
                yield graph


def last_op(chain: tuple[BaseException, ...]) -> OpFact | None:
    """The operator that was being dispatched or translated when the exception rose, else the last one in the graph."""
    for error in chain:
        raised = _op_on_the_stack(error) or _op_on_leaked_constant(error) or _op_in_translation(error)
        if raised is not None:
            return raised
    for graph in traced_graphs(chain):
        for node in reversed(graph.nodes):
            if node.op == "call_function" and is_operator(node.target):
                return OpFact(name=str(node.target), arguments=tuple(map(format_value, node.args)))
    return None


_TORCH_NAMESPACES = frozenset({"aten", "prim", "prims", "higher_order", "quantized", "inductor", "profiler", "export",
                               "_c10d_functional", "c10d_functional", "quantized_decomposed", "rngprims",
                               "exportdoctor"})  # fmt: skip


def custom_ops(chain: tuple[BaseException, ...]) -> tuple[str, ...] | None:
    """The operators in the traced graph that are not torch's own, in order; None where there is no graph."""
    found: dict[str, None] = {}
    graphs = [*traced_graphs(chain), *dynamo_graphs(chain)]
    for graph in graphs:
        for node in graph.nodes:
            target = node.target
            if not isinstance(target, str) and _namespace(target) not in _TORCH_NAMESPACES:
                found[str(target)] = None
    return tuple(found) if graphs else None


def _namespace(target: Any) -> str:
    """The namespace of an operator, `aten` for any other function: dynamo's graphs call torch's functions."""
    if is_operator(target):
        return str(target.namespace)
    return str(target).partition(".")[0] if is_operator_family(target) else "aten"


def _op_on_leaked_constant(error: BaseException) -> OpFact | None:
    node = leaked_constant_user(error)
    return None if node is None else OpFact(name=str(node.target), arguments=tuple(map(format_value, node.args)))


def _op_in_translation(error: BaseException) -> OpFact | None:
    found = [node[0] for link in tracebacks(error) if (node := symbolic_node(link.tb_frame)) is not None]
    return OpFact(name=found[-1].replace("::", "."), raised=True) if found else None


def raising_op(chain: tuple[BaseException, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    """The operator that was being dispatched when an exception of the chain rose, with its arguments."""
    return next((found for error in chain if (found := _dispatched_op(error)) is not None), None)


def _op_on_the_stack(error: BaseException) -> OpFact | None:
    found = _dispatched_op(error)
    return (
        None if found is None else OpFact(name=str(found[0]), arguments=tuple(map(format_value, found[1])), raised=True)
    )


def _dispatched_op(error: BaseException) -> tuple[Any, tuple[Any, ...]] | None:
    """The innermost operator that fake or proxy dispatch was at."""
    found = [op for link in tracebacks(error) if (op := dispatched_op(link.tb_frame)) is not None]
    return found[-1] if found else None


def value_of(node: torch.fx.Node) -> Any:
    """The fake value of a node; dynamo keeps it under another name. None for an operator that gave none."""
    return node.meta.get("val", node.meta.get("example_value"))


def format_value(value: Any) -> str:
    """A tensor by its dtype and (symbolic) shape, anything else by a short repr."""
    meta = value_of(value) if isinstance(value, torch.fx.Node) else value
    if isinstance(meta, torch.Tensor):
        return f"{str(meta.dtype).removeprefix('torch.')}[{', '.join(map(str, meta.shape))}]"
    if isinstance(meta, (list, tuple)):
        return f"[{', '.join(map(format_value, meta[:8]))}{', …' if len(meta) > 8 else ''}]"
    text = str(meta) if isinstance(meta, (torch.SymInt, torch.SymFloat, torch.SymBool)) else repr(meta)
    return text[:120]


def leaked_constant_user(error: BaseException) -> torch.fx.Node | None:
    """The node that writes into the leaked constant, else the first that reads it; None for any other error."""
    for link in tracebacks(error):
        found = leaked_constant(link.tb_frame)
        if found is not None:
            calls = list(_operators_on(*found))
            writers = [node for node in calls if node.target._schema.is_mutable]  # type: ignore[union-attr]
            return next(iter(writers or calls), None)
    return None


def _operators_on(name: str, program: Any) -> Iterator[torch.fx.Node]:
    """The operators that the constant's value reaches, in order."""
    inputs = {spec.arg.name for spec in program.sig.input_specs if spec.target == name}
    reached: set[torch.fx.Node] = set()
    for node in program.gm.graph.nodes:
        if node.op == "placeholder" and node.name in inputs:
            reached.add(node)
        elif reached.intersection(node.all_input_nodes):
            reached.add(node)
            if is_operator(node.target):
                yield node
