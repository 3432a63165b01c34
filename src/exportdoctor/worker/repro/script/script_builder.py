"""Builds one self-contained script: definitions carried from their source, instances made from what they hold.

Nothing of the user's packages is imported unless it has no source that can be carried; a note then says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from exportdoctor.core.protocol.repro import ImportNote
from exportdoctor.worker.repro.script.module_code import ModuleWriter
from exportdoctor.worker.repro.script.prune import CodeSelection
from exportdoctor.worker.repro.script.script_text import ScriptText


class ScriptBuilder:
    """Ask for the code of modules and values, then `render` the script that this code needs above it.

    `fqns` maps the state_id of each module to its FQN.
    """

    def __init__(self, selection: CodeSelection, fqns: Mapping[int, str]) -> None:
        self._text = ScriptText()
        self._modules = ModuleWriter(self._text, selection, fqns)

    @property
    def notes(self) -> list[str]:
        """What the script could not carry, for the user."""
        return self._text.notes

    @property
    def imports(self) -> list[ImportNote]:
        """What the script imports in place of code."""
        return self._text.imports

    def replace_modules(self, outputs: Mapping[int, str]) -> None:
        """Let modules, given by id, return what this code makes, without running."""
        self._modules.outputs = dict(outputs)

    def module_code(self, module: torch.nn.Module, *, keywords: tuple[str, ...] = ()) -> str:
        """The code that builds an equal module; `keywords` are the names that its forward's `**kwargs` become."""
        return self._modules.code_of(module, keywords=keywords)

    def value_code(self, value: Any, *, known: Mapping[int, str] | None = None) -> str:
        """The code that makes an equal value, an object with every attribute. Raises LookupError.

        `known` has the code of what it holds, by id.
        """
        self._modules.values.known = known or {}
        try:
            return self._modules.values.code_of(value, whole=True)
        finally:
            self._modules.values.known = {}

    def render(self, ending: list[str]) -> str:
        """The whole script with the lines of `ending` last."""
        return self._text.render(ending)
