"""Drafts for a class that pytree does not know: a class without content in its place, returned by a module or given.

Torch looks at the type alone, and the source of a library's cache has hundreds of lines and as many imports.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from typing import Any

from exportdoctor.core.exporters import Exporter
from exportdoctor.core.failure.classify import kind_of
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.protocol.repro import ScriptDraft
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.report import wording
from exportdoctor.worker.repro.script.literals import export_code

_WITHOUT_KEYS = "Did not find a flatten_with_keys_fn"
_REGISTER = "torch.utils._pytree.register_pytree_node({name}, lambda one: ([], None), lambda children, _: {name}())\n"
_REFUSED_CLASS = re.compile(r"<class '([^']+)'>|unsupported type: ([\w.]+)")
_RETURNS = "class Model(torch.nn.Module):\n    def forward(self, x):\n        return {output}\n"
_DYNAMIC = ("{0: torch.export.Dim.DYNAMIC}", "[torch.export.Dim.DYNAMIC]")
_CONTAINERS = (dict, list, tuple, set)


def write_stand_ins(outcome: Outcome, exporter: Exporter) -> Iterator[ScriptDraft]:
    """The drafts for a failure of that kind, the shortest first; none for another failure."""
    if outcome.failure is None or kind_of(outcome, exporter=exporter) is not FailureKind.UNREGISTERED_PYTREE:
        return
    messages = [fact.message for fact in outcome.failure.exceptions]
    found = map(_REFUSED_CLASS.search, messages)
    registered = any(_WITHOUT_KEYS in message for message in messages)
    refused = next((match[1] or match[2] for match in found if match), None)
    if refused is None:
        return
    for definition, made, remarks in _ways_to_make(refused, registered=registered):
        for model, call in _uses(made, exporter):
            source = "\n".join(filter(None, ("import torch", definition, model, call, "")))
            yield ScriptDraft(what=f"a class in place of {refused}", source=source, remarks=remarks)


def _ways_to_make(refused: str, *, registered: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Definition, expression and remarks: a builtin class itself, else an empty one, with the builtin base at last.

    One that is `registered` is so without names for its children.
    """
    known = _class_called(refused)
    if known is not None and known.__module__ == "builtins":
        yield "", f"{known.__name__}()", ()
    name = refused.rpartition(".")[2]
    for base in (None, *(base for base in _CONTAINERS if known is not None and issubclass(known, base))):
        head = f"class {name}({base.__name__})" if base else f"class {name}"
        code = f"{head}:\n    pass\n" + (_REGISTER.format(name=name) if registered else "")
        yield code, f"{name}()", (wording.repro_stand_in(refused, registered=registered),)


def _class_called(name: str) -> type | None:
    """The class with this full name; None where no imported module has it."""
    module, _, inner = name.rpartition(".")
    value: Any = getattr(sys.modules.get(module, builtins), inner, None)
    return value if isinstance(value, type) else None


def _uses(made: str, exporter: Exporter) -> Iterator[tuple[str, str]]:
    """A model and its export: the object is the output, part of one, the input, an input with a dynamic size."""
    for output in (made, f"(x, {made})"):
        yield _RETURNS.format(output=output), export_code(exporter, "Model()", "(torch.ones(2),)")
    for shapes in ("", *_DYNAMIC):
        given = f", dynamic_shapes=({shapes},)" if shapes else ""
        yield "", export_code(exporter, "torch.nn.Identity()", f"({made},)", shapes=given)
