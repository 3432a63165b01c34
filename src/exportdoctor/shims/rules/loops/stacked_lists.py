"""Lists that are stacked, written in one way: made, appended to and stacked.

`torch.stack([... for index in range(length)])` becomes a loop that appends to a list, and the stack of that.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from exportdoctor.shims.rules.code.made_code import load
from exportdoctor.shims.rules.code.name_flow import OTHER_SCOPES, SCAN_PREFIX, names_in_other_scopes
from exportdoctor.shims.rules.code.name_uses import JOINS, NameUses, is_new_list, made_by, stacked_list
from exportdoctor.shims.rules.code.pure_code import Purity

_SCOPES = (*OTHER_SCOPES, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""What binds names of its own."""


def write_lists_plainly(function: ast.FunctionDef) -> None:
    """Write what a function does with lists that it stacks as `append`: in it `rows += [row]` and `rows = rows + [row]`
    become that, `rows = [row] + rows` an `insert`, `rows[-1]` a name for the last row, and where a stack takes the name
    of its list the list gets another.
    """
    for block in _blocks(function):
        block[:] = map(_without_annotation, block)
    _name_lists_apart(function)
    uses = NameUses(function, names_in_other_scopes(function))
    every = {name for one in ast.walk(function) for name in made_by(one, is_new_list)}
    lists = {name for name in every if uses.is_only_stacked(name, _adds_or_reads_last)}
    last = {one.id for node in ast.walk(function) if (one := _last_of(node)) is not None and one.id in lists}
    plain = _PlainLists(lists, {name for name in last if _has_a_last_row(function, name)})
    function.body = [made for one in function.body for made in _as_list(plain.visit(one))]


def _name_lists_apart(function: ast.FunctionDef) -> None:
    """Give each list whose name its stack takes over a name of its own, from where it is made to there.

    Both statements are of one block, which nothing between them leaves. Code with `try` or with a context that is not
    of torch, which may go on after half of them, stays as it is.
    """
    if any(map(_may_catch, ast.walk(function))):
        return
    inside, count = names_in_other_scopes(function), 0
    for block in _blocks(function):
        for end, one in enumerate(block):
            for name in _names_of_stacks(one) - inside:
                made = [nth for nth in range(end) if name in made_by(block[nth], is_new_list)]
                if made and not any(map(_leaves, block[made[-1] : end])):
                    count += 1
                    _rename(block[made[-1] : end + 1], name, f"{SCAN_PREFIX}rows_of_{name}_{count}")


def _may_catch(node: ast.AST) -> bool:
    """Whether code goes on behind it after an exception in it."""
    match node:
        case ast.With(items=items):
            return not all(ast.unparse(one.context_expr).startswith("torch.") for one in items)
    return isinstance(node, ast.Try | ast.TryStar | ast.AsyncWith)


def _without_annotation(statement: ast.stmt) -> ast.stmt:
    match statement:
        case ast.AnnAssign(target=ast.Name() as name, value=ast.expr() as value):
            return ast.copy_location(ast.Assign([name], value), statement)
    return statement


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of a function, but for those of functions and classes in it."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block
            for one in block:
                if not isinstance(one, OTHER_SCOPES):
                    yield from _blocks(one)


def _names_of_stacks(statement: ast.stmt) -> set[str]:
    """The names in `name = ... torch.stack(name)`, where nothing in the value binds names."""
    match statement:
        case ast.Assign(targets=[target], value=value):
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            every = list(ast.walk(value))
            if not any(isinstance(one, (*_SCOPES, ast.NamedExpr)) for one in every):
                stacked = {of.id for one in every if (of := stacked_list(one)) is not None}
                bound = [one.id for one in names if isinstance(one, ast.Name)]
                return stacked.intersection(bound) if len(bound) == len(names) else set()
    return set()


def _leaves(statement: ast.stmt) -> bool:
    return any(isinstance(one, ast.Break | ast.Continue) for one in ast.walk(statement))


