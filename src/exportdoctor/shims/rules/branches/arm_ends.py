"""What arms do last, and loops first, written so that it can be chosen between: rows that each arm appends to one list,
and the variable of a loop that is left."""

from __future__ import annotations

import ast
from collections.abc import Callable

from exportdoctor.shims.rules.branches.loop_exits import exits_in
from exportdoctor.shims.rules.code.code_swap import ARM
from exportdoctor.shims.rules.code.made_code import load
from exportdoctor.shims.rules.code.name_flow import OTHER_SCOPES, own_names

_ROW, _STEP = f"{ARM}_row", f"{ARM}_step"


class ArmEnds:
    """Rewrites one function in place; `is_open` says whether only a run can know a condition."""

    def __init__(self, is_open: Callable[[ast.expr], bool]) -> None:
        self.is_open, self.count = is_open, 0

    def of_function(self, node: ast.FunctionDef) -> None:
        """Rewrites its statements, and none of functions in it."""
        self._function = node
        node.body = self._block(node.body)

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for one in statements:
            if not isinstance(one, OTHER_SCOPES):
                for name in ("body", "orelse", "finalbody"):
                    if isinstance(inner := getattr(one, name, None), list):
                        setattr(one, name, self._block(inner))
            if isinstance(one, ast.For):
                self._keep_variable(one)
            made += self._append_behind(one) if isinstance(one, ast.If) and self.is_open(one.test) else [one]
        return made

    def _append_behind(self, branch: ast.If) -> list[ast.stmt]:
        """`rows.append` at the end of both arms behind the branch, of what each of them appends there."""
        ends = [_find_append(arm) for arm in (branch.body, branch.orelse)]
        if ends[0] is None or ends[1] is None or ends[0][0] != ends[1][0]:
            return [branch]
        self.count += 1
        row = f"{_ROW}_{self.count}"
        for arm, end in zip((branch.body, branch.orelse), ends, strict=True):
            assert end is not None
            arm[-1] = ast.copy_location(ast.Assign([ast.Name(row, ast.Store())], end[1]), arm[-1])
        append = ast.Call(ast.Attribute(load(ends[0][0]), "append", ast.Load()), [load(row)], [])
        behind = ast.copy_location(ast.Expr(append), branch)
        return [branch, ast.fix_missing_locations(behind)]

    def _keep_variable(self, loop: ast.For) -> None:
        """The variable of a loop that is left by a value is bound in each step, where code behind the loop reads it."""
        names = [one for one in ast.walk(loop.target) if isinstance(one, ast.Name)]
        leaves = any(isinstance(each, ast.Break) for part in loop.body for each in exits_in(part))
        plain = isinstance(loop.target, ast.Name | ast.Tuple) and not any(
            isinstance(one, ast.Starred | ast.Attribute | ast.Subscript) for one in ast.walk(loop.target)
        )
        if not leaves or not plain or not any(_is_used_outside(one.id, loop, self._function) for one in names):
            return
        self.count += 1
        binds = [ast.Assign([ast.Name(one.id, ast.Store())], load(f"{_STEP}_{self.count}_{one.id}")) for one in names]
        for one in names:
            one.id = f"{_STEP}_{self.count}_{one.id}"
        loop.body[:0] = [ast.fix_missing_locations(ast.copy_location(one, loop)) for one in binds]


def _find_append(arm: list[ast.stmt]) -> tuple[str, ast.expr] | None:
    """The list to which an arm appends last, and what."""
    match arm:
        case [
            *_,
            ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value], keywords=[])),
        ] if not isinstance(value, ast.Starred):
            return name, value
    return None


def _is_used_outside(name: str, loop: ast.For, node: ast.AST) -> bool:
    """Whether anything but the loop has the name."""
    if node is loop:
        return False
    return name in own_names(node) or any(_is_used_outside(name, loop, one) for one in ast.iter_child_nodes(node))
