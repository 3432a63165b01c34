"""A loop over `range(start, stop, step)` with a size in it fixes how often it runs, and not the size.

Python asks each argument of `range` for its number, so that a loop over windows of 128 rows fixes the rows. Asked for
the number of steps alone, the program holds for all sizes with as many windows as the example has.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, swap_code, user_functions

_STEPS = "_steps_of"


def steps_of(start: Any, stop: Any, step: Any) -> Sequence[Any]:
    """`range(start, stop, step)`. With symbolic sizes and a positive step only the number of values is fixed."""
    import torch

    given = (start, stop, step)
    symbolic = any(isinstance(one, torch.SymInt) for one in given)
    whole = all(isinstance(one, torch.SymInt | int) for one in given)  # a tensor is neither, and wraps around
    if not symbolic or not whole or step < 1:
        return range(start, stop, step)
    return [start + step * number for number in range(int((stop - start + step - 1) // step))]


class _Counting(ast.NodeTransformer):
    """What `for` goes over."""

    def __init__(self) -> None:
        self.count = 0

    def visit_For(self, node: ast.For) -> ast.AST:
        """A statement."""
        return self._count(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        """In a list, for example."""
        return self._count(node)

    def _count(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        match node.iter:
            case ast.Call(func=ast.Name(id="range"), args=[_, _, step], keywords=[]) if ast.unparse(step) != "1":
                node.iter.func = ast.copy_location(ast.Name(_STEPS, ast.Load()), node.iter.func)
                self.count += 1
        return node


def _rewritten(function: FunctionType) -> CodeType | None:
    """Its code with loops that count; None where there is no such loop."""
    node, counting = definition_of(function), _Counting()
    if node is None or "range" in {*function.__globals__, *function.__code__.co_varnames}:
        return None
    changed = counting.visit(node)
    return compile_for(function, changed) if counting.count else None


def _mentions_range(code: CodeType) -> bool:
    return "range" in code.co_names


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    changes = {
        one: code
        for one in dict.fromkeys(user_functions(call, _mentions_range))
        if (code := _rewritten(one)) is not None
    }
    if not changes:
        raise NotApplicable("no function loops over `range` with a step")
    with swap_code(changes, {_STEPS: steps_of}):
        yield call


SHIM = Shim(
    id="loops-by-count",
    title="Fixes how often a loop over `range` with a step runs, and not the sizes in it",
    soundness="precondition",
    enter=_enter,
    does=(
        "Python asks each argument of `range` for its number, so that a loop over windows fixes the size that it goes "
        "over. Here the number of steps is asked for alone. torch turns that into a range of sizes, which the program "
        "checks."
    ),
    precondition="each loop over `range` with a step runs as often as for the example; the program refuses other sizes",
    cures=(Cure(kinds=("dynamic_dim_specialised",)),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export keeps such sizes dynamic",
    rank=25,
    replaces=(
        Replacement(
            target="the functions that loop over `range` with a step",
            before="for start in range(0, length, 128):\n    windows.append(x[start : start + 128])\n",
            after="for start in _steps_of(0, length, 128):\n    windows.append(x[start : start + 128])\n",
        ),
    ),
)
