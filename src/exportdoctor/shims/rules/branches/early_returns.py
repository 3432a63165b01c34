"""Arms that return and write into tensors: what they return gets a name, and the function returns that behind them.

`if self.seen: return`, then `self.mean.copy_(x)`, becomes `if self.seen: pass`, `else: self.mean.copy_(x)`: what an arm
writes is written back behind the branch (`arm_writes.py`), which has to be reached.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from exportdoctor.shims.rules.code.code_swap import ARM
from exportdoctor.shims.rules.code.made_code import load
from exportdoctor.shims.rules.code.name_flow import OTHER_SCOPES, all_names

_RETURNED = f"{ARM}_returned"
"""The name of what the function returns."""
Asks = Callable[[ast.expr], bool]


def return_behind_arms(
    function: ast.FunctionDef, is_open: Asks, writes: Callable[[ast.AST], bool], is_plain: Callable[[ast.With], bool]
) -> None:
    """Rewrites, in place, the end of a function from its first branch on that returns and whose condition `is_open`,
    where some of that `writes`. A `with` that `is_plain` only says how torch computes what is in it."""
    if _RETURNED in all_names(function):
        return
    place = _find_branch(function.body, is_open, is_plain)
    if place is None or not any(writes(one) for part in function.body[place:] for one in ast.walk(part)):
        return
    rest = with_result_named(function.body[place:], is_plain)
    if rest is not None:
        function.body[place:] = rest
        ast.fix_missing_locations(function)


def _find_branch(body: Sequence[ast.stmt], is_open: Asks, is_plain: Callable[[ast.With], bool]) -> int | None:
    for place, one in enumerate(body):
        if isinstance(one, ast.If) and is_open(one.test) and _returns(one):
            return place
        if isinstance(one, ast.With) and is_plain(one) and _find_branch(one.body, is_open, is_plain) is not None:
            return place
    return None


def with_result_named(body: Sequence[ast.stmt], is_plain: Callable[[ast.With], bool]) -> list[ast.stmt] | None:
    """The statements with which a function ends, so that it returns at their end alone; None where it cannot be.
    What follows an arm that returns becomes the other arm."""
    returned = [one for part in body for one in _own_nodes(part) if isinstance(one, ast.Return)]
    gives = any(one.value is not None and not _is_none(one.value) for one in returned)
    made = _Naming(_RETURNED if gives else "", is_plain).of_block(body)
    if made is None or not gives:
        return made
    return [*made, ast.copy_location(ast.Return(load(_RETURNED)), body[-1])]


class _Naming:
    def __init__(self, result: str, is_plain: Callable[[ast.With], bool]) -> None:
        self.result, self.is_plain = result, is_plain

    def of_block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        """Statements behind which the function ends."""
        for place, one in enumerate(statements):
            if not _returns(one):
                continue
            before, after = statements[:place], statements[place + 1 :]
            made: list[ast.stmt] | None = None
            if isinstance(one, ast.Return):
                made = self._end(one.value, one)
            elif isinstance(one, ast.If):
                made = self._of_branch(one, after)
            elif isinstance(one, ast.With) and self.is_plain(one) and not after:
                body = self.of_block(one.body)
                made = None if body is None else [ast.copy_location(ast.With(one.items, body, None), one)]
            return None if made is None else [*before, *made]
        return [*statements, *(self._end(None, statements[-1]) if statements else self._end(None, None))]

    def _of_branch(self, node: ast.If, after: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        """One of which some way returns; `after` stands in the arm that does not."""
        ends = [_always_returns(arm) for arm in (node.body, node.orelse)]
        if not any(ends) and after:
            return None
        arms = [
            self.of_block(arm if end else [*arm, *after])
            for arm, end in zip((node.body, node.orelse), ends, strict=True)
        ]
        if arms[0] is None or arms[1] is None:
            return None
        body = arms[0] or [ast.copy_location(ast.Pass(), node)]
        return [ast.copy_location(ast.If(node.test, body, arms[1]), node)]

    def _end(self, value: ast.expr | None, at: ast.stmt | None) -> list[ast.stmt]:
        if not self.result:
            return []
        made = ast.Assign([ast.Name(self.result, ast.Store())], value or ast.Constant(None))
        return [made if at is None else ast.copy_location(made, at)]


def _own_nodes(node: ast.AST) -> list[ast.AST]:
    """The nodes in a statement, but for those of functions in it."""
    if isinstance(node, OTHER_SCOPES):
        return []
    return [node, *(one for part in ast.iter_child_nodes(node) for one in _own_nodes(part))]


def _returns(node: ast.stmt) -> bool:
    return any(isinstance(one, ast.Return) for one in _own_nodes(node))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _always_returns(arm: Sequence[ast.stmt]) -> bool:
    """Whether each way through it returns."""
    for one in arm:
        match one:
            case ast.Return():
                return True
            case ast.If(body=body, orelse=other) if _always_returns(body) and _always_returns(other):
                return True
    return False
