"""Passes that know how a PyTorch module is written: children made in `__init__`, called in `forward`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exportdoctor.reduce.source.names import is_self
from exportdoctor.reduce.source.sweep import one_sweep
from exportdoctor.reduce.source.tree import Edit, remove_nodes


@one_sweep
def bypass_children(tree: ast.Module) -> Iterator[Edit]:
    """Replace every `self.child(x, ...)` by `x`, and drop the statement that makes the child, at once.

    `x = self.norm1(x)` and `x = x + self.norm2(x)` share a class that nothing else needs: as long as one of
    the calls stands so must `__init__`, and bypassing one call at a time asks many times about the same
    child.
    """
    for name in _called_children(tree):
        yield {**_bypass(tree, name), **_drop_child(tree, name)}
        yield _bypass(tree, name)


def _called_children(tree: ast.Module) -> tuple[str, ...]:
    names = (child for node in ast.walk(tree) if (child := _child_called(node)) is not None)
    return tuple(dict.fromkeys(names))


def _child_called(node: ast.AST) -> str | None:
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=name), args=[ast.expr(), *_]) if is_self(receiver):
            return name
    return None


def _bypass(tree: ast.Module, name: str) -> dict[ast.AST, tuple[ast.AST, ...]]:
    return {
        node: (node.args[0],) for node in ast.walk(tree) if isinstance(node, ast.Call) and _child_called(node) == name
    }


def _drop_child(tree: ast.Module, name: str) -> dict[ast.AST, tuple[ast.AST, ...]]:
    """The statements that give `self` the child, as an attribute or as a method."""
    made: dict[ast.AST, tuple[ast.AST, ...]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=receiver, attr=attribute)]) if is_self(receiver):
                made |= {node: ()} if attribute == name else {}
            case ast.ClassDef(body=body):
                made |= {part: () for part in body if isinstance(part, ast.FunctionDef) and part.name == name}
    return made


@one_sweep
def drop_methods(tree: ast.Module) -> Iterator[Edit]:
    """Drop a method, or all of a class but its `forward`; put its first base where a class is named.

    `class Block(GradientCheckpointingLayer)` whose children are all bypassed: what is left of its `__init__`
    is the call of `super().__init__()`, which removing statement by statement leaves as an empty method.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            others = [part for part in node.body if getattr(part, "name", None) != "forward"]
            yield remove_nodes(*others)
            yield from (remove_nodes(part) for part in others if isinstance(part, ast.FunctionDef))
            if node.bases:
                named = [use for use in ast.walk(tree) if isinstance(use, ast.Name) and use.id == node.name]
                yield {**remove_nodes(node), **dict.fromkeys(named, (node.bases[0],))}


@one_sweep
def adopt_bases(tree: ast.Module) -> Iterator[Edit]:
    """Let a class inherit from `torch.nn.Module`, not from an imported one, with a bare `super().__init__()`.

    `class Tower(PreTrainedModel)` with `super().__init__(config)` keeps a library and a configuration in a
    repro of which all the rest is torch; neither the base nor the argument can be changed alone.
    """
    module = _module_class(tree)
    for node in ast.walk(tree):
        if module is not None and isinstance(node, ast.ClassDef):
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in _imported_names(tree):
                    yield {base: (module,), **_bare_super_calls(node), **_drop_import(tree, base)}


@one_sweep
def borrow_state(tree: ast.Module) -> Iterator[Edit]:
    """Inherit from one of torch's modules that has a parameter or a buffer already, where `__init__` makes but one.

    `self.weight = torch.nn.Parameter(torch.ones(2))` is the only state of a module of which the forward is one line:
    as a `torch.nn.LayerNorm(2)` it needs no `__init__` at all.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["torch.nn.Module"]:
            for method in node.body:
                match method:
                    case ast.FunctionDef(name="__init__", body=[ast.Expr(), ast.stmt() as made]):
                        yield from _borrow(tree, node, method, _lender(made))


_Lender = tuple[str, str, str, tuple[int, ...]] | None


def _lender(made: ast.stmt) -> _Lender:
    """The name that `made` assigns, and class, attribute and constructor's arguments of torch's module with one."""
    match made:
        case ast.Assign(
            targets=[ast.Attribute(value=receiver, attr=name)],
            value=ast.Call(func=ast.Attribute(attr="Parameter"), args=[ast.Call(args=sizes)]),
        ) if is_self(receiver):
            shape = _integers(sizes)
            if len(shape) == len(sizes) == 1:
                return name, "torch.nn.LayerNorm", "weight", shape
            return (name, "torch.nn.Linear", "weight", shape[::-1]) if len(shape) == len(sizes) == 2 else None
        case ast.Expr(ast.Call(func=ast.Attribute(value=receiver, attr="register_buffer"), args=[name_of, value])):
            if is_self(receiver) and isinstance(name_of, ast.Constant):
                shape = _integers(value.args) if isinstance(value, ast.Call) else ()
                return str(name_of.value), "torch.nn.BatchNorm1d", "running_mean", shape[:1] or (1,)
    return None


def _integers(sizes: list[ast.expr]) -> tuple[int, ...]:
    return tuple(one.value for one in sizes if isinstance(one, ast.Constant) and type(one.value) is int)


def _borrow(tree: ast.Module, owner: ast.ClassDef, made_in: ast.stmt, lender: _Lender) -> Iterator[Edit]:
    if lender is None:
        return
    name, base, there, given = lender
    edit: dict[ast.AST, tuple[ast.AST, ...]] = {made_in: (), owner.bases[0]: (ast.parse(base, mode="eval").body,)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called), args=[]) if called == owner.name:
                edit[node] = (ast.Call(node.func, [ast.Constant(size) for size in given], []),)
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute) and is_self(node.value) and node.attr == name:
            edit[node] = (ast.Attribute(node.value, there, node.ctx),)
    yield edit


def _module_class(tree: ast.Module) -> ast.expr | None:
    """The class by the name that the file has for it, if it imports torch at all."""
    names = _imported_names(tree)
    for name, expression in (("torch", "torch.nn.Module"), ("nn", "nn.Module")):
        if name in names:
            return ast.parse(expression, mode="eval").body
    return None


def _imported_names(tree: ast.Module) -> frozenset[str]:
    return frozenset(node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias))


def _bare_super_calls(owner: ast.ClassDef) -> Edit:
    return {
        argument: ()
        for node in ast.walk(owner)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "super().__init__"
        for argument in (*node.args, *node.keywords)
    }


def _drop_import(tree: ast.Module, name: ast.Name) -> Edit:
    """Without the import of a name that is used nowhere else."""
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name.id]
    if len(uses) > 1:
        return {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            unused = [alias for alias in node.names if (alias.asname or alias.name) == name.id]
            if unused:
                return remove_nodes(*unused) if len(node.names) > len(unused) else remove_nodes(node)
    return {}
