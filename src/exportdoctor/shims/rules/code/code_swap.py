"""Gives functions other code for a while: every name they are known by and every decorator around them then sees it."""

from __future__ import annotations

import ast
import copy
import dis
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from exportdoctor.core.failure.frames import is_local_file, is_user_file
from exportdoctor.core.parse_indented import parse_indented
from exportdoctor.core.patch_attribute import patch_item
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.rules.code.lambda_source import LAMBDA, definition_of_lambda
from exportdoctor.shims.rules.code.plain_match import MatchesAsBranches
from exportdoctor.targets.held_state import attributes_of

_MOST_WRAPPED = 50
_MADE: WeakKeyDictionary[FunctionType, ast.FunctionDef] = WeakKeyDictionary()
"""The definitions of functions that no file has."""
_WRITTEN: WeakKeyDictionary[CodeType, ast.FunctionDef] = WeakKeyDictionary()
"""The definitions of code that was compiled here: a second rewrite of a function goes on from the first."""
_INSIDE: WeakSet[FunctionType] = WeakSet()
_FUNCTIONS = (FunctionType, staticmethod, classmethod, property)
ARM = "_arm"
"""Begins the name of a function, or of its `*` parameter, whose code a rewrite has moved there from around it."""


def function_of(
    code: CodeType,
    names: Mapping[str, Any],
    locals_: Mapping[str, Any],
    classes: Iterable[type[Any]],
    attached: Iterable[Any] = (),
) -> FunctionType | None:
    """The function of some code: a method of one of `classes` or of the class of its first argument, one of `attached`,
    or what its qualified name says among `names`, its globals, inside decorators. A lambda has the name by which a
    class or its file holds it.

    `None` for one that is made anew at each call.
    """
    first = locals_.get(code.co_varnames[0]) if code.co_argcount else None
    for owner in (*classes, *type(first).__mro__):
        held = vars(owner).get(_mangle(code.co_name, owner.__name__))
        if held is not None and (found := next(inside_decorators(held, lambda one: one is code), None)):
            return found
    for one in attached:
        if found := next(inside_decorators(one, lambda one: one is code), None):
            return found
    if code.co_name == LAMBDA:
        named = (one for held in (names, *map(vars, classes)) for one in held.values() if isinstance(one, _FUNCTIONS))
        return next((found for one in named for found in inside_decorators(one, lambda one: one is code)), None)
    holder: Any = names
    for name in code.co_qualname.split("."):
        held = vars(holder) if isinstance(holder, type) else attributes_of(holder)
        holder = (holder if isinstance(holder, dict) else held).get(name)
    return next(inside_decorators(holder, lambda one: one is code), None)


def function_inside(code: CodeType, names: dict[str, Any]) -> FunctionType:
    """A function of code that another function makes one of at each call; what it closes over is not known."""
    made = FunctionType(code, names, code.co_name, None, tuple(CellType() for _ in code.co_freevars))
    _INSIDE.add(made)
    return made


def function_around(call: ExportCall, function: FunctionType) -> FunctionType | None:
    """The function of the user's that makes one of this code at each call, if `function_inside` made this one; else
    the function itself. None where it is not known."""
    if function not in _INSIDE:
        return function
    return next(user_functions(call, lambda code: code is function.__code__), None)


def replace_inside(code: CodeType, old: CodeType, new: CodeType) -> CodeType:
    """The code with `new` in place of `old` among the functions that it makes, and those that these make."""

    def exchange(one: Any) -> Any:
        if not isinstance(one, CodeType):
            return one
        same = (one.co_qualname, one.co_firstlineno) == (old.co_qualname, old.co_firstlineno)
        return new if same else replace_inside(one, old, new)

    return code.replace(co_consts=tuple(map(exchange, code.co_consts)))


def inside_decorators(value: Any, wanted: Callable[[CodeType], bool]) -> Iterator[FunctionType]:
    """The functions whose code is `wanted`, of `value` and of those that it wraps, the outermost first."""
    seen, waiting = set[int](), [value]
    while waiting and len(seen) < _MOST_WRAPPED:
        one = waiting.pop(0)
        if (
            one is None
            or id(one) in seen
            or not (callable(one) or isinstance(one, staticmethod | classmethod | property))
        ):
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType) and wanted(one.__code__):
            yield one
        waiting += [getattr(one, name, None) for name in ("__wrapped__", "__func__", "fget")]
        closure = getattr(one, "__closure__", None)  # a class may have a descriptor of that name
        waiting += [cell.cell_contents for cell in closure if _is_filled(cell)] if isinstance(closure, tuple) else []


