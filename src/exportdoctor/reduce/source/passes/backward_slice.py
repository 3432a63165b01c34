"""Cuts a script to what its failure needs, by data flow: one candidate that saves the reducer most of the others.

The analysis is rough: whether the cut script still fails is for the verdict to say.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from exportdoctor.reduce.source.names import is_self

EMPTY: Mapping[int, str] = MappingProxyType({})


def slice_backward(
    source: str, lines: AbstractSet[int], calls: Mapping[int, str] = EMPTY, called: Mapping[int, str] = EMPTY
) -> str:
    """`source` with, in each function on the failing stack, only the failing statement and what it depends on.

    `lines` are those of the stack's frames in this very source; functions and classes that nothing names any more are
    dropped. A statement on a line of `calls` becomes the call of that text in it, which leads to the failure. Where
    `called` has the name of a function of the file that ran next, the call names it, whatever it was called by.
    """
    tree = ast.parse(source)
    if lines:
        _CallsAlone(calls).visit(tree)
        _NamedCalls(tree, calls, called).visit(tree)
        if calls:
            _drop_idle_branches(tree, lines)
        for node in ast.walk(tree):
            own = _own_lines(node, lines) if isinstance(node, ast.FunctionDef) else set()
            if isinstance(node, ast.FunctionDef) and own:
                node.body = _keep_needed(node.body, own, set(), taken=bool(calls))
                _drop_unread_parameters(node, tree)
    return ast.unparse(ast.fix_missing_locations(_without_unused(tree)))


class _CallsAlone(ast.NodeTransformer):
    """Nothing runs behind the call, so that what is made of its result can go."""

    def __init__(self, calls: Mapping[int, str]) -> None:
        self.calls = {line: _normal_text(text) for line, text in calls.items()}

    def generic_visit(self, node: ast.AST) -> ast.AST:
        text = self.calls.get(getattr(node, "lineno", 0))
        if text is not None and isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
            found = next((one for one in _outside_scopes(node) if ast.unparse(one) == text), None)
            if isinstance(found, ast.Call):
                return ast.copy_location(ast.Expr(found), node)
        return super().generic_visit(node)


class _NamedCalls(ast.NodeTransformer):
    """The table of functions that a call looked into is not needed then, nor the dict that it hands on by `**`."""

    def __init__(self, tree: ast.Module, calls: Mapping[int, str], called: Mapping[int, str]) -> None:
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.called = {line: (_normal_text(calls[line]), name) for line, name in called.items() if name in defined}
        self.dicts: dict[str, ast.Dict] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        for part in ast.walk(node):
            match part:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as value):
                    self.dicts[name] = value
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        text, name = self.called.get(node.lineno, ("", ""))
        if not text or ast.unparse(node) != text:
            return node
        keywords = [one for keyword in node.keywords for one in self._spread(keyword)]
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), node.args, keywords), node)

    def _spread(self, keyword: ast.keyword) -> list[ast.keyword]:
        known = self.dicts.get(getattr(keyword.value, "id", "")) if keyword.arg is None else None
        names = [getattr(key, "value", None) for key in known.keys] if known is not None else [None]
        if known is None or not all(isinstance(name, str) for name in names):
            return [keyword]
        return [ast.keyword(name, value) for name, value in zip(names, known.values, strict=True)]


def _drop_idle_branches(tree: ast.Module, lines: AbstractSet[int]) -> None:
    """Drop each `if` that leads nowhere, away from the stack: what its test reads may be needed for nothing else."""
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        names = Counter(node.id for node in ast.walk(function) if isinstance(node, ast.Name))
        for node in ast.walk(function):
            body = getattr(node, "body", None)
            if isinstance(node, ast.stmt) and isinstance(body, list):
                kept = [one for one in body if not _leads_nowhere(one, names) or _holds([one], lines)]
                node.body = kept or [ast.copy_location(ast.Pass(), node)]  # type: ignore[attr-defined]


def _leads_nowhere(statement: ast.stmt, names: Counter[str]) -> bool:
    """An `if` without a statement that does something, and without a name that it sets for another."""
    match statement:
        case ast.If(test=test, body=body, orelse=orelse) if all(isinstance(one, ast.Pass) for one in body + orelse):
            named = [one.target.id for one in ast.walk(test) if isinstance(one, ast.NamedExpr)]
            return all(names[name] == 1 for name in named)
    return False


def _normal_text(expression: str) -> str:
    """The text as the syntax tree is printed; unchanged where it is none."""
    try:
        return ast.unparse(ast.parse(expression, mode="eval"))
    except SyntaxError:
        return expression


def _outside_scopes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside that see the names of the function, outermost first."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            yield child
            yield from _outside_scopes(child)


def _drop_unread_parameters(function: ast.FunctionDef, tree: ast.Module) -> None:
    """Drop the parameters that a cut function no longer reads where each call names them, so that callers are cut too.

    What computed them goes with the next cut.
    """
    if function.name in ("forward", "__init__"):
        return
    read = {name for statement in function.body for name in _reads(statement)}
    calls = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (function.name, f"self.{function.name}")
    ]  # fmt: skip
    named = {keyword.arg for call in calls for keyword in call.keywords}
    given = max((len(call.args) for call in calls), default=0) + 1
    optional = function.args.defaults
    required = len(function.args.args) - len(optional)
    kept = [
        (one, optional[place - required] if place >= required else None)
        for place, one in enumerate(function.args.args)
        if place < given or one.arg in read or (one.arg not in named and place < required)
    ]
    dropped = {one.arg for one in function.args.args} - {one.arg for one, _ in kept}
    rest = function.args.kwarg
    if calls and rest is not None and rest.arg not in read and None not in named:
        function.args.kwarg = None
        taken = {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}
        dropped |= {name for name in named if name} - taken
    function.args.args = [one for one, _ in kept]
    function.args.defaults = [default for _, default in kept if default is not None]
    for call in calls:
        call.keywords = [keyword for keyword in call.keywords if keyword.arg not in dropped]


def _own_lines(function: ast.FunctionDef, lines: AbstractSet[int]) -> set[int]:
    """Those of the function's statements, without the functions that it defines: it may have returned them before."""
    inner = [one for part in function.body for one in ast.walk(part) if isinstance(one, ast.FunctionDef)]
    return {line for line in lines if _holds(function.body, {line}) and not _holds(inner, {line})}


