"""Files of exported programs: how one is saved, what loading it needs, and whether it can be loaded."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.report.wording.formatting import count
from exportdoctor.torch_internals.pytree_registry import is_builtin_class
from exportdoctor.torch_internals.trees import tree_leaves

_LARGEST = 64 * 2**20
"""Bytes of a program's weights and constants, up to which it is saved to see whether it can be loaded."""


def save_program(program: Any, file: Path | io.BytesIO) -> None:
    """As `torch.export.save`, without example inputs where a class of its own is among them.

    They are pickled: a file with a cache among them would only load unsafely.
    """
    if any(_own_classes(program.call_spec.in_spec)):
        program.example_inputs = None
    torch.export.save(program, file)


def load_program(file: Path | io.BytesIO) -> Any:
    """As `torch.export.load`. Raises what torch (2.13) puts into its log, and its advice to look there in its place."""
    logger, noted = logging.getLogger("torch.export"), _NotedErrors()
    logger.addHandler(noted)
    try:
        with patch_attribute(logger, "propagate", False):
            return torch.export.load(file)
    except RuntimeError as error:
        found = noted.errors[-1] if noted.errors else error
    finally:
        logger.removeHandler(noted)
    raise found


def require_inputs(loaded: Any, inputs: Any, path: Path) -> None:
    """Raises UsageError where a program from a file takes more or fewer inputs than there are."""
    found, given = len(loaded.graph_signature.user_inputs), len(tree_leaves(inputs))
    if found != given:
        raise UsageError(
            f"{path} takes {count(found, 'input')}, and this part has {given}",
            hint="Name a file that was made of this part",
        )


class _NotedErrors(logging.Handler):
    """Keeps the exceptions that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's exception."""
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])


def why_unloadable(program: Any) -> str:
    """What torch raises when the program is saved and loaded; empty where it does not, and for a large one."""
    held = (*program.state_dict.values(), *program.constants.values())
    if sum(_bytes_of(value) for value in held if isinstance(value, torch.Tensor)) > _LARGEST:
        return ""
    file = io.BytesIO()
    try:
        save_program(program, file)
        file.seek(0)
        load_program(file)
    except Exception as error:  # whatever it is, the program has no file
        return first_line(f"{type(error).__name__}: {error}")
    return ""


def _bytes_of(tensor: torch.Tensor) -> int:
    """The bytes of its elements. `nbytes` raises for a sparse one, in which those that are stored count."""
    return int(tensor.nbytes) if tensor.layout == torch.strided else tensor.element_size() * _count_elements(tensor)


def _count_elements(tensor: torch.Tensor) -> int:
    values = tensor.coalesce() if tensor.layout == torch.sparse_coo else tensor
    return values.values().numel()


def modules_of_classes(program: Any) -> tuple[str, ...]:
    """The modules whose import registers the classes that a saved program takes and gives, sorted.

    torch.export.load only knows classes that were registered before.
    """
    kinds = [*_own_classes(program.call_spec.in_spec), *_own_classes(program.call_spec.out_spec)]
    return tuple(sorted({kind.__module__ for kind in kinds if kind.__module__ != "builtins"}))


def classes_of(program: Any) -> tuple[str, ...]:
    """The registered classes among the inputs and outputs of a program, each as `module:qualified.name`, sorted.

    One that a function defines has no such name.
    """
    kinds = [*_own_classes(program.call_spec.in_spec), *_own_classes(program.call_spec.out_spec)]
    named = (kind for kind in kinds if kind.__module__ != "builtins" and "<" not in kind.__qualname__)
    return tuple(sorted({f"{kind.__module__}:{kind.__qualname__}" for kind in named}))


def _own_classes(spec: Any) -> Iterator[type]:
    """The classes in a layout that pytree knows by a registration only."""
    if isinstance(spec.type, type) and not is_builtin_class(spec.type):
        yield spec.type
    for child in spec.children() if hasattr(spec, "children") else spec.children_specs:  # torch before 2.9
        yield from _own_classes(child)
