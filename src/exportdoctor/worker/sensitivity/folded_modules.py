"""The submodule whose weight an operator has, also where others were folded into it, as a batch norm is into the
convolution before it: such an operator has the metadata of what was folded last."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.worker.numbers.file_names import scope_in_name
from exportdoctor.worker.translate.failed_node import NodeFact, fx_fact, onnx_fact

PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
"""Operators with a weight into which others are folded."""
_PRODUCTS_OF_TORCH = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "_convolution", "linear", "matmul", "mm", "bmm", "mv", "dot", "addmm", "addmv", "baddbmm", "addbmm", "einsum",
    "inner", "outer", "chain_matmul", "linalg_multi_dot", "bilinear", "_trilinear", "tensordot",
})  # fmt: skip
_OF_TORCH = re.compile(r"aten[.:]+(\w+)")
_ORIGIN, _RULE = "pkg.torch.onnx.fx_node", "pkg.onnxscript.rewriter.rule_name"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The submodule that an operator belongs to, '' for none, the node that says its line, and the submodules that were
    folded into it."""

    module: str
    fact: NodeFact
    folded: tuple[str, ...] = ()


@dataclass(kw_only=True)
class OwnerFinder:
    """Finds owners in an ONNX graph. `program` is the one that torch.onnx translated; a file alone has none, and is
    asked for the names of weights."""

    graph: Any
    program: Any = None
    _nodes: dict[str, torch.fx.Node] = field(default_factory=dict)
    _varying: set[torch.fx.Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._constants = {one.name for one in self.graph.initializer}
        self._origins = {onnx_fact(node).origin for node in self.graph.node}
        if self.program is None:
            return
        given = set(self.program.graph_signature.user_inputs)
        for node in self.program.graph.nodes:
            self._nodes[node.name] = node
            if node.name in given or any(one in self._varying for one in node.all_input_nodes):
                self._varying.add(node)

    def find(self, node: Any) -> Owner:
        """The owner of a node of the graph."""
        fact = onnx_fact(node)
        plain = Owner(module=fact.module or scope_in_name(node.name), fact=fact)
        if node.op_type not in PRODUCTS or not any(name in self._constants for name in node.input[:2]):
            return plain
        if fact.origin in self._nodes:
            return self._before_folding(self._nodes[fact.origin]) or plain
        return self._by_weight(node, plain)

    def _before_folding(self, last: torch.fx.Node) -> Owner | None:
        """The owner by the program's node that was folded last: the product is found along the values that vary with
        the inputs, past nodes of which the file has none. None where the way forks before it."""
        folded: dict[str, None] = {}
        node = last
        while not _is_product(str(node.target)):
            folded[fx_fact(node).module] = None
            before = [one for one in node.all_input_nodes if one in self._varying and _is_tensor(one)]
            if len(before) != 1 or before[0].op != "call_function" or before[0].name in self._origins:
                return None
            node = before[0]
        fact = fx_fact(node)
        others = [name for name in reversed(folded) if name not in ("", fact.module)]
        return Owner(module=fact.module, fact=fact, folded=tuple(others))

    def _by_weight(self, node: Any, plain: Owner) -> Owner:
        """The owner by the name of the weight, or else of the bias, where the node's origin is no product. What was
        rewritten and has no such name belongs to none."""
        noted = {one.key: one.value for one in node.metadata_props}
        if not noted.get(_ORIGIN) or _is_product(noted[_ORIGIN]):
            return plain
        folded = tuple(filter(None, [plain.module]))
        for name in node.input[1:]:
            owner = name.rpartition(".")[0].partition(".parametrizations.")[0]
            if name in self._constants and owner and owner != plain.module:
                return Owner(module=owner, fact=plain.fact, folded=folded)
        named = any(name.startswith(f"{plain.module}.") for name in node.input[1:])
        return plain if named or _RULE not in noted else Owner(module="", fact=plain.fact, folded=folded)


def _is_product(target: str) -> bool:
    """Whether an operator of torch, or the text of a node that calls it, multiplies with a weight."""
    found = _OF_TORCH.search(target)
    return found is not None and found[1] in _PRODUCTS_OF_TORCH


def _is_tensor(node: torch.fx.Node) -> bool:
    """Whether it gives tensors, not a size."""
    return not isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | None)
