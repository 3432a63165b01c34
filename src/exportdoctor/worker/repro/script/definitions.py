"""Carries functions and classes of the user's into the script by their source, cut to what ran."""

from __future__ import annotations

import ast
import enum
import gc
import inspect
import types
from collections.abc import Mapping
from typing import Any

import torch

from exportdoctor.worker.repro.script.global_names import NameResolver, is_importable
from exportdoctor.worker.repro.script.prune import CodeSelection
from exportdoctor.worker.repro.script.script_text import ScriptText
from exportdoctor.worker.repro.script.source_lookup import class_source, definition_at, scope_of, tree_of

_MOST = 150


class DefinitionWriter:
    """Writes definitions, each after those it refers to. `names` has the code of the globals they mention."""

    def __init__(self, text: ScriptText, selection: CodeSelection) -> None:
        self.names = NameResolver(text, self)
        self._text = text
        self._selection = selection
        self._statements: set[str] = set()

    def carry_function(self, function: types.FunctionType) -> str:
        """A user's function; returns its name in the script. Raises LookupError where it has no source."""
        function = inspect.unwrap(function)
        if not isinstance(function, types.FunctionType):
            raise LookupError(f"{function!r} is not written in Python")
        code = function.__code__
        key = ("function", code.co_filename, code.co_firstlineno, code.co_name)
        known = self._text.name_of(key)
        if known is not None:
            return known
        node, space = definition_at(code.co_filename, code.co_firstlineno, code.co_name), scope_of(function)
        if node is None:
            return self._carry_lambda(code, key, space)
        name = self._text.free_name(code.co_name, key)
        if _registers_operator(node):
            self._define(name, node, space, rename={node.name: name})
            self._carry_registrations(node.name, space, code.co_filename)
        else:
            self._define(name, self._selection.prune(node, code.co_filename, name), space, rename={node.name: name})
        return name

    def _carry_lambda(self, code: types.CodeType, key: Any, space: Mapping[str, Any]) -> str:
        for node in ast.walk(tree_of(code.co_filename)):
            if not isinstance(node, ast.Lambda) or node.lineno != code.co_firstlineno:
                continue
            if [a.arg for a in node.args.args] == list(code.co_varnames[: code.co_argcount]):
                name = self._text.free_name("function", key)
                target: list[ast.expr] = [ast.Name(name, ast.Store())]
                self._define(name, ast.Assign(target, node, lineno=1), space)
                return name
        raise LookupError(f"{code.co_name} has no source ({code.co_filename})")

    def carry_class(self, kind: type) -> str:
        """A user's class with the methods that ran; returns its name. Raises LookupError where it has no source."""
        key = ("class", kind)
        known = self._text.name_of(key)
        if known is not None:
            return known
        node, path, space = class_source(kind)
        if node is None:
            return self._carry_named_tuple(kind, key)
        name = self._text.free_name(kind.__name__, key)
        body = self._class_body(
            node, path, keep_all=issubclass(kind, enum.Enum), is_module=issubclass(kind, torch.nn.Module)
        )
        body += _abstract_stubs(kind, body)
        new = ast.ClassDef(name, node.bases, node.keywords, body or [ast.Pass()], self._selection.decorators_of(node))
        self._define(name, new, space, rename={node.name: name})
        self._carry_registrations(node.name, space, path)
        return name

    def _carry_named_tuple(self, kind: type, key: Any) -> str:
        if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            raise LookupError(f"class {kind.__qualname__} has no source")
        self._text.import_module("collections")
        name = self._text.free_name(kind.__name__, key)
        self._text.define(name, f"{name} = collections.namedtuple({kind.__name__!r}, {list(kind._fields)!r})")
        return name

    def _class_body(self, node: ast.ClassDef, path: str, *, keep_all: bool, is_module: bool) -> list[ast.stmt]:
        """The methods that ran, the constructor with them, and the fields, those of a dataclass without their types."""
        data = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        made = not is_module and any(  # before anybody watched, by a statement of its file
            isinstance(part, ast.FunctionDef) and self._selection.has(path, part) for part in node.body
        )
        body: list[ast.stmt] = []
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                if keep_all or (made and part.name == "__init__") or self._selection.has(path, part):
                    body.append(self._selection.prune(part, path, part.name))
            elif isinstance(part, ast.AnnAssign) and data:
                body.append(ast.AnnAssign(part.target, ast.Name("object", ast.Load()), part.value, 1))
            elif isinstance(part, ast.Assign | ast.AnnAssign | ast.ClassDef):
                body.append(part)
        return body

    def carry_object_class(self, kind: type) -> str:
        """A user's class whose constructor takes the attributes of an object; returns its name. Raises LookupError."""
        node, path, space = class_source(kind)
        if node is None:
            raise LookupError(f"{kind.__qualname__} object")
        key = ("object", kind)
        known = self._text.name_of(key)
        if known is not None:
            return known
        name = self._text.free_name(kind.__name__, key)
        init = ast.parse("def __init__(self, **state):\n    self.__dict__.update(state)").body[0]
        methods = [
            self._selection.prune(part, path, part.name) for part in node.body
            if isinstance(part, ast.FunctionDef) and part.name != "__init__" and self._selection.has(path, part)
        ]  # fmt: skip
        bases = [code for code, base in zip(node.bases, kind.__bases__) if any(map(self._has_run, base.__mro__))]
        self._define(name, ast.ClassDef(name, bases, [], [init, *methods], []), space, rename={node.name: name})
        self._carry_registrations(node.name, space, path)
        return name

    def _has_run(self, kind: type) -> bool:
        """Whether any method of a class did."""
        node, path, _ = class_source(kind)
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef)] if node is not None else []
        return any(self._selection.has(path, part) for part in methods if part.name != "__init__")

    def carry_statement(self, name: str, statement: ast.stmt, space: Mapping[str, Any], path: str) -> str:
        """A top-level assignment or decorated function, as it stands; returns its name in the script."""
        key = (path, statement.lineno)
        if self._text.is_taken_for(name, key):
            return name
        new = self._text.free_name(name, key)
        if new not in self._statements:
            self._statements.add(new)
            self._define(new, statement, space, rename={name: new})
            self._carry_registrations(name, space, path)
        return new

    def _carry_registrations(self, name: str, space: Mapping[str, Any], path: str) -> None:
        """Statements at the same file's top level that register something for `name`, such as a fake kernel."""
        for statement in tree_of(path).body:
            called = [statement.value] if isinstance(statement, ast.Expr) else getattr(statement, "decorator_list", [])
            own = getattr(statement, "name", "")
            if isinstance(statement, ast.ClassDef) or own == name:
                continue
            if any(isinstance(node, ast.Name) and node.id == name for call in called for node in ast.walk(call)):
                key = (path, statement.lineno)
                if self._text.name_of(key) is None:
                    self._define(self._text.free_name(own or f"_{name}", key), statement, space)

    def _define(
        self, name: str, node: ast.stmt, space: Mapping[str, Any], *, rename: Mapping[str, str] | None = None
    ) -> None:
        """Write a definition, after what it refers to. Raises OverflowError where that is too much."""
        if self._text.size >= _MOST:
            raise OverflowError(f"it refers to more than {_MOST} definitions")
        new = self.names.rename_globals(node, space, rename=rename or {})
        self._text.define(name, ast.unparse(ast.fix_missing_locations(new)))
        self._carry_subclasses(node, space)

    def _carry_subclasses(self, node: ast.stmt, space: Mapping[str, Any]) -> None:
        """The classes in use that the code finds by `Base.__subclasses__()`, and does not name."""
        for part in ast.walk(node):
            match part:
                case ast.Attribute(value=ast.Name(id=name), attr="__subclasses__"):
                    for kind in _subclasses_in_use(space.get(name)):
                        self.carry_class(kind)


