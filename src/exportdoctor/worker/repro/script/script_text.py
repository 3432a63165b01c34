"""The script under construction: its imports, its definitions, and the names that are taken."""

from __future__ import annotations

import types
from typing import Any

from exportdoctor.core.protocol.repro import ImportNote


class ScriptText:
    """Collects the pieces of a script. A name stands for one thing, which its key identifies.

    `notes` say what the script could not carry, `imports` what it imports in place of code.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.imports: list[ImportNote] = []
        self._modules: set[str] = set()
        self._folders: dict[str, None] = {}
        self._imported_names: set[str] = set()
        self._definitions: dict[str, str] = {}
        self._keys: dict[str, Any] = {}

    def render(self, ending: list[str]) -> str:
        """The whole script."""
        imports = [f"import {name}" for name in sorted(self._modules)]
        if "import torch" not in imports:
            imports.append("import torch")
        imports += [f"sys.path.insert(0, {folder!r})" for folder in self._folders]
        imports += sorted(self._imported_names)
        return "\n".join([*imports, *self._definitions.values(), *ending]) + "\n"

    @property
    def size(self) -> int:
        """How many definitions there are."""
        return len(self._definitions)

    def define(self, name: str, code: str) -> None:
        """Add a definition, after those that are there."""
        self._definitions[name] = code

    def free_name(self, wanted: str, key: Any) -> str:
        """The name `wanted`, numbered where another key has it; taken for `key` from now on."""
        number, name = 1, wanted
        while name in self._keys and self._keys[name] != key:
            number += 1
            name = f"{wanted}_{number}"
        self._keys[name] = key
        return name

    def name_of(self, key: Any) -> str | None:
        """The first name that was taken for `key`."""
        return next((name for name, taken in self._keys.items() if taken == key), None)

    def is_taken_for(self, name: str, key: Any) -> bool:
        """Whether `name` stands for what `key` identifies."""
        return name in self._keys and self._keys[name] == key

    def import_module(self, module: types.ModuleType | str) -> str:
        """Import a Python module; returns its full name, by which the script refers to it."""
        name = module if isinstance(module, str) else module.__name__
        self._modules.add(name.partition(".")[0] if name.startswith("torch") else name)
        return name

    def import_name(self, name: str, module: str, *, folder: str = "") -> None:
        """Import a name from a module that is not installed, but lies below `folder`, if one is given."""
        if folder:
            self._folders[folder] = None
            self._modules.add("sys")
        self._imported_names.add(f"from {module} import {name}")
        self._keys[name] = (module, name)
