"""Code that builds an equal module: a class with the state that its code reads and the methods that ran."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.worker.repro.script.definitions import DefinitionWriter
from exportdoctor.worker.repro.script.literals import expression, plain_code, torch_module_code, torch_name
from exportdoctor.worker.repro.script.prune import CodeSelection
from exportdoctor.worker.repro.script.script_text import ScriptText
from exportdoctor.worker.repro.script.source_lookup import class_source, definition_at, scope_of
from exportdoctor.worker.repro.script.value_code import ValueWriter

_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) | {"forward"}


class ModuleWriter:
    """Writes modules. `fqns` maps their state_id to the FQNs of the record.

    `outputs` maps the id of a module to the code of what it returns, for those that are not to run themselves.
    """

    def __init__(self, text: ScriptText, selection: CodeSelection, fqns: Mapping[int, str]) -> None:
        definitions = DefinitionWriter(text, selection)
        self.values = ValueWriter(text, selection, definitions, self.code_of)
        self.outputs: dict[int, str] = {}
        self._text = text
        self._selection = selection
        self._names = definitions.names
        self._fqns = fqns
        self._classes: dict[tuple[Any, ...], str] = {}

    def code_of(self, module: torch.nn.Module, *, keywords: tuple[str, ...] = ()) -> str:
        """The code that builds an equal module; `keywords` are the names that its forward's `**kwargs` become."""
        if is_defined_in_torch(type(module)):
            code = self._torch_module(module)
            if code is not None:
                return code
        return f"{self._class_for(module, keywords)}()"

    def _torch_module(self, module: torch.nn.Module) -> str | None:
        """A container with its children, or a module whose constructor's arguments can be read from it."""
        match module:
            case torch.nn.Sequential():
                return f"torch.nn.Sequential({', '.join(map(self.code_of, module))})"
            case torch.nn.ModuleList():
                entries = ("None" if one is None else self.code_of(one) for one in self._needed_entries(module))
                return f"torch.nn.ModuleList([{', '.join(entries)}])"
            case torch.nn.ModuleDict():
                inner = ", ".join(f"{key!r}: {self.code_of(one)}" for key, one in module.items())
                return "torch.nn.ModuleDict({" + inner + "})"
            case torch.nn.ParameterList():
                return f"torch.nn.ParameterList([{', '.join(map(self.values.code_of, module))}])"
        return None if module._modules and any(module._modules.values()) else torch_module_code(module)

    def _needed_entries(self, modules: torch.nn.ModuleList) -> list[torch.nn.Module | None]:
        """The entries up to the last one whose code ran; all where that is not known. An entry may be None."""
        children: list[torch.nn.Module | None] = list(modules)
        record = self._selection.record
        if record is None or not children or is_defined_in_torch(type(children[0])):
            return children
        ran = {fqn for fqn, _, _ in record.methods}
        named = [self._fqns.get(state_id(one)) if one is not None else None for one in children]
        last = max((place for place, fqn in enumerate(named) if fqn in ran), default=0)
        return children[: last + 1]

    def _class_for(self, module: torch.nn.Module, keywords: tuple[str, ...]) -> str:
        """The name of a class whose instances need no arguments; equal modules share one."""
        kind = type(module)
        output = None if is_defined_in_torch(kind) else self.outputs.get(id(module))
        state = self._state(module)
        key = (kind, tuple(state), keywords, output)
        if key not in self._classes:
            methods = [] if is_defined_in_torch(kind) else self._methods(kind, keywords, output=output)
            asked = output is not None and self._selection.mentions("parameters")
            asked = asked or any("self.parameters()" in ast.unparse(method) for method in methods)
            if asked and list(module.parameters()):
                state.append("self.parameter = torch.nn.Parameter(torch.ones(1))")  # it asks the first for its dtype
            name = self._text.free_name(kind.__name__, key)
            self._classes[key] = name
            base, body = _base(kind), [*_constructor(module, state), *methods]
            new = ast.ClassDef(name, [expression(torch_name(base))], [], body or [ast.Pass()], [])
            self._text.define(name, ast.unparse(ast.fix_missing_locations(new)))
        return self._classes[key]

    def _methods(self, kind: type, keywords: tuple[str, ...], *, output: str | None) -> list[ast.stmt]:
        """The methods of the class and its user parents that ran for any instance, the most derived ones only.

        With `output` the forward returns that, whatever it is given.
        """
        found: dict[str, ast.stmt] = {}
        if output is not None:
            found["forward"] = ast.parse(f"def forward(self, *args, **kwargs):\n    return {output}").body[0]
        called_by_super: set[str] = set()
        for parent in kind.__mro__:
            if is_defined_in_torch(parent):
                continue
            for part, path, space in _written_methods(parent):
                if part.name == "__init__" or not self._selection.has(path, part):
                    continue
                own, by_super = part.name, f"{part.name}_of_{parent.__name__}"
                wanted = ([] if own in found else [own]) + ([by_super] if by_super in called_by_super else [])
                for name in wanted:  # one class stands for all, so `super()` finds the other one by another name
                    new = self._selection.prune(part, path, name)
                    if name == "forward" and keywords:
                        _spell_out_keywords(new, keywords)
                    called_by_super |= _point_to_parent(new, kind, parent)
                    found[name] = self._names.rename_globals(new, space, rename={})
        return list(found.values())

    def _state(self, module: torch.nn.Module) -> list[str]:
        """Assignments that give a module what its code reads."""
        lines = []
        for name, value in self._attributes(module).items():
            if not self._selection.mentions(name):
                continue
            try:
                code = self.values.code_of(value, owner=module)
            except LookupError as error:
                self._text.notes.append(f"the attribute {name} is left out: {error}")
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
        for name in sorted((self._selection.mentioned or set()) - own.keys()):
            value = inspect.getattr_static(type(module), name, None)
            if value is not None and plain_code(value) is not None and not hasattr(torch.nn.Module, name):
                own[name] = value
        return own


