"""The backward slice of the partially traced graph: from the value that a failure is about to where it came from.

The value is the unbacked symbol of the condition, else what went into the operator that raised. Where there is no
such value, or no graph, that is said instead.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import networkx as nx
import torch

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.records.outcome import Frame, GraphSlice, SliceNode, SymbolOrigin
from exportdoctor.torch_internals.shape_env import symbols_in
from exportdoctor.torch_internals.tracer_frames import is_operator
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.describe.node_names import nodes_of_tensors, user_names
from exportdoctor.worker.describe.partial_graph import (
    dynamo_graphs,
    format_value,
    leaked_constant_user,
    raising_op,
    traced_graphs,
    value_of,
)
from exportdoctor.worker.describe.python_frames import source_line
from exportdoctor.worker.describe.symbol_origins import undecided_symbols

_NODES = 40


Chain = tuple[BaseException, ...]
SliceOrReason = tuple[GraphSlice | None, str]


def slice_trace(chain: Chain, origins: Iterable[SymbolOrigin], *, exporter: str) -> SliceOrReason:
    """The slice of at most 40 nodes, or None and why there is none. Never raises: it is an extra."""
    try:
        return _slice(chain, origins, exporter)
    except Exception as error:
        return None, f"the traced graph cannot be read: {type(error).__name__}: {error}"[:300]


def _slice(chain: Chain, origins: Iterable[SymbolOrigin], exporter: str) -> SliceOrReason:
    if not EXPORTERS[exporter].has_partial_graph:
        return None, "the TorchScript exporter throws its graph away when it fails"
    graphs = list(dict.fromkeys((*traced_graphs(chain), *dynamo_graphs(chain))))
    if not graphs:
        return None, "nothing had been traced when it failed"
    for graph in graphs:
        targets = list(dict.fromkeys(_targets(graph, chain)))
        if targets:
            return _graph_slice(
                to_networkx(graph), targets, user_names(chain, graph), {b.symbol: b.frame for b in origins}
            ), ""
    return None, "the failure is about no value of the traced graph"


def to_networkx(graph: torch.fx.Graph) -> nx.DiGraph:
    """The traced graph, from each value to its users; the nodes are torch's own, in the order of tracing."""
    found = nx.DiGraph()
    for node in graph.nodes:
        found.add_node(node)
        found.add_edges_from((given, node) for given in node.all_input_nodes)
    return found


# torch 2.9's dynamo writes `File "a.py:7 in forward"`
_STACK_ENTRY = re.compile(r'\s*File "(?P<file>[^"]+?)(?:", line |:)(?P<line>\d+)')


def nearest(graph: nx.DiGraph, targets: list[Any], limit: int) -> list[Any]:
    """The targets and the ancestors nearest to them, breadth first, at most `limit`."""
    layers = nx.bfs_layers(graph.reverse(copy=False), targets)
    return list(itertools.islice(itertools.chain.from_iterable(layers), limit))


def _targets(graph: torch.fx.Graph, chain: Chain) -> Iterator[torch.fx.Node]:
    """The nodes whose value the failure is about."""
    symbols = undecided_symbols(chain)
    for symbol in symbols:
        maker = next((node for node in graph.nodes if symbol in _symbols(node)), None)
        if maker is not None:
            yield maker
    for error in chain:
        leaked = leaked_constant_user(error)
        if leaked is not None and leaked.graph is graph:
            yield leaked
    raised = raising_op(chain)
    last = next(iter(reversed(graph.nodes)), None)
    if raised is not None and last is not None and last.target is raised[0] and value_of(last) is None:
        yield last  # an operator that raised stands at the end, without a value
    elif raised is not None and not symbols:
        yield from nodes_of_tensors(raised[1], chain, graph)


def _symbols(node: torch.fx.Node) -> frozenset[str]:
    """The symbols in a node's value."""
    found: set[str] = set()
    for leaf in tree_leaves(value_of(node)):
        sizes = leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,)
        for size in sizes:
            found.update(symbols_in(size))
    return frozenset(found)


def _graph_slice(
    graph: nx.DiGraph,
    targets: list[torch.fx.Node],
    labels: Mapping[torch.fx.Node, str],
    created_at: Mapping[str, Frame | None],
) -> GraphSlice:
    ancestors = set(targets).union(*(nx.ancestors(graph, target) for target in targets))
    kept = set(nearest(graph, targets, _NODES))
    nodes = [node for node in graph.nodes if node in kept]
    index = {node: number for number, node in enumerate(nodes)}
    return GraphSlice(
        nodes=tuple(_node(node, labels.get(node, ""), created_at) for node in nodes),
        edges=tuple((index[a], index[b]) for a, b in graph.subgraph(kept).edges),
        targets=tuple(sorted(index[target] for target in targets)),
        left_out=len(ancestors) - len(kept),
        of_constants=all(map(_is_of_constants, _with_writes(graph, ancestors))),
    )


def _with_writes(graph: nx.DiGraph, nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes and, with what leads to them, the operators that may have written into what these give: those whose
    arguments have something in common with them."""
    writing = [node for node in graph.nodes if _writes(node)]
    found, before = set(nodes), 0
    while len(found) > before:
        before = len(found)
        for node in writing:
            if any(not found.isdisjoint({one, *nx.ancestors(graph, one)}) for one in node.all_input_nodes):
                found |= {node, *nx.ancestors(graph, node)}
    return found


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and (schema.is_mutable or "batch_norm" in schema.name)  # whose statistics are not marked


def _is_of_constants(node: torch.fx.Node) -> bool:
    """Whether a node brings in neither inputs nor state nor random numbers; `torch.tensor` makes an attribute."""
    if node.op == "get_attr":
        return any("lift_fresh" in str(user.target) for user in node.users)
    if "empty" in str(node.target):
        return False
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())


def _node(node: torch.fx.Node, label: str, created_at: Mapping[str, Frame | None]) -> SliceNode:
    made = {str(symbol) for symbol in node.meta.get("unbacked_bindings") or ()}
    frame = next((frame for symbol in sorted(made) if (frame := created_at.get(symbol)) is not None), None)
    file, line = (frame.file, frame.line) if frame is not None else user_place(node)
    value = value_of(node)
    return SliceNode(
        name=node.name,
        op="input" if node.op in ("placeholder", "get_attr") else _target_name(node.target),
        shape="" if value is None else format_value(value),
        label=label,
        file=file,
        line=line,
        source=source_line(file, line) if file else "",
    )


def _target_name(target: Any) -> str:
    if isinstance(target, str) or is_operator(target):
        return str(target)
    return getattr(target, "__name__", None) or str(target)


def user_place(node: torch.fx.Node) -> tuple[str, int]:
    """The innermost of the user's lines in the stack that torch noted, which outside of strict mode has no helpers."""
    for entry in reversed((node.stack_trace or "").splitlines()):
        found = _STACK_ENTRY.match(entry)
        if found is not None and is_user_file(found["file"]):
            return found["file"], int(found["line"])
    return "", 0
