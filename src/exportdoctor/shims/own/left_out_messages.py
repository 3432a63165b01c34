"""Leaves out what only prints, warns or logs, where that reads the values of a tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.asked_lines import code_of_asking
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, name_unreadable, swap_code
from exportdoctor.shims.rules.code.pure_code import Purity


class _WithoutMessages(ast.NodeTransformer):
    """Statements that only give a message become `pass`, where they ask for a value at one of `lines`."""

    def __init__(self, purity: Purity, lines: frozenset[int]) -> None:
        self.purity, self.lines, self.count = purity, lines, 0

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        rows = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if self.lines.isdisjoint(rows) or self.purity.without_messages([node]):
            return node
        self.count += 1
        return ast.copy_location(ast.Pass(), node)


def _code_of(function: FunctionType, lines: frozenset[int], instances: tuple[Any, ...]) -> CodeType | None:
    node = definition_of(function)
    if node is None:
        return None
    silent = _WithoutMessages(Purity(function=function, instances=instances), lines)
    changed = silent.visit(node)
    return compile_for(function, changed) if silent.count else None


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    changes = code_of_asking(call, _code_of)
    if not changes:
        raise NotApplicable(name_unreadable(call) or "no message reads the values of a tensor")
    with swap_code(changes, {}):
        yield call


SHIM = Shim(
    id="without-messages",
    title="Leaves out messages that read the values of a tensor: print, warnings and logging",
    soundness="exact",
    enter=_enter,
    does=(
        "A statement that does nothing but print, warn or log, and that reads a tensor's value for its text, as "
        "`print(f'{loss.item():.2f}')`, is left out. No exported program gives messages: others are given while it is "
        "traced. What a message is made of must only compute."
    ),
    cures=(
        Cure(
            kinds=("data_dependent_value", "data_dependent_guard", "python_error"),
            where=r":[^\n]*: [^\n]*(?:\bprint|\.(?:warn|warning|info|debug|error|log|critical))\(",
        ),
    ),
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export takes a number that is read out of a tensor as text",
    rank=10,
    replaces=(
        Replacement(
            target="the functions that read a tensor for a message",
            before='y = x * 2\nprint(f"largest {y.max().item():.2f}")\nreturn y\n',
            after="y = x * 2\nreturn y\n",
        ),
    ),
)