def _rename(statements: list[ast.stmt], name: str, own: str) -> None:
    """The name of a list, in the statement that makes it, those that use it, and the value that takes its name."""
    first, last = statements[0], statements[-1]
    made_by(first, is_new_list)[name].id = own
    stays = {id(one) for one in ast.walk(last) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for one in (each for statement in statements[1:] for each in ast.walk(statement)):
        if isinstance(one, ast.Name) and one.id == name and id(one) not in stays:
            one.id = own


@dataclass(frozen=True)
class _Addition:
    """A row that is added to a list: the names of the list in it, and whether the row becomes the first."""

    names: list[ast.Name]
    row: ast.expr
    is_first: bool = False


def _addition(node: ast.AST) -> _Addition | None:
    """That of `rows += [row]`, `rows = rows + [row]` and `rows = [row] + rows`."""
    found: _Addition | None = None
    match node:
        case ast.AugAssign(target=ast.Name() as name, op=ast.Add(), value=ast.List(elts=[row])):
            found = _Addition([name], row)
        case ast.Assign(
            targets=[ast.Name() as name],
            value=ast.BinOp(left=ast.Name() as before, op=ast.Add(), right=ast.List(elts=[row])),
        ):
            found = _Addition([name, before], row)
        case ast.Assign(
            targets=[ast.Name() as name],
            value=ast.BinOp(left=ast.List(elts=[row]), op=ast.Add(), right=ast.Name() as before),
        ):
            found = _Addition([name, before], row, is_first=True)
    if found is None or isinstance(found.row, ast.Starred) or len({one.id for one in found.names}) > 1:
        return None
    return found


def _last_of(node: ast.AST) -> ast.Name | None:
    """The list in `rows[-1]` that is read."""
    match node:
        case ast.Subscript(
            value=ast.Name() as name, slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)), ctx=ast.Load()
        ):
            return name
    return None


def _adds_or_reads_last(node: ast.AST) -> list[ast.Name]:
    added, last = _addition(node), _last_of(node)
    return [*(added.names if added is not None else ()), *([last] if last is not None else ())]


def _has_a_last_row(function: ast.FunctionDef, name: str) -> bool:
    """Whether it is made as a list of one row wherever it is made, and each row is added to its end by a statement."""
    if any(map(partial(_moves_rows, name), ast.walk(function))):
        return False
    made = [one for one in ast.walk(function) if name in made_by(one, is_new_list)]
    appends = [one for one in ast.walk(function) if _appended_row(one, name) is not None]
    statements = [one.value for one in ast.walk(function) if isinstance(one, ast.Expr)]
    plain = all(any(one is value for value in statements) for one in appends)
    return plain and all(isinstance(one, ast.Assign) and _only_row(one) is not None for one in made)


def _moves_rows(name: str, node: ast.AST) -> bool:
    """Whether it changes which row of the list is the last by more than adding one behind it."""
    added = _addition(node)
    if added is not None and added.is_first:
        return added.names[0].id == name
    match node:
        case ast.Attribute(value=ast.Name(id=found), attr="insert" | "reverse"):
            return found == name
    return False


def _appended_row(node: ast.AST, name: str) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr="append"), args=[row]) if found == name:
            return row
    return None


def _only_row(node: ast.Assign) -> ast.expr | None:
    match node:
        case ast.Assign(targets=[ast.Name()], value=ast.List(elts=[row])):
            return row
    return None


