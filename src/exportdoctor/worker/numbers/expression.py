"""The part of a source line that an operator stands for."""

from __future__ import annotations

import ast
import linecache

_SIGNS: dict[str, type[ast.AST]] = {
    "add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "div": ast.Div, "matmul": ast.MatMult, "mm": ast.MatMult,
    "bmm": ast.MatMult, "pow": ast.Pow, "floordivide": ast.FloorDiv, "remainder": ast.Mod, "mod": ast.Mod,
    "eq": ast.Eq, "ne": ast.NotEq, "lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE, "less": ast.Lt,
    "greater": ast.Gt, "neg": ast.USub, "and": ast.BitAnd, "or": ast.BitOr,
}  # fmt: skip


def expression_of(file: str, line: int, op: str) -> str:
    """The only expression on this line that calls this operator, or the statement; empty where there is no source."""
    statement = _statement(file, line)
    if statement is None:
        return ""
    name = op.removeprefix("aten.").partition(".")[0].strip("_").lower().replace("_", "")
    found = [node for node in ast.walk(statement) if _asks_for(node, name)]
    return " ".join(ast.unparse(found[0] if len(found) == 1 else statement).split())[:400]


def _asks_for(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)):
            return called.strip("_").lower().replace("_", "") == name
        case ast.BinOp(op=sign) | ast.UnaryOp(op=sign) | ast.AugAssign(op=sign):
            return isinstance(sign, _SIGNS.get(name, ast.Slice))
        case ast.Compare(ops=[sign]):
            return isinstance(sign, _SIGNS.get(name, ast.Slice))
    return False


def _statement(file: str, line: int) -> ast.stmt | None:
    """The innermost statement that this line is in, without the bodies of others."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
    within = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(within, key=lambda node: node.lineno, default=None)
