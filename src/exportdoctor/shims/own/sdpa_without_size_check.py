"""SDPA that is not causal does not compare the length of its row with one.

transformers' SDPA begins a chain of conditions with a comparison of sizes, `q_length > 1 and mask is None and
is_causal`. The order has no effect on the answer; with the comparison last, it is made only where it matters.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import contextmanager

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rewriting import rewrite_source
from exportdoctor.shims.rules.code.code_swap import rewrite_code, swap_code

_TARGET = "transformers.integrations.sdpa_attention"


class SizesLast(ast.NodeTransformer):
    """In `a and b and c`, conditions without side effects change places: comparisons of sizes go last."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Stable, so that a chain in order stays as it is."""
        self.generic_visit(node)
        if isinstance(node.op, ast.And):
            node.values.sort(key=_compares_sizes)
        return node


def _compares_sizes(node: ast.expr) -> bool:
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Gt | ast.GtE | ast.Lt | ast.LtE):
        return False
    text = ast.unparse(node)
    return "shape" in text or "length" in text or "size(" in text


def _rewrite(source: str) -> str:
    return rewrite_source(source, SizesLast())


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    from transformers.integrations import sdpa_attention

    plain = inspect.unwrap(sdpa_attention.sdpa_attention_forward)
    code = rewrite_code(plain, SizesLast()) if inspect.isfunction(plain) else None
    if code is None:
        raise NotApplicable("transformers' SDPA has no size check to replace")
    with swap_code({plain: code}, {}):
        yield call


SHIM = Shim(
    id="sdpa-without-size-check",
    title="Skips the sequence length check of SDPA for attention that is not causal",
    soundness="exact",
    enter=_enter,
    does=(
        "In the conditions of transformers' `sdpa_attention_forward`, checks of masks and flags are moved"
        " before comparisons of sizes. For attention that is not causal, or has a mask, the sequence "
        "length is then not compared."
    ),
    cures=(
        Cure(kinds=("data_dependent_guard", "dynamic_dim_specialised"), where=r"sdpa_attention\.py"),
        Cure(message=r"is_causal.*must be bool|SymBool"),
    ),
    needs={"torch": ">=2.8", "transformers": ">=4.53"},
    link="https://github.com/huggingface/transformers/pull/46196",
    retire="sdpa_attention_forward checks the mask first",
    rank=30,
    conflicts=("od.patched_sdpa_attention_forward",),
    replaces=(Replacement(target=f"{_TARGET}:sdpa_attention_forward", rewrite=_rewrite),),
)
