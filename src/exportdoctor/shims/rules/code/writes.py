"""What a statement writes into: `root[0] = value`, `root += value`, `root.view(-1).mul_(2)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from exportdoctor.shims.rules.code.made_code import load
from exportdoctor.shims.rules.code.pure_callees import has_pure_name

WRITE_BACK = "_write_back"
"""The name by which rewritten code calls what writes its second argument into what the first, a function, gives."""
WITHOUT_GRADIENTS = "_without_gradients"
"""The name by which rewritten code calls `torch.no_grad`."""
ADDS = frozenset({"append", "extend", "insert"})
"""Methods that add to a list."""
VIEWS = frozenset({"diagonal", "narrow", "select", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze",
                    "view"})  # fmt: skip
"""Methods whose result shares the memory of their tensor, however it is laid out."""
_WITHOUT_TWIN = frozenset({"copy_", "fill_", "fill_diagonal_", "zero_"})
_OF_METADATA = frozenset(f"{one}_" for one in ("as_strided", "detach", "rename", "resize", "resize_as", "set", *VIEWS))


@dataclass(frozen=True)
class Write:
    """A write into the value of a name or an attribute, `root`. It `is_direct` where it stores an item of that itself,
    as in `root[0] = value`, and `rebinds` where it also binds the root, as `root += value` does."""

    root: ast.expr
    is_direct: bool = False
    rebinds: bool = False


def writes_of(node: ast.AST) -> Iterator[Write]:
    """What a statement itself writes into, as in `root[0] = value`, `root += value` and `root.view(-1).mul_(2)`."""
    written: list[ast.expr] = []
    of_items = rebinds = False
    match node:
        case ast.Assign(targets=targets):
            written = [one for target in targets for one in parts_of(target) if isinstance(one, ast.Subscript)]
            of_items = True
        case ast.AugAssign(target=target) as update if is_in_place_update(update):
            written, rebinds = [target], not isinstance(target, ast.Subscript)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=value, attr=name))) if is_in_place(name):
            written = [value]
        case ast.Call(func=ast.Name(id=name), args=[ast.Lambda(body=value), _]) if name == WRITE_BACK:
            written, of_items = [value], True
    for one in written:
        if (root := root_of(one)) is not None:
            yield Write(root, of_items and _is_root_or_item(one), rebinds)


def is_without_gradients(node: ast.AST) -> bool:
    """Whether it is a `with` in which autograd records nothing, and that does nothing else."""
    match node:
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id=name)), optional_vars=None)]):
            return name == WITHOUT_GRADIENTS
    return False


def _is_root_or_item(node: ast.expr) -> bool:
    return isinstance(node.value if isinstance(node, ast.Subscript) else node, ast.Name | ast.Attribute)


def is_in_place_update(node: ast.AugAssign) -> bool:
    """Whether `x += y` and its like write into a tensor; `x @= y` binds a new one."""
    return not isinstance(node.op, ast.MatMult)


def parts_of(target: ast.expr) -> Iterator[ast.expr]:
    """The targets in one of an assignment."""
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for one in parts:
                yield from parts_of(one)
        case ast.Starred(value=one):
            yield from parts_of(one)
        case _:
            yield target


def is_in_place(name: str) -> bool:
    """Whether a method of this name writes values into its tensor: none that draws them, or that gives it another shape
    or memory."""
    import torch

    if not name.endswith("_") or name.startswith("_") or name in _OF_METADATA:
        return False
    twin = name.removesuffix("_")
    return name in _WITHOUT_TWIN or (callable(getattr(torch.Tensor, twin, None)) and has_pure_name(twin))


def root_of(node: ast.expr) -> ast.expr | None:
    """The name, or attribute of one, of whose memory an expression is the whole, or a part; None for others."""
    match node:
        case ast.Name(id=name):
            return load(name)
        case ast.Subscript(value=value) | ast.Attribute(value=value, attr="T" | "mT"):
            return root_of(value)
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in VIEWS or is_in_place(name):
            return root_of(value)
        case ast.Attribute(value=value, attr=name):
            holder = value
            while isinstance(holder, ast.Attribute):
                holder = holder.value
            return ast.Attribute(value, name, ast.Load()) if isinstance(holder, ast.Name) else None
    return None
