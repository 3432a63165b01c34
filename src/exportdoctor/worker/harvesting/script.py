"""Writes one self-contained script: definitions harvested from their source, instances built from what they hold.

Law: nothing of the user's packages is imported unless it has no source that can be carried; that is then noted.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import importlib
import inspect
import logging
import os
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exportdoctor.worker.describing.describe import state_id
from exportdoctor.worker.describing.frames import is_user_file
from exportdoctor.worker.harvesting.prune import (
    Definition,
    Pruned,
    Returned,
    definition_at,
    first_line,
    top_level,
    tree_of,
)
from exportdoctor.worker.harvesting.record import Record
from exportdoctor.worker.harvesting.values import expression, plain_code, tensor_code, torch_module_code, torch_name

_DEPTH = 6
_MOST = 150
_KEPT_DECORATORS = ("staticmethod", "classmethod", "property", "torch", "functools", "contextlib", "dataclass")


@dataclass
class Script:
    """A script under construction. `mentioned` are the attribute names that the code reads, None for "all".

    `stands` maps the id of a module to the code of what it returns, for those that are not to run themselves.
    """

    names: Mapping[int, str]
    record: Record | None
    substitute: bool
    decorators: bool
    notes: list[str] = field(default_factory=list)
    mentioned: set[str] | None = None
    stands: dict[int, str] = field(default_factory=dict)
    _imports: dict[str, None] = field(default_factory=dict)
    _folders: dict[str, None] = field(default_factory=dict)
    _text: dict[str, str] = field(default_factory=dict)
    _taken: dict[str, Any] = field(default_factory=dict)
    _classes: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)

    def text(self, ending: list[str]) -> str:
        """The whole script."""
        imports = [f"import {name}" for name in sorted(dict.fromkeys(self._imports)) if " " not in name]
        if "import torch" not in imports:
            imports.append("import torch")
        imports += [f"sys.path.insert(0, {folder!r})" for folder in self._folders]
        imports += sorted(name for name in self._imports if " " in name)
        return "\n".join([*imports, *self._text.values(), *ending]) + "\n"

    # --- names

    def _name(self, wanted: str, key: Any) -> str:
        """A free name for what `key` identifies."""
        number, name = 1, wanted
        while name in self._taken and self._taken[name] != key:
            number += 1
            name = f"{wanted}_{number}"
        self._taken[name] = key
        return name

    def _module(self, module: types.ModuleType) -> str:
        self._imports[module.__name__.partition(".")[0] if module.__name__.startswith("torch") else module.__name__] = (
            None
        )
        return module.__name__

    def resolve(self, name: str, space: Mapping[str, Any]) -> str | None:
        """What to write for the global `name` of a module with the globals `space`; None for a builtin."""
        if name not in space:
            return None if hasattr(builtins, name) else name
        value = space[name]
        if isinstance(value, types.ModuleType):
            return self._module(value)
        code = self._known(value)
        if code is not None:
            return code
        return self._from_source(name, space) or self._imported(name, space)

    def _known(self, value: Any) -> str | None:
        """The code of a value that can be told without its source."""
        code = plain_code(value)
        if code is not None:
            return code
        if isinstance(value, logging.Logger):
            self._imports["logging"] = None
            return "logging.getLogger()"
        if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return f"torch.ops.{value}".replace("::", ".")
        module = getattr(value, "__module__", None)
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | functools._lru_cache_wrapper):
            if isinstance(module, str) and self._is_foreign(module, value):
                return self._foreign(value, module)
            name = str(getattr(value, "__name__", ""))
            if module is None and getattr(torch, name, None) is value:
                return f"torch.{name}"
            if isinstance(value, type):
                return self.raw_class(value)
            if isinstance(value, types.FunctionType):
                return self.function(value)
        name = str(getattr(value, "__name__", ""))
        return f"torch.{name}" if callable(value) and getattr(torch, name, None) is value else None
        return None

    @staticmethod
    def _is_foreign(module: str, value: Any) -> bool:
        """Whether it is torch's, Python's or a library's of the tracer: importable anywhere torch is."""
        top = module.partition(".")[0]
        if top in ("torch", "functorch", "builtins", "numpy", "sympy", "math", "typing", "collections"):
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        return (file is not None and not is_user_file(file)) or module in sys.stdlib_module_names

    def _foreign(self, value: Any, module: str) -> str:
        if module == "builtins":
            return str(value.__qualname__)
        if module.partition(".")[0] in ("torch", "functorch"):
            return torch_name(value)
        self._imports[module] = None
        return f"{module}.{value.__qualname__}"

    def _imported(self, name: str, space: Mapping[str, Any], *, why: str = "") -> str:
        """The last resort: import it from where the user's code has it; where that is not installed, by its folder."""
        module, file = str(space.get("__name__", "")), str(space.get("__file__") or "")
        if os.path.isfile(file) and not {"site-packages", "dist-packages"} & set(Path(file).parts):
            place = Path(file).parent if Path(file).name == "__init__.py" else Path(file)
            module = ".".join((*module.split(".")[:-1], place.stem))
            self._folders[str(place.parents[module.count(".")])] = None
            self._imports["sys"] = None
        self._imports[f"from {module} import {name}"] = None
        self._taken[name] = (module, name)
        reason = f" ({why})" if why else ""
        self.notes.append(f"{name} has no source that a script can carry{reason}, so it is imported from {module}")
        return name

    # --- definitions

    def _from_source(self, name: str, space: Mapping[str, Any]) -> str | None:
        """Carry the statement that binds `name` at its module's top level."""
        path = space.get("__file__")
        statement = top_level(path, name) if isinstance(path, str) else None
        match statement:
            case ast.ImportFrom():
                origin = self._origin(statement, space)
                alias = next(alias for alias in statement.names if (alias.asname or alias.name) == name)
                if origin is None or not isinstance(getattr(origin, "__file__", None), str):
                    return None
                return self.resolve(alias.name, vars(origin)) if is_user_file(str(origin.__file__)) else None
            case ast.Assign() | ast.AnnAssign() | ast.FunctionDef():
                return self._statement(name, statement, space, str(path))
        return None

    @staticmethod
    def _origin(statement: ast.ImportFrom, space: Mapping[str, Any]) -> types.ModuleType | None:
        name = "." * statement.level + (statement.module or "")
        try:
            return importlib.import_module(name, space.get("__package__") or space.get("__name__"))
        except ImportError:
            return None

    def _statement(self, name: str, statement: ast.stmt, space: Mapping[str, Any], path: str) -> str:
        """A top-level assignment or decorated function, as it stands."""
        key = (path, statement.lineno)
        for known, taken in self._taken.items():
            if taken == key and known == name:
                return known
        name_here = self._name(name, key)
        if name_here in self._open:
            return name_here
        self._open.add(name_here)
        self._define(name_here, statement, space, rename={name: name_here})
        self._registrations(name, space, path)
        return name_here

    def _registrations(self, name: str, space: Mapping[str, Any], path: str) -> None:
        """Statements at the same file's top level that register something for `name`, such as a fake kernel."""
        for statement in tree_of(path).body:
            called = [statement.value] if isinstance(statement, ast.Expr) else getattr(statement, "decorator_list", [])
            if isinstance(statement, ast.ClassDef) or getattr(statement, "name", "") == name:
                continue
            if any(isinstance(node, ast.Name) and node.id == name for call in called for node in ast.walk(call)):
                key = (path, statement.lineno)
                if key not in self._taken.values():
                    self._define(self._name(getattr(statement, "name", f"_{name}"), key), statement, space, rename={})

    def _define(self, name: str, node: ast.stmt, space: Mapping[str, Any], *, rename: dict[str, str]) -> None:
        """Write a definition, after what it refers to."""
        if len(self._text) >= _MOST:
            raise OverflowError(f"it refers to more than {_MOST} definitions")
        resolved = _Renamed(self, space, rename).over(node)
        self._text[name] = ast.unparse(ast.fix_missing_locations(resolved))

    def function(self, function: types.FunctionType) -> str:
        """A user's function by its source. Falls back to an import."""
        code = inspect.unwrap(function).__code__
        key = ("function", code.co_filename, code.co_firstlineno, code.co_name)
        for known, taken in self._taken.items():
            if taken == key:
                return known
        node = definition_at(code.co_filename, code.co_firstlineno, code.co_name)
        space = scope_of(inspect.unwrap(function))
        if node is None:
            return self._without_definition(function, code, key, space)
        name = self._name(code.co_name, key)
        if self._wants_decorators(node):
            self._define(name, node, space, rename={node.name: name})
            self._registrations(node.name, space, code.co_filename)
            return name
        self._define(name, self._pruned(node, code.co_filename, name), space, rename={node.name: name})
        return name

    def _without_definition(self, function: Any, code: types.CodeType, key: Any, space: Mapping[str, Any]) -> str:
        """A lambda, or code made by exec."""
        for node in ast.walk(tree_of(code.co_filename)):
            if not isinstance(node, ast.Lambda) or node.lineno != code.co_firstlineno:
                continue
            if [a.arg for a in node.args.args] == list(code.co_varnames[: code.co_argcount]):
                name = self._name("function", key)
                target: list[ast.expr] = [ast.Name(name, ast.Store())]
                self._define(name, ast.Assign(target, node, lineno=1), space, rename={})
                return name
        raise LookupError(f"{code.co_name} has no source ({code.co_filename})")

    def _wants_decorators(self, node: Any) -> bool:
        """A custom operator's schema is read from its annotations, so such a function stays as it is."""
        return any("library" in ast.unparse(one) or "custom_op" in ast.unparse(one) for one in node.decorator_list)

    def _pruned(self, node: Any, path: str, name: str) -> Any:
        """A function's definition without what did not run."""
        record = self.record
        if record is not None and (path, first_line(node)) not in record.codes:
            record = None
        pruned = Pruned(path, record, substitute=self.substitute)
        new = pruned._with_bodies(node)
        new.name = name
        new.decorator_list = [d for d in node.decorator_list if self.decorators or _is_kept(d)]
        return new

    # --- classes

    def raw_class(self, kind: type) -> str:
        """A user's class as its source has it, with the methods that ran."""
        key = ("class", kind)
        for known, taken in self._taken.items():
            if taken == key:
                return known
        node, path, space = class_source(kind)
        if node is None:
            if issubclass(kind, tuple) and hasattr(kind, "_fields"):
                self._imports["collections"] = None
                name = self._name(kind.__name__, key)
                fields = list(kind._fields)  # type: ignore[attr-defined]
                self._text[name] = f"{name} = collections.namedtuple({kind.__name__!r}, {fields!r})"
                return name
            raise LookupError(f"class {kind.__qualname__} has no source")
        name = self._name(kind.__name__, key)
        data = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        enumerated = issubclass(kind, enum.Enum)
        body: list[ast.stmt] = []
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                if self.record is None or self._code_ran(path, part) or enumerated:
                    body.append(self._pruned(part, path, part.name))
            elif isinstance(part, ast.AnnAssign) and data:
                body.append(ast.AnnAssign(part.target, ast.Name("object", ast.Load()), part.value, 1))
            elif isinstance(part, ast.Assign | ast.AnnAssign | ast.ClassDef):
                body.append(part)
        new = ast.ClassDef(name, node.bases, node.keywords, body or [ast.Pass()],
                           [d for d in node.decorator_list if self.decorators or _is_kept(d)])  # fmt: skip
        self._define(name, new, space, rename={node.name: name})
        self._registrations(node.name, space, path)
        return name

    def _code_ran(self, path: str, node: ast.FunctionDef) -> bool:
        return self.record is None or (path, first_line(node)) in self.record.codes

    # --- values

    def value(self, value: Any, *, depth: int = 0, whole: bool = False) -> str:
        """The code that makes an equal value; `whole` keeps every attribute of an object. Raises LookupError."""
        code = plain_code(value)
        if code is not None:
            return code
        if depth > _DEPTH:
            raise LookupError("nested too deeply")
        if isinstance(value, torch.nn.Parameter):
            return f"torch.nn.Parameter({tensor_code(value)})"
        if isinstance(value, torch.Tensor):
            return tensor_code(value)
        if isinstance(value, torch.nn.Module):
            return self.instance(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        inner = functools.partial(self.value, depth=depth + 1, whole=whole)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self._known(type(value))}({', '.join(map(inner, value))})"
        if type(value) is tuple:
            return f"({', '.join(map(inner, value))}{',' * (len(value) == 1)})"
        if type(value) is list:
            return f"[{', '.join(map(inner, value))}]"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}([{', '.join(map(inner, value))}])"
        if isinstance(value, dict) and type(value) is not dict and all(_is_attribute(value, key) for key in value):
            self._imports["types"] = None  # an output class of transformers: a dict with its keys as attributes
            return f"types.SimpleNamespace({', '.join(f'{key}={inner(item)}' for key, item in value.items())})"
        if type(value) in (dict, *_DICTS):
            return "{" + ", ".join(f"{inner(key)}: {inner(item)}" for key, item in value.items()) + "}"
        if isinstance(value, functools.partial):
            self._imports["functools"] = None
            keywords = "".join(f", {key}={inner(item)}" for key, item in value.keywords.items())
            return f"functools.partial({', '.join(map(inner, (value.func, *value.args)))}{keywords})"
        if isinstance(value, enum.Enum):
            return f"{self._known(type(value))}.{value.name}"
        known = self._known(value)
        return known if known is not None else self._object(value, depth=depth, whole=whole)

    def _object(self, value: Any, *, depth: int, whole: bool) -> str:
        """An object of the user's: its class with a constructor that takes the state, or a bare namespace."""
        kind = type(value)
        state = getattr(value, "__dict__", None)
        if state is None or isinstance(value, dict | list | types.MethodType):
            raise LookupError(f"{kind.__qualname__} object")
        wanted = {
            name: getattr(value, name) for name in state
            if whole or self.mentioned is None or name in self.mentioned
        }  # fmt: skip
        parts = []
        for name, item in wanted.items():
            try:
                parts.append(f"{name}={self.value(item, depth=depth + 2, whole=whole)}")
            except LookupError:
                continue
        if not whole and not self._has_run(kind):
            self._imports["types"] = None
            return f"types.SimpleNamespace({', '.join(parts)})"
        node, path, space = class_source(kind)
        if node is None:
            raise LookupError(f"{kind.__qualname__} object")
        key = ("object", kind)
        name = next((known for known, taken in self._taken.items() if taken == key), "")
        if not name:
            name = self._name(kind.__name__, key)
            init = ast.parse("def __init__(self, **state):\n    self.__dict__.update(state)").body[0]
            methods = [
                self._pruned(part, path, part.name) for part in node.body
                if isinstance(part, ast.FunctionDef) and part.name != "__init__" and self._code_ran(path, part)
            ]  # fmt: skip
            new = ast.ClassDef(name, [], [], [init, *methods], [])
            self._define(name, new, space, rename={node.name: name})
            self._registrations(node.name, space, path)
        return f"{name}({', '.join(parts)})"

    def _has_run(self, kind: type) -> bool:
        """Whether any method of a class did."""
        node, path, _ = class_source(kind)
        methods = node.body if node is not None else []
        return self.record is None or any(
            isinstance(part, ast.FunctionDef) and (path, first_line(part)) in self.record.codes for part in methods
        )

    # --- modules

    def instance(self, module: torch.nn.Module, *, spelled: tuple[str, ...] = ()) -> str:
        """The code that builds an equal module; `spelled` are keywords that its forward's `**kwargs` are to become."""
        kind = type(module)
        stand = None if kind.__module__.startswith("torch.") else self.stands.get(id(module))
        if kind.__module__.startswith("torch."):
            code = self._torch_instance(module)
            if code is not None:
                return code
        state = self._state(module)
        base = self._bases(kind)
        first = f"super().__init__({_arguments_of(base, module)})"
        if base and not kind.__module__.startswith("torch.") and first.endswith("(None)"):
            first = "torch.nn.Module.__init__(self)"
        key = (kind, tuple(state), spelled, stand)
        if key in self._classes:
            return f"{self._classes[key]}()"
        methods: list[ast.stmt] = []
        if not kind.__module__.startswith("torch."):
            methods = self._methods(module, kind, spelled, stand=stand)
        if any("self.parameters()" in ast.unparse(method) for method in methods) and list(module.parameters()):
            state.append("self.parameter = torch.nn.Parameter(torch.ones(1))")  # it asks the first one for its dtype
        name = self._name(kind.__name__, key)
        self._classes[key] = name
        init = ast.parse("def __init__(self):\n    " + "\n    ".join([first, *state])).body
        bases = [expression(one) for one in base or ("torch.nn.Module",)]
        if kind.__module__.startswith("torch."):
            bases = [expression(torch_name(kind))]
            init = ast.parse(
                "def __init__(self):\n    " + "\n    ".join(["torch.nn.Module.__init__(self)", *state])
            ).body
        body = [*(init if state or first != "super().__init__()" else []), *methods]
        new = ast.ClassDef(name, bases, [], body or [ast.Pass()], [])
        self._text[name] = ast.unparse(ast.fix_missing_locations(new))
        return f"{name}()"

    def _torch_instance(self, module: torch.nn.Module) -> str | None:
        """A container with its children, or a module that its constructor's arguments tell."""
        match module:
            case torch.nn.Sequential():
                return f"torch.nn.Sequential({', '.join(map(self.instance, module))})"
            case torch.nn.ModuleList():
                return f"torch.nn.ModuleList([{', '.join(self.instance(one) for one in self._reached(module))}])"
            case torch.nn.ModuleDict():
                inner = ", ".join(f"{key!r}: {self.instance(one)}" for key, one in module.items())
                return "torch.nn.ModuleDict({" + inner + "})"
            case torch.nn.ParameterList():
                return f"torch.nn.ParameterList([{', '.join(self.value(one) for one in module)}])"
        return None if module._modules and any(module._modules.values()) else torch_module_code(module)

    def _reached(self, modules: torch.nn.ModuleList) -> list[torch.nn.Module]:
        """The entries up to the last one whose code ran; all where that cannot be told."""
        children = list(modules)
        if self.record is None or not children or type(children[0]).__module__.startswith("torch."):
            return children
        ran = {fqn for fqn, _, _ in self.record.methods}
        last = max((i for i, c in enumerate(children) if self.names.get(state_id(c)) in ran), default=0)
        return children[: last + 1]

    def _bases(self, kind: type) -> list[str]:
        """The first torch class on the way up, by name."""
        for parent in kind.__mro__[1:]:
            if parent.__module__.startswith("torch.") and issubclass(parent, torch.nn.Module):
                return [torch_name(parent)]
        return ["torch.nn.Module"]

    def _methods(
        self, module: torch.nn.Module, kind: type, spelled: tuple[str, ...], *, stand: str | None
    ) -> list[ast.stmt]:
        """The methods of the class and its user parents that ran for any instance, the most derived ones only.

        With `stand` the forward returns that, whatever it is given.
        """
        found: dict[str, ast.stmt] = {}
        if stand is not None:
            found["forward"] = ast.parse(f"def forward(self, *args, **kwargs):\n    return {stand}").body[0]
        for parent in kind.__mro__:
            node, path, space = class_source(parent)
            if node is None or parent.__module__.startswith("torch."):
                continue
            for part in node.body:
                if not isinstance(part, ast.FunctionDef) or part.name == "__init__" or part.name in found:
                    continue
                wanted = self._code_ran(path, part)
                if self.record is None and self.mentioned is not None:
                    wanted = part.name in self.mentioned or part.name in ("forward", "__call__")
                if not wanted:
                    continue
                new = self._pruned(part, path, part.name)
                if part.name == "forward" and spelled:
                    _spell_out(new, spelled)
                found[part.name] = _Renamed(self, space, {}).over(new)
        return list(found.values())

    def _state(self, module: torch.nn.Module) -> list[str]:
        """Assignments that give a module what its code reads."""
        lines = []
        for name, value in self._attributes(module).items():
            if self.mentioned is not None and name not in self.mentioned:
                continue
            try:
                code = self.value(value)
            except LookupError as error:
                self.notes.append(f"the attribute {name} is left out: {error}")
                continue
            if name in module._buffers:
                lines.append(f"self.register_buffer({name!r}, {code})")
            else:
                lines.append(f"self.{name} = {code}")
        return lines

    def _attributes(self, module: torch.nn.Module) -> dict[str, Any]:
        own = {name: value for name, value in vars(module).items() if name not in _MODULE_INTERNALS}
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, module._modules)
        for table in tables:
            own |= table
        if self.mentioned is not None:
            for name in self.mentioned - own.keys():
                value = inspect.getattr_static(type(module), name, None)
                if value is not None and plain_code(value) is not None and not hasattr(torch.nn.Module, name):
                    own[name] = value
        return own


