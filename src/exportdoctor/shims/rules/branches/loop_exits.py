"""Exits from loops, `if condition: break`, as flags: each later step runs `if not left`, which can be a choice.

Only where going on after the exit is seen by nobody: the loop goes over what is there before it, its body only
computes, and its index is not read behind it (`arm_ends.py` gives it another one where it was). `continue` needs no
flag: what follows it becomes the other arm.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from exportdoctor.shims.rules.code.code_swap import ARM
from exportdoctor.shims.rules.code.made_code import load
from exportdoctor.shims.rules.code.name_flow import bound_names, own_names
from exportdoctor.shims.rules.code.pure_code import Purity

LEFT, RESULT = f"{ARM}_left", f"{ARM}_result"
"""How the names begin of a flag that says that a loop was left, and of what the function then returns."""
_EXITS = ast.Break | ast.Continue | ast.Return
_OVER = frozenset({"range", "enumerate", "reversed", "zip"})


@dataclass
class LoopExits:
    """Rewrites the loops of one function; `is_open` says whether only a run can know a condition."""

    purity: Purity
    is_open: Callable[[ast.expr], bool]
    count: int = 0
    asking: list[ast.expr] = field(default_factory=list)
    """The conditions of the exits that were replaced last, the first one at the end."""

    def of_function(self, node: ast.FunctionDef) -> None:
        """Rewrites them in place."""
        self._function = node
        node.body = self._block(node.body, self.purity, returns=True)

    def _block(self, statements: list[ast.stmt], purity: Purity, *, returns: bool = False) -> list[ast.stmt]:
        """`returns` says that the loops in it are followed by the rest of the function alone."""
        made: list[ast.stmt] = []
        for one in statements:
            if isinstance(one, ast.For):
                made += self._loop(one, purity, returns=returns)
                continue
            for name in ("body", "orelse"):
                if isinstance(one, ast.If) and isinstance(inner := getattr(one, name), list):
                    setattr(one, name, self._block(inner, purity))
            made.append(one)
        return made

    def _loop(self, loop: ast.For, purity: Purity, *, returns: bool) -> list[ast.stmt]:
        inside = purity.inside(loop)
        loop.body = self._block(loop.body, inside)
        exits = {type(one) for part in loop.body for one in exits_in(part)}
        if not exits or loop.orelse or len(exits - {ast.Continue}) > 1 or (ast.Return in exits and not returns):
            return [loop]
        names = ExitNames(f"{LEFT}_{self.count + 1}", f"{RESULT}_{self.count + 1}")
        self.asking = []
        body = self.replace_exits(copy.deepcopy(loop.body), names)
        if body is None or _makes_functions(body):
            return [loop]
        if exits == {ast.Continue}:
            loop.body = body
            return [loop]
        if not inside.of_statements(loop.body) or not self._may_go_on(loop):
            return [loop]
        self.count += 1
        no: list[ast.stmt] = [ast.Assign([ast.Name(names.left, ast.Store())], ast.Constant(False))]
        goes_on = ast.UnaryOp(ast.Not(), load(names.left))
        loop.body = [ast.If(goes_on, body, [])]
        last: list[ast.stmt] = [ast.If(load(names.left), [ast.Return(load(names.result))], [])]
        made = [*no, loop, *(last if ast.Return in exits else [])]
        for one in (*no, *loop.body, *last):
            _at_line_of(one, self.asking[-1])  # where it cannot be chosen between, it fails there
        return made

    def _may_go_on(self, loop: ast.For) -> bool:
        """Whether the steps after the exit change nothing that anybody sees."""
        index = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
        is_own = all(_is_read_in_loops_alone(name, self._function) for name in index)
        return is_own and self.purity.of_expression(loop.iter) and self._is_there(loop.iter)

    def _is_there(self, over: ast.expr) -> bool:
        """Whether it can be gone over more than once."""
        import torch

        match over:
            case ast.Call(func=ast.Name(id="range"), keywords=[]):
                return True
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _OVER:
                return all(map(self._is_there, args))
            case ast.Subscript(value=value, slice=ast.Slice()):
                return self._is_there(value)
            case ast.Tuple() | ast.List():
                return True
        return isinstance(self.purity.resolve(over), list | tuple | torch.nn.ModuleList | torch.nn.Sequential)

    def replace_exits(self, statements: Sequence[ast.stmt], names: ExitNames) -> list[ast.stmt] | None:
        """The body with each exit as a flag, and what follows it in the other arm; None where it cannot be."""
        for place, one in enumerate(statements):
            if not any(exits_in(one)):
                continue
            if isinstance(one, ast.If) and one.orelse and not any(any(exits_in(each)) for each in one.body):
                one = _with_arms_exchanged(one)
            if not isinstance(one, ast.If) or not self.is_open(one.test) or not isinstance(one.body[-1], _EXITS):
                return None
            last, taken = one.body[-1], one.body[:-1]
            rest = self.replace_exits([*one.orelse, *statements[place + 1 :]], names)
            if rest is None or any(any(exits_in(each)) for each in taken):
                return None
            made: list[ast.stmt] = [ast.If(one.test, [*taken, *_result_of(last, names)] or [ast.Pass()], rest)]
            if not isinstance(last, ast.Continue):
                truth = ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), one.test))
                flag = ast.Assign([ast.Name(names.left, ast.Store())], truth)
                made = [flag, ast.If(load(names.left), made[0].body, rest)]  # type: ignore[attr-defined]
            if not isinstance(last, ast.Continue):
                self.asking.append(one.test)
            return [*statements[:place], *(_at_line_of(each, one.test) for each in made)]
        return list(statements)


@dataclass(frozen=True)
class ExitNames:
    """Of the flag that says that a loop was left, and of the result of the function if it was left by `return`."""

    left: str
    result: str


def _is_read_in_loops_alone(name: str, node: ast.AST) -> bool:
    """Whether nothing has the name but loops over it."""
    if isinstance(node, ast.For) and name in bound_names(node.target):
        return True
    parts = ast.iter_child_nodes(node)
    return name not in own_names(node) and all(_is_read_in_loops_alone(name, one) for one in parts)


def _with_arms_exchanged(node: ast.If) -> ast.If:
    test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
    return ast.copy_location(ast.If(test, node.orelse, node.body), node)


def _result_of(last: ast.stmt, names: ExitNames) -> list[ast.stmt]:
    if not isinstance(last, ast.Return):
        return []
    value = last.value if last.value is not None else ast.Constant(None)
    return [ast.copy_location(ast.Assign([ast.Name(names.result, ast.Store())], value), last)]


def exits_in(node: ast.AST) -> Iterator[ast.stmt]:
    """What leaves the loop around a statement, or its step: an exit of a loop inside is that loop's, unless it returns
    or stands in its `else`."""
    if isinstance(node, _EXITS):
        yield node
    own = node.body if isinstance(node, ast.For | ast.While) else []
    for part in ast.iter_child_nodes(node):
        yield from (one for one in exits_in(part) if part not in own or isinstance(one, ast.Return))


def flag_exits(statements: Sequence[ast.stmt], left: str, skipped: str) -> list[ast.stmt] | None:
    """A step with flags for its exits, also inside of branches that go on: `left` for `break`, `skipped` for
    `continue`. None where one is neither, or inside of something else than an `if`."""
    for place, one in enumerate(statements):
        if not any(exits_in(one)):
            continue
        before = list(statements[:place])
        if isinstance(one, ast.Break | ast.Continue):
            name = left if isinstance(one, ast.Break) else skipped
            return [*before, ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(True)), one)]
        if not isinstance(one, ast.If):
            return None
        parts = [flag_exits(part, left, skipped) for part in (one.body, one.orelse, statements[place + 1 :])]
        body, other, rest = parts
        if body is None or other is None or rest is None:
            return None
        made: list[ast.stmt] = [ast.If(one.test, body, other)]
        if rest:
            goes_on = ast.UnaryOp(ast.Not(), ast.BoolOp(ast.Or(), [load(left), load(skipped)]))
            made.append(ast.If(goes_on, rest, []))
        return [*before, *(_at_line_of(ast.copy_location(each, one), one.test) for each in made)]
    return list(statements)


def is_flag(node: ast.stmt) -> bool:
    """Whether it says whether a loop is left: what it binds is only asked for its truth."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name.startswith(LEFT)
    return False


def asks_for_flags(node: ast.AST) -> bool:
    """Whether a branch on a flag is left, which Python would ask for its value."""
    tests = (one.test for one in ast.walk(node) if isinstance(one, ast.If))
    return any(isinstance(one, ast.Name) and one.id.startswith(LEFT) for test in tests for one in ast.walk(test))


def _makes_functions(body: Sequence[ast.stmt]) -> bool:
    """Whether a function is made in it, which may read names at another time."""
    return any(isinstance(one, ast.Lambda | ast.FunctionDef) for part in body for one in ast.walk(part))


def _at_line_of(node: ast.stmt, place: ast.expr) -> ast.stmt:
    """The node, with the position of `place` where it and its parts have none."""
    for one in ast.walk(node):
        if isinstance(one, ast.stmt | ast.expr) and not hasattr(one, "lineno"):
            ast.copy_location(one, place)
    return node