def user_functions(call: ExportCall, wanted: Callable[[CodeType], bool]) -> Iterator[FunctionType]:
    """The user's functions whose code is `wanted`: methods of the modules, their hooks, functions beside their classes,
    and what these call by name in other files."""
    classes = dict.fromkeys(kind for module in call.module.modules() for kind in type(module).__mro__)
    files = dict.fromkeys(sys.modules.get(kind.__module__) for kind in classes)

    def is_found(code: CodeType) -> bool:
        inner = (one for one in code.co_consts if isinstance(one, CodeType))
        return is_user_file(code.co_filename) and (wanted(code) or any(map(is_found, inner)))

    seen = set[FunctionType]()
    waiting = [value for holder in (*classes, *files) if holder is not None for value in vars(holder).values()]
    waiting += attached_functions(call.module)
    while waiting:
        value = waiting.pop(0)
        yield from inside_decorators(value, is_found)
        for function in inside_decorators(value, lambda code: is_user_file(code.co_filename)):
            if function not in seen:
                seen.add(function)
                waiting += _named_by(function)


def attached_functions(root: Any) -> list[Any]:
    """What the modules call that is no method of their class: hooks around forward, and functions in attributes, also
    in lists, tuples and dicts there."""
    found: list[Any] = []
    for module in root.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            found += hooks.values()
        for value in vars(module).values():
            several = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
            found += [one for one in several if isinstance(one, FunctionType | MethodType)]
    return found


def name_of(function: FunctionType) -> str:
    """Its qualified name with that of its file; a lambda's has the line, for others may have the same name."""
    line = f":{function.__code__.co_firstlineno}" if function.__code__.co_name == LAMBDA else ""
    return f"{function.__module__}.{function.__qualname__}{line}"


def _named_by(function: FunctionType) -> list[Any]:
    """The functions of other files that it names, alone or as attributes of a module, also of one that it imports
    itself or that the function around it has. An installed package is entered by its own code only."""
    names = {name for code in all_code(function.__code__) for name in code.co_names}
    given = [value for name in names if (value := function.__globals__.get(name)) is not None]
    given += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    given += _imported_inside(function)
    inside = [vars(one).get(name) for one in given if isinstance(one, ModuleType) for name in names]
    package = function.__module__.partition(".")[0]

    def is_entered(value: Any) -> bool:
        code = getattr(inspect.unwrap(value), "__code__", None) if isinstance(value, FunctionType) else None
        return code is not None and (is_local_file(code.co_filename) or value.__module__.partition(".")[0] == package)

    return [value for value in (*given, *inside) if is_entered(value)]


def _imported_inside(function: FunctionType) -> list[ModuleType]:
    """The modules that statements inside of it import, as far as they are loaded."""
    package = function.__globals__.get("__package__") or ""
    names: list[str] = []
    for code in all_code(function.__code__):
        steps = list(dis.get_instructions(code))
        for place, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":  # after a level, and the names to import
                level = steps[place - 2].argval if place > 1 else 0
                base = package.rsplit(".", level - 1)[0] if isinstance(level, int) and level else ""
                name = f"{base}.{step.argval}".strip(".")
                wanted = steps[place - 1].argval
                names += [name, *(f"{name}.{one}" for one in (wanted if isinstance(wanted, tuple) else ()))]
    found = (sys.modules.get(name) for name in dict.fromkeys(names))
    return [one for one in found if isinstance(one, ModuleType)]


def all_code(code: CodeType) -> Iterator[CodeType]:
    """It, and the code of functions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from all_code(constant)


def owners_of(call: ExportCall, function: FunctionType) -> tuple[Any, ...]:
    """The modules whose method it is."""
    owner = function.__code__.co_qualname.rpartition(".")[0]
    return tuple(
        one
        for one in call.module.modules()
        if any((kind.__module__, kind.__qualname__) == (function.__module__, owner) for kind in type(one).__mro__)
    )


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def definition_of(function: FunctionType) -> ast.FunctionDef | None:
    """Its syntax tree with the line numbers of its file, without decorators, `match` on plain values as branches; that
    of a lambda is a definition, too. `None` where there is no source."""
    known = _MADE.get(function) or _WRITTEN.get(function.__code__)
    if known is not None:
        return copy.deepcopy(known)
    if function.__code__.co_name == LAMBDA:
        return definition_of_lambda(function.__code__)
    try:
        tree = parse_indented(inspect.getsource(function.__code__))
    except (OSError, TypeError, SyntaxError):
        return None
    node = MatchesAsBranches().visit(tree).body[0] if tree.body else None
    if not isinstance(node, ast.FunctionDef) or node.name != function.__code__.co_name:  # an expression's own function
        return None
    ast.increment_lineno(node, function.__code__.co_firstlineno - 1)
    node.decorator_list = []
    return node


def name_unreadable(call: ExportCall) -> str:
    """Which methods of the modules were given to Python as text, so that there is no source to rewrite; empty for
    none."""
    found = dict.fromkeys(getattr(type(one), "forward", None) for one in call.module.modules())
    names = [one.__qualname__ for one in found if isinstance(one, FunctionType) and _is_text(one.__code__)]
    return f"there is no source to rewrite of {', '.join(names)}" if names else ""


def _is_text(code: CodeType) -> bool:
    return code.co_filename.startswith("<") and not linecache.getlines(code.co_filename)


def has_private_names(node: ast.AST) -> bool:
    """Whether it has names that Python takes for a class's own inside of that."""
    names = (getattr(one, "attr", getattr(one, "id", getattr(one, "arg", ""))) or "" for one in ast.walk(node))
    return any(name.startswith("__") and not name.endswith("__") for name in names)


