"""`torch.stack([... for index in range(length)])` becomes a loop that appends to a list, and the stack of that."""

from __future__ import annotations

import ast

from exportdoctor.shims.rules.name_flow import OTHER_SCOPES, OWN
from exportdoctor.shims.rules.pure_code import Purity

JOINS = ("stack", "cat", "concat")
"""Functions of torch that make one tensor of a list."""
_SCOPES = (*OTHER_SCOPES, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""What binds names of its own."""


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
