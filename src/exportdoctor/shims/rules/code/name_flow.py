"""Which local names a piece of code binds and reads, and whether a value is read before it is bound anew."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from exportdoctor.shims.rules.code.code_swap import ARM

OTHER_SCOPES = (ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.AsyncFunctionDef)
_LATER = (*OTHER_SCOPES, ast.GeneratorExp, ast.Global, ast.Nonlocal)
SCAN_PREFIX = "_scan_"
"""How the names begin that rewritten code binds, and no other name in it may."""
_JUMPS = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Try, ast.With)
"""What may leave statements undone that follow."""
READS_ALL_NAMES = frozenset({"locals", "globals", "vars", "eval", "exec"})
"""Functions that may read names in ways that the code does not show."""
_PARTS_WITHOUT_VALUES = frozenset({"dtype", "device"})


def is_name(node: ast.expr | None, name: str) -> bool:
    """Whether an expression is this name."""
    return isinstance(node, ast.Name) and node.id == name


def stored_names(node: ast.AST) -> Iterator[ast.Name]:
    """The names in a statement that it binds: those of a comprehension are its own."""
    own = {id(one) for each in ast.walk(node) if isinstance(each, ast.comprehension) for one in ast.walk(each.target)}
    every = (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
    return (one for one in every if id(one) not in own)


def bound_names(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds."""
    return (one.id for one in stored_names(node))


def read_names(node: ast.AST) -> Iterator[str]:
    """The names whose values a piece of code reads; a tensor's dtype and device are none of them."""
    if isinstance(node, ast.Attribute) and node.attr in _PARTS_WITHOUT_VALUES and isinstance(node.value, ast.Name):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from read_names(child)


def own_names(node: ast.AST) -> Sequence[str]:
    """The names that a node has itself, and not in its parts."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return (name,)
        case ast.alias(name=name, asname=other):
            return (other or name.partition(".")[0],)
        case ast.MatchMapping(rest=str(name)) | ast.AsyncFunctionDef(name=name):
            return (name,)
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return names
    return ()


def all_names(node: ast.AST) -> Iterator[str]:
    """The names in a piece of code."""
    return (name for one in ast.walk(node) for name in own_names(one))


def names_in_other_scopes(function: ast.FunctionDef) -> set[str]:
    """The names that code may read or bind which does not run where it stands: of functions inside, and of others. An
    arm that a rewrite has made of a branch is called there at once."""
    inside = [one for one in ast.walk(function) if isinstance(one, _LATER) and one is not function and not is_arm(one)]
    return {name for one in inside for name in all_names(one)}


def is_arm(node: ast.AST) -> bool:
    """Whether it is a function that a rewrite has made, and that is called where it stands."""
    match node:
        case ast.FunctionDef(name=name) | ast.Lambda(args=ast.arguments(vararg=ast.arg(arg=name))):
            return name.startswith(ARM)
    return False


def is_read_first(name: str, statements: Sequence[ast.stmt]) -> bool:
    """Whether its value may be read before it is bound anew."""
    return _fate(name, statements) == "read"


def _fate(name: str, statements: Sequence[ast.stmt]) -> str:
    """`read`, `bound` or `` (neither), whichever may come first."""
    jumped = False  # past what follows
    for one in statements:
        inner = [getattr(one, part) for part in ("body", "orelse") if isinstance(getattr(one, part, None), list)]
        if isinstance(one, ast.If):
            if name in _all_names_read(one.test):
                return "read"
            fates = [_fate(name, block) for block in inner]
            if "read" in fates:
                return "read"
            if fates == ["bound", "bound"] and not jumped:
                return "bound"
        elif isinstance(one, ast.For):  # which may run no step
            blocks = inner[1:] if name in bound_names(one.target) else inner
            if name in _all_names_read(one.iter) or "read" in [_fate(name, block) for block in blocks]:
                return "read"
            if name in bound_names(one.target) and _runs_a_step(one.iter) and not jumped:
                return "bound"
        elif inner or isinstance(one, (*OTHER_SCOPES, ast.Try, ast.With)):
            if name in _all_names_read(one):
                return "read"
        elif name in _all_names_read(one):
            return "read"
        elif name in _targets(one) and not jumped:
            return "bound"
        jumped = jumped or any(isinstance(each, _JUMPS) for each in ast.walk(one))
    return ""


def _runs_a_step(over: ast.expr) -> bool:
    """Whether the code shows that a loop over it runs a step: a tuple or list, or a `range` of numbers."""
    match over:
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            return any(not isinstance(one, ast.Starred) for one in elts)
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int() as stop)], keywords=[]):
            return stop > 0
    return False


def _targets(node: ast.stmt) -> set[str]:
    """The names that an assignment binds, without those inside of its value."""
    match node:
        case ast.Assign(targets=targets):
            return {name for target in targets for name in bound_names(target)}
        case ast.AnnAssign(target=target, value=value) if value is not None:
            return {*bound_names(target)}
    return set()


def _all_names_read(node: ast.AST) -> set[str]:
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load | ast.Del)}
    added = (one.target for one in ast.walk(node) if isinstance(one, ast.AugAssign))
    return found | {one.id for one in added if isinstance(one, ast.Name)}