def _subclasses_in_use(base: Any) -> list[type]:
    """The subclasses of a user's class, at any depth, of which there are objects; all where there are none of any."""
    if not isinstance(base, type) or is_importable(base.__module__):
        return []
    found: list[type] = list(type.__subclasses__(base))
    for kind in found:  # it grows
        found += type.__subclasses__(kind)
    used = {type(one) for one in gc.get_objects()}
    return [kind for kind in found if kind in used] or found


def _abstract_stubs(kind: type, body: list[ast.stmt]) -> list[ast.stmt]:
    """Methods that do nothing, in place of those with which `kind` overrides abstract ones and that did not run."""
    there = {part.name for part in body if isinstance(part, ast.FunctionDef)}
    abstract = {name for parent in kind.__mro__ for name in getattr(parent, "__abstractmethods__", ())}
    wanted = abstract & vars(kind).keys() - getattr(kind, "__abstractmethods__", frozenset()) - there
    return [ast.parse(f"def {name}(self, *args): pass").body[0] for name in sorted(wanted)]


def _registers_operator(node: Any) -> bool:
    """Whether it is a custom operator: its schema is read from its annotations, so it stays as it is."""
    return any("library" in ast.unparse(one) or "custom_op" in ast.unparse(one) for one in node.decorator_list)
