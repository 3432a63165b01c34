"""The script under construction: its text, its imports, and which names are taken for what.

Law: a name stands for one thing, however often that is asked for.
"""

from __future__ import annotations

import types
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exportdoctor.worker.repro.recorder import Record


@dataclass
class Sheet(ABC):
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
    _owners: list[Any] = field(default_factory=list)  # the modules whose state is being written, the innermost last

    def text(self, ending: list[str]) -> str:
        """The whole script."""
        imports = [f"import {name}" for name in sorted(dict.fromkeys(self._imports)) if " " not in name]
        if "import torch" not in imports:
            imports.append("import torch")
        imports += [f"sys.path.insert(0, {folder!r})" for folder in self._folders]
        imports += sorted(name for name in self._imports if " " in name)
        return "\n".join([*imports, *self._text.values(), *ending]) + "\n"

    def free_name(self, wanted: str, key: Any) -> str:
        """A free name for what `key` identifies."""
        number, name = 1, wanted
        while name in self._taken and self._taken[name] != key:
            number += 1
            name = f"{wanted}_{number}"
        self._taken[name] = key
        return name

    def module(self, module: types.ModuleType) -> str:
        """A Python module by its full name, imported."""
        self._imports[module.__name__.partition(".")[0] if module.__name__.startswith("torch") else module.__name__] = (
            None
        )
        return module.__name__
