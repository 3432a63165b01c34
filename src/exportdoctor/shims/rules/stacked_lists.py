"""`torch.stack([... for index in range(length)])` becomes a loop that appends to a list, and the stack of that. In
`rows = torch.stack(rows)` the list gets a name of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exportdoctor.shims.rules.name_flow import OTHER_SCOPES, OWN, names_in_other_scopes
from exportdoctor.shims.rules.name_uses import JOINS, is_empty_list, made_by, stacked_list
from exportdoctor.shims.rules.pure_code import Purity

_SCOPES = (*OTHER_SCOPES, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""What binds names of its own."""


def name_lists_apart(function: ast.FunctionDef) -> None:
    """Give each list whose name its stack takes over a name of its own, from where it is made to there.

    Both statements are of one block, which nothing between them leaves. Code with `try`, which may go on after half of
    them, stays as it is.
    """
    if any(isinstance(one, ast.Try | ast.TryStar) for one in ast.walk(function)):
        return
    inside, count = names_in_other_scopes(function), 0
    for block in _blocks(function):
        for end, one in enumerate(block):
            name = _name_of_stack(one)
            if name is None or name in inside:
                continue
            made = [nth for nth in range(end) if name in made_by(block[nth], is_empty_list)]
            if made and not any(map(_leaves, block[made[-1] : end])):
                count += 1
                _rename(block[made[-1] : end + 1], name, f"{OWN}rows_of_{name}_{count}")


def _blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse"):
            if isinstance(block := getattr(node, field, None), list):
                yield block


def _name_of_stack(statement: ast.stmt) -> str | None:
    """The name in `name = ... torch.stack(name)`, where nothing in the value binds names."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            every = list(ast.walk(value))
            stacks = any(stacked_list(one) == name for one in every)
            return name if stacks and not any(isinstance(one, (*_SCOPES, ast.NamedExpr)) for one in every) else None
    return None


def _leaves(statement: ast.stmt) -> bool:
    return any(isinstance(one, ast.Break | ast.Continue) for one in ast.walk(statement))


def _rename(statements: list[ast.stmt], name: str, own: str) -> None:
    """The name of a list, in the statement that makes it, those that use it, and the value that takes its name."""
    first, last = statements[0], statements[-1]
    made_by(first, is_empty_list)[name].id = own
    stays = {id(one) for one in ast.walk(last) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for one in (each for statement in statements[1:] for each in ast.walk(statement)):
        if isinstance(one, ast.Name) and one.id == name and id(one) not in stays:
            one.id = own


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
                name, own = f"{OWN}list_{number}", f"{OWN}index_{number}"
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
