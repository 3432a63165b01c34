"""Writes one self-contained script: definitions harvested from their source, instances built from what they hold.

Law: nothing of the user's packages is imported unless it has no source that can be carried; that is then noted.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

import torch

from exportdoctor.worker.describe.describe_failure import state_id
from exportdoctor.worker.repro.literals import expression, plain_code, torch_module_code, torch_name
from exportdoctor.worker.repro.renaming import Renamed
from exportdoctor.worker.repro.source_lookup import class_source
from exportdoctor.worker.repro.value_code import Objects

_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) | {"forward"}


class Script(Objects):
    """The top layer: modules with the state that their code reads and the methods that ran."""

    def instance(self, module: torch.nn.Module, *, spelled: tuple[str, ...] = ()) -> str:
        """The code that builds an equal module; `spelled` are keywords that its forward's `**kwargs` are to become."""
        kind = type(module)
        stand = None if kind.__module__.startswith("torch.") else self.stands.get(id(module))
        if kind.__module__.startswith("torch."):
            code = self._torch_instance(module)
            if code is not None:
                return code
        self._owners.append(module)
        try:
            state = self._state(module)
        finally:
            self._owners.pop()
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
        name = self.free_name(kind.__name__, key)
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
        called_by_super: set[str] = set()
        for parent in kind.__mro__:
            node, path, space = class_source(parent)
            if node is None or parent.__module__.startswith("torch."):
                continue
            for part in node.body:
                if not isinstance(part, ast.FunctionDef) or part.name == "__init__" or not self._wants(path, part):
                    continue
                own, by_super = part.name, f"{part.name}_of_{parent.__name__}"
                wanted = ([] if own in found else [own]) + ([by_super] if by_super in called_by_super else [])
                for name in wanted:  # one class stands for all, so `super()` finds the other one by another name
                    new = self.pruned(part, path, name)
                    if name == "forward" and spelled:
                        _spell_out(new, spelled)
                    called_by_super |= _point_to_parent(new, kind, parent)
                    found[name] = Renamed(self, space, {}).over(new)
        return list(found.values())

    def _wants(self, path: str, method: ast.FunctionDef) -> bool:
        if self.record is None and self.mentioned is not None:
            return method.name in self.mentioned or method.name in ("forward", "__call__")
        return self.code_ran(path, method)

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


def _point_to_parent(method: ast.FunctionDef, kind: type, owner: type) -> set[str]:
    """Make `self.forward_of_Base` of `super().forward` where a user's class up the way has it; these new names."""
    mro = kind.__mro__
    found = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("super("):
            parents = (one for one in mro[mro.index(owner) + 1 :] if node.attr in vars(one))
            parent = next(parents, None)
            if parent is not None and not parent.__module__.startswith("torch."):
                node.value, node.attr = ast.Name("self", ast.Load()), f"{node.attr}_of_{parent.__name__}"
                found.add(node.attr)
    return found


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