def class_around(code: CodeType) -> str:
    """The name of the innermost class in which the code stands; empty where it stands in none."""
    scopes = (scope.split(".") for scope in reversed(code.co_qualname.split(".<locals>.")))
    return next((names[-2] for names in scopes if len(names) > 1), "")


def _mangle(name: str, owner: str) -> str:
    """The attribute that a name is in the class `owner`: one with two leading underscores is that class's own."""
    is_own = name.startswith("__") and not name.endswith("__") and owner.strip("_")
    return f"_{owner.lstrip('_')}{name}" if is_own else name


def rewrite_code(function: FunctionType, change: ast.NodeTransformer) -> CodeType | None:
    """The function's code with `change` applied to its tree; `None` where that changes nothing or has no source."""
    node = definition_of(function)
    if node is None:
        return None
    before = ast.dump(node)
    changed = change.visit(node)
    return None if ast.dump(changed) == before else compile_for(function, changed)


def compile_for(function: FunctionType, node: ast.FunctionDef) -> CodeType | None:
    """The code of this definition for that function; `None` where it cannot take the function's closure."""
    old, written = function.__code__, ast.fix_missing_locations(copy.deepcopy(node))
    node = copy.deepcopy(node)
    body: list[ast.stmt] = [node]
    if old.co_freevars:
        arguments = ast.arguments([], [ast.arg(name) for name in old.co_freevars], None, [], [], None, [])
        body = [ast.FunctionDef("_around", arguments, [node, ast.Return(ast.Constant(None))], [], None, None)]
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]  # the function keeps its own
    node.args.kw_defaults = [one and ast.Constant(None) for one in node.args.kw_defaults]
    owner = class_around(old) if has_private_names(node) else ""
    if owner:
        held = body[0].body if body[0] is not node else body  # type: ignore[attr-defined]
        held[0] = ast.ClassDef(owner, [], [], [node], [])
    tree = ast.fix_missing_locations(ast.Module(body, []))
    future = old.co_flags & annotations.compiler_flag
    found = _code_named(compile(tree, old.co_filename, "exec", future, dont_inherit=True), node.name, owner)
    if found is None or found.co_freevars != old.co_freevars:
        return None
    code = _with_names_of(found, old.co_qualname).replace(co_firstlineno=old.co_firstlineno)
    _WRITTEN[code] = written
    return code


def compile_alone(beside: FunctionType, node: ast.FunctionDef) -> FunctionType:
    """A new function of that definition with the globals of another one, in whose file it stands."""
    future = beside.__code__.co_flags & annotations.compiler_flag
    code = _code_named(
        compile(ast.Module([node], []), beside.__code__.co_filename, "exec", future, dont_inherit=True), node.name
    )
    assert code is not None
    made = FunctionType(code, beside.__globals__, node.name)
    _MADE[made] = node
    return made


def _with_names_of(code: CodeType, name: str) -> CodeType:
    """The code under this qualified name, and the functions inside it; a moved arm has that of the code it is of."""
    inside = f"{name}.<locals>" if code.co_flags & inspect.CO_OPTIMIZED else name
    constants = tuple(
        _with_names_of(one, name if _is_arm(one) else f"{inside}.{one.co_name}") if isinstance(one, CodeType) else one
        for one in code.co_consts
    )
    return code.replace(co_qualname=name, co_consts=constants)


def _is_arm(code: CodeType) -> bool:
    return code.co_name.startswith(f"{ARM}_") or (code.co_name == "<lambda>" and code.co_varnames[:1] == (ARM,))


def _code_named(code: CodeType, name: str, owner: str = "") -> CodeType | None:
    """The code of that name, inside a function that stands for its closure and inside the class `owner`, if any."""
    inner = {one.co_name: one for one in code.co_consts if isinstance(one, CodeType)}
    if "_around" in inner:
        return _code_named(inner["_around"], name, owner)
    return _code_named(inner[owner], name) if owner and owner in inner else inner.get(name)


@contextmanager
def swap_code(changes: Mapping[FunctionType, CodeType], names: Mapping[str, Any]) -> Iterator[None]:
    """Within it each function runs its new code, in whose global namespace `names` mean these values."""
    with ExitStack() as stack:
        for function, code in changes.items():
            for name, value in names.items():
                stack.enter_context(patch_item(function.__globals__, name, value))
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        yield