_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) | {"forward"}
_DICTS = (types.MappingProxyType,)


def _is_attribute(value: Any, key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier() and getattr(value, key, None) is value[key]


def _arguments_of(base: list[str], module: torch.nn.Module) -> str:
    """What the constructor of the torch class that a user's class derives from was given."""
    for parent in type(module).__mro__:
        if parent.__module__.startswith("torch.") and [torch_name(parent)] == base:
            if parent is torch.nn.Module:
                return ""
            bare: torch.nn.Module = parent.__new__(parent)  # type: ignore[call-overload]
            bare.__dict__.update(module.__dict__)
            code = torch_module_code(bare)
            return code.partition("(")[2].rpartition(")")[0] if code is not None else "None"
    return ""


def scope_of(function: types.FunctionType) -> dict[str, Any]:
    """A function's globals with the variables that it closes over."""
    space = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            space[name] = cell.cell_contents
        except ValueError:
            continue
    return space


def class_source(kind: type) -> tuple[Any, str, dict[str, Any]]:
    """A class's definition, its file, and the globals that its methods see; None for one without source."""
    module = sys.modules.get(kind.__module__)
    functions = [v for v in vars(kind).values() if isinstance(v, types.FunctionType)]
    user = [f for f in map(inspect.unwrap, functions) if os.path.isfile(f.__code__.co_filename)]
    own = [f for f in user if f.__qualname__.startswith(f"{kind.__qualname__}.")]
    path = getattr(module, "__file__", None) or (own[0].__code__.co_filename if own else None)
    space = scope_of(own[0]) if own else dict(vars(module)) if module else {}
    if not isinstance(path, str):
        return None, "", {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            inside = any(node.lineno <= f.__code__.co_firstlineno <= (node.end_lineno or 0) for f in own)
            if inside or not own:
                if module is None:
                    space = {**space}
                return node, path, space
    return None, path, space


def _is_kept(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith(_KEPT_DECORATORS)


def _spell_out(forward: Any, names: tuple[str, ...]) -> None:
    """Make named parameters of what `**kwargs` takes."""
    bundle = forward.args.kwarg
    if bundle is None:
        return
    forward.args.kwarg = None
    forward.args.kwonlyargs = [*forward.args.kwonlyargs, *(ast.arg(name) for name in names)]
    forward.args.kw_defaults = [*forward.args.kw_defaults, *(None for _ in names)]
    pairs = ", ".join(f"{name}={name}" for name in names)
    forward.body.insert(0, ast.parse(f"{bundle.arg} = dict({pairs})").body[0])


class _Renamed(ast.NodeTransformer):
    """Puts for each global name what the script calls it."""

    def __init__(self, script: Script, space: Mapping[str, Any], rename: dict[str, str]) -> None:
        self.script = script
        self.space = space
        self.rename = rename
        self.bound: set[str] = set()

    def over(self, node: ast.stmt) -> Any:
        """The definition with its global names replaced."""
        for inner in ast.walk(node):
            match inner:
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                    self.bound.add(name)
                case ast.ExceptHandler(name=str(name)):
                    self.bound.add(name)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    self.bound |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if inner is not node:
                    if not isinstance(node, ast.ClassDef):
                        self.bound.add(name)
        return self.visit(_copied(node))

    def visit_Name(self, node: ast.Name) -> Any:
        """A global's new name; local ones stay."""
        if isinstance(node, Returned):
            module = sys.modules.get(node.module)
            code = self._resolved(node.id, vars(module)) if module else None
            return expression(code or node.id)
        if node.id in self.rename:
            return ast.Name(self.rename[node.id], node.ctx)
        if node.id in self.bound or not isinstance(node.ctx, ast.Load):
            return node
        code = self._resolved(node.id, self.space)
        return node if code is None else expression(code)

    visit_Returned = visit_Name  # transformers dispatch by the name of the node's class

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """An attribute of one of the user's modules is a global of that module."""
        if isinstance(node.value, ast.Name) and node.value.id not in self.bound and isinstance(node.ctx, ast.Load):
            value = self.space.get(node.value.id)
            file = getattr(value, "__file__", None)
            if isinstance(value, types.ModuleType) and file and is_user_file(file):
                code = self._resolved(node.attr, vars(value))
                return expression(code or node.attr)
        return self.generic_visit(node)

    def _resolved(self, name: str, space: Mapping[str, Any]) -> str | None:
        try:
            return self.script.resolve(name, space)
        except LookupError as error:
            source = self.script._from_source(name, space)
            return source or self.script._imported(name, space, why=str(error))


def _copied(node: Any) -> Any:
    """A deep copy of a tree, with `Returned` names as they are."""
    if isinstance(node, Returned):
        return Returned(id=node.id, ctx=node.ctx, module=node.module)
    if isinstance(node, ast.AST):
        new = type(node)(**{name: _copied(value) for name, value in ast.iter_fields(node)})
        return ast.copy_location(new, node) if hasattr(node, "lineno") else new
    return [_copied(item) for item in node] if isinstance(node, list) else node


def mentioned_names(record: Record, *, substitute: bool) -> set[str]:
    """Every attribute name, and every string that could be one, in the functions that ran."""
    found: set[str] = set()
    for path, line in sorted(record.codes):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, Definition) and first_line(node) == line and not isinstance(node, ast.ClassDef):
                pruned = Pruned(path, record, substitute=substitute)._with_bodies(node)
                for inner in ast.walk(pruned):
                    if isinstance(inner, ast.Attribute):
                        found.add(inner.attr)
                    elif (
                        isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value.isidentifier()
                    ):
                        found.add(inner.value)
    return found