def _written_methods(kind: type) -> Iterator[tuple[ast.FunctionDef, str, dict[str, Any]]]:
    """The methods in a class's definition, and those that it was given afterwards, from a template, say.

    Each with its file, and the globals that it sees. None of a class without source.
    """
    node, path, space = class_source(kind)
    if node is None:
        return
    there = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    yield from ((part, path, space) for part in there)
    for name, method in vars(kind).items():
        if isinstance(method, types.FunctionType) and name not in {part.name for part in there}:
            code = method.__code__
            part = definition_at(code.co_filename, code.co_firstlineno, code.co_name)
            if isinstance(part, ast.FunctionDef):
                yield part, code.co_filename, scope_of(method)


def _base(kind: type, *, above: int = 0) -> type[torch.nn.Module]:
    """The class from which that of the script derives: the first of torch's on the way up, from that many steps on."""
    return next(one for one in kind.__mro__[above:] if is_defined_in_torch(one) and issubclass(one, torch.nn.Module))


def _constructor(module: torch.nn.Module, state: list[str]) -> list[ast.stmt]:
    """The `__init__` that gives the base class its arguments and sets the state; none where it would do nothing."""
    kind = type(module)
    first = f"super().__init__({_arguments(module)})"
    if not state and first == "super().__init__()":
        return []
    if is_defined_in_torch(kind) or first.endswith("(None)"):
        first = "torch.nn.Module.__init__(self)"
    return ast.parse("def __init__(self):\n    " + "\n    ".join([first, *state])).body


def _arguments(module: torch.nn.Module) -> str:
    """The arguments with which the constructor of the first torch class above a module's class was called."""
    parent = _base(type(module), above=1)
    if parent is torch.nn.Module:
        return ""
    bare: torch.nn.Module = parent.__new__(parent)
    bare.__dict__.update(module.__dict__)
    code = torch_module_code(bare)
    return code.partition("(")[2].rpartition(")")[0] if code is not None else "None"


def _point_to_parent(method: ast.FunctionDef, kind: type, owner: type) -> set[str]:
    """Make `self.forward_of_Base` of `super().forward` where a user's class up the way has it; these new names."""
    mro = kind.__mro__
    found = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("super("):
            parents = (one for one in mro[mro.index(owner) + 1 :] if node.attr in vars(one))
            parent = next(parents, None)
            if parent is not None and not is_defined_in_torch(parent):
                node.value, node.attr = ast.Name("self", ast.Load()), f"{node.attr}_of_{parent.__name__}"
                found.add(node.attr)
    return found


def _spell_out_keywords(forward: Any, names: tuple[str, ...]) -> None:
    """Make named parameters of what `**kwargs` takes."""
    bundle = forward.args.kwarg
    if bundle is None:
        return
    forward.args.kwarg = None
    forward.args.kwonlyargs = [*forward.args.kwonlyargs, *(ast.arg(name) for name in names)]
    forward.args.kw_defaults = [*forward.args.kw_defaults, *(None for _ in names)]
    pairs = ", ".join(f"{name}={name}" for name in names)
    forward.body.insert(0, ast.parse(f"{bundle.arg} = dict({pairs})").body[0])