class _PlainLists(ast.NodeTransformer):
    """Writes `append` for what adds to one of `lists`, and a name of its own for the last row of one of `last`."""

    def __init__(self, lists: Collection[str], last: Collection[str]) -> None:
        self.lists, self.last = lists, last

    def visit_Assign(self, node: ast.Assign) -> Any:
        added = self._append(node)
        if added is not None:
            return added
        self.generic_visit(node)
        row = _only_row(node)
        if row is None or not isinstance(name := node.targets[0], ast.Name) or name.id not in self.last:
            return node
        node.value = ast.List([load(_last_row(name.id))], ast.Load())
        return _at(node, ast.Assign([ast.Name(_last_row(name.id), ast.Store())], row), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        return self._append(node) or self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[row]) if name in self.last:
                return self._appends(node, name, row)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        of = _last_of(node)
        if of is not None and of.id in self.last:
            return ast.copy_location(load(_last_row(of.id)), node)
        return self.generic_visit(node)

    def _append(self, node: ast.stmt) -> list[ast.stmt] | None:
        added = _addition(node)
        if added is None or (name := added.names[0].id) not in self.lists:
            return None
        if not added.is_first:
            return self._appends(node, name, added.row)
        row = self.visit(added.row)
        insert = ast.Call(ast.Attribute(load(name), "insert", ast.Load()), [ast.Constant(0), row], [])
        return _at(node, ast.Expr(insert))

    def _appends(self, node: ast.stmt, name: str, row: ast.expr) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        row = self.visit(row)
        if name in self.last:
            made.append(ast.Assign([ast.Name(_last_row(name), ast.Store())], row))
            row = load(_last_row(name))
        return _at(node, *made, ast.Expr(ast.Call(ast.Attribute(load(name), "append", ast.Load()), [row], [])))


def _last_row(name: str) -> str:
    return f"{SCAN_PREFIX}last_of_{name}"


def _at(node: ast.stmt, *made: ast.stmt) -> list[ast.stmt]:
    """Statements in place of one."""
    return [ast.fix_missing_locations(ast.copy_location(one, node)) for one in made]


def _as_list(made: Any) -> list[ast.stmt]:
    return made if isinstance(made, list) else [made]


class LoopsOfLists:
    """Takes such lists out of the statements of a function, where nothing else in the statement does more than
    compute: the lists are then made before it."""

    def __init__(self, purity: Purity) -> None:
        self.purity, self.count = purity, 0

    def of_block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements, with such loops before them."""
        made: list[ast.stmt] = []
        for one in statements:
            if isinstance(one, ast.Assign | ast.Return) and one.value is not None:
                lists = _Lists(self.count)
                if self.purity.of_expression(one.value):
                    one.value = lists.visit(one.value)
                self.count += len(lists.loops) // 2
                made += [ast.fix_missing_locations(ast.copy_location(loop, one)) for loop in lists.loops]
            elif not isinstance(one, OTHER_SCOPES):
                for name in ("body", "orelse", "finalbody"):
                    if isinstance(inner := getattr(one, name, None), list):
                        setattr(one, name, self.of_block(inner))
            made.append(one)
        return made


class _Lists(ast.NodeTransformer):
    """Takes lists that are stacked out of an expression. What may not be computed, or not first, stays in it."""

    def __init__(self, count: int) -> None:
        self.count, self.loops = count, list[ast.stmt]()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.IfExp, ast.BoolOp, *_SCOPES)):
            return node
        return super().generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="torch"), attr=attribute),
                args=[
                    ast.ListComp(
                        elt=row,
                        generators=[
                            ast.comprehension(
                                target=ast.Name(id=index), iter=ast.Call(func=ast.Name(id="range")) as over, ifs=[]
                            )
                        ],
                    ),
                    *_,
                ],
            ) if attribute in JOINS and not any(isinstance(one, _SCOPES) for one in ast.walk(row)):
                number = self.count + len(self.loops) // 2
                name, own = f"{SCAN_PREFIX}list_{number}", f"{SCAN_PREFIX}index_{number}"
                row = _Renamed(index, own).visit(row)
                append = ast.Call(ast.Attribute(ast.Name(name, ast.Load()), "append", ast.Load()), [row], [])
                self.loops += [
                    ast.Assign([ast.Name(name, ast.Store())], ast.List([], ast.Load())),
                    ast.For(ast.Name(own, ast.Store()), over, [ast.Expr(append)], []),
                ]
                node.args[0] = ast.Name(name, ast.Load())
                return node
        return self.generic_visit(node)


class _Renamed(ast.NodeTransformer):
    """A name by another one."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.new, node.ctx) if node.id == self.old else node
