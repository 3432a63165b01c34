"""Files of exported programs: how one is saved, what loading it needs, and whether it can be loaded."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.failure.messages import first_line
from exportdoctor.torch_internals.pytree_registry import is_builtin_class

_LARGEST = 64 * 2**20
"""Bytes of a program's weights and constants, up to which it is saved to see whether it can be loaded."""


def save_program(program: Any, file: Path | io.BytesIO) -> None:
    """As `torch.export.save`, without example inputs where a class of its own is among them.

    They are pickled: a file with a cache among them would only load unsafely.
    """
    if any(_own_classes(program.call_spec.in_spec)):
        program.example_inputs = None
    torch.export.save(program, file)


def why_unloadable(program: Any) -> str:
    """What torch raises when the program is saved and loaded; empty where it does not, and for a large one."""
    held = (*program.state_dict.values(), *program.constants.values())
    if sum(value.nbytes for value in held if isinstance(value, torch.Tensor)) > _LARGEST:
        return ""
    file = io.BytesIO()
    try:
        save_program(program, file)
        file.seek(0)
        torch.export.load(file)
    except Exception as error:  # whatever it is, the program has no file
        return first_line(f"{type(error).__name__}: {error}")
    return ""


def modules_of_classes(program: Any) -> tuple[str, ...]:
    """The modules whose import registers the classes that a saved program takes and gives, sorted.

    torch.export.load only knows classes that were registered before.
    """
    kinds = [*_own_classes(program.call_spec.in_spec), *_own_classes(program.call_spec.out_spec)]
    return tuple(sorted({kind.__module__ for kind in kinds if kind.__module__ != "builtins"}))


def _own_classes(spec: Any) -> Iterator[type]:
    """The classes in a layout that pytree knows by a registration only."""
    if isinstance(spec.type, type) and not is_builtin_class(spec.type):
        yield spec.type
    for child in spec.children() if hasattr(spec, "children") else spec.children_specs:  # torch before 2.9
        yield from _own_classes(child)