def _holds(body: Iterable[ast.stmt], lines: AbstractSet[int]) -> bool:
    return any(one.lineno <= line <= (one.end_lineno or one.lineno) for one in body for line in lines)


def _keep_needed(body: list[ast.stmt], lines: AbstractSet[int], wanted: set[str], *, taken: bool) -> list[ast.stmt]:
    """The statements up to the failing one that it or a kept one needs; `wanted` grows by the names they read.

    With `taken` a branch that was taken stands in place of its `if`.
    """
    place = next((i for i, one in enumerate(body) if _holds([one], lines)), len(body) - 1)
    kept = _narrow(body[place], lines, wanted, taken=taken)
    for statement in reversed(body[:place]):
        if _writes(statement) & wanted:
            wanted |= _reads(statement)
            kept.insert(0, statement)
    return kept


def _narrow(statement: ast.stmt, lines: AbstractSet[int], wanted: set[str], *, taken: bool) -> list[ast.stmt]:
    """A block that holds the failing statement, cut inside; its head keeps what it reads."""
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(statement, name, None)
        if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt) and _holds(inner, lines):
            cut = _keep_needed(inner, lines, wanted, taken=taken)
            if taken and isinstance(statement, ast.If) and not _names_values(statement.test):
                return cut
            setattr(statement, name, cut)
    wanted |= _reads(statement)
    return [statement]


def _names_values(test: ast.expr) -> bool:
    return any(isinstance(one, ast.NamedExpr) for one in ast.walk(test))


def _reads(statement: ast.AST) -> set[str]:
    """NameUse and attributes of `self` that a statement reads."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} - {"self"} | {
        f".{node.attr}" for node in ast.walk(statement) if isinstance(node, ast.Attribute) and is_self(node.value)
    }


def _writes(statement: ast.AST) -> set[str]:
    """NameUse and attributes of `self` that it may change, by assignment or by a method call on them."""
    found: set[str] = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()) if is_self(value):
                found.add(f".{name}")
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()):
                found.add(name)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
                found.add(name)
    return found


def _without_unused(tree: ast.Module) -> ast.Module:
    """Without top-level definitions that no decorator registers, assignments and attributes that nothing names."""
    while True:
        before = ast.unparse(tree)
        attributes = {
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        } | {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        for owner in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
            for method in [
                part for part in owner.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"
            ]:
                method.body = [one for one in method.body if _is_set_for(one, attributes)] or [ast.Pass()]
        _drop_uncalled_methods(tree)
        tree.body = [one for one in tree.body if _is_used(one, tree)]
        if ast.unparse(tree) == before:
            return tree


def _drop_uncalled_methods(tree: ast.Module) -> None:
    """Drop methods, all of one name at once, that nothing but methods of that name mentions."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    methods = [part for owner in classes for part in owner.body if isinstance(part, ast.FunctionDef)]
    everything = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Constant)]
    for name in {one.name for one in methods} - {"forward"}:
        if name.startswith("__"):
            continue
        own = {node for method in methods if method.name == name for node in ast.walk(method)}
        others = (node for node in everything if node not in own)
        if not any(getattr(node, "attr", getattr(node, "value", None)) == name for node in others):
            for owner in classes:
                owner.body = [part for part in owner.body if getattr(part, "name", None) != name] or [ast.Pass()]


def _is_set_for(statement: ast.stmt, attributes: set[str]) -> bool:
    """Whether a statement of `__init__` does more than to set an attribute that nothing reads."""
    asked_for = "parameters" in attributes and "torch.nn.Parameter(" in ast.unparse(statement)
    return asked_for or _set_attribute(statement) in (None, *attributes)


def _set_attribute(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=value, attr=name)]) if is_self(value):
            return name
    return None


def _registers(decorator: ast.expr) -> bool:
    """Whether a decorator may make its function known elsewhere; a cache of functools does not."""
    return not ast.unparse(decorator).startswith("functools.")


def _is_used(statement: ast.stmt, tree: ast.Module) -> bool:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if not any(map(_registers, statement.decorator_list)):
            names = {name}
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            names = {name}
        case ast.Import(names=[ast.alias(name=name, asname=None)]):
            names = {name.partition(".")[0]}
        case _:
            return True
    others = [one for one in tree.body if one is not statement]
    read = {node.id for one in others for node in ast.walk(one) if isinstance(node, ast.Name)}
    return bool(names & read)
