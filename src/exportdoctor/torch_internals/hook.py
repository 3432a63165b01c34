"""The record of one private part of torch: its use, the loss without it, and a check that it exists."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One private API of torch that a feature rests on.

    `api` is what is private, `used_for` the feature, `lost` what a scan does without it. `seen_on` are the torch
    versions on which it was found to work. `is_there` looks for it and may raise what a missing name raises.
    `essential`: without it there are no results at all, not only poorer ones. `imports_onnx`: looking for it imports
    torch's ONNX exporter, which takes half a second, so that a scan does not.
    """

    id: str
    api: str
    used_for: str
    lost: str
    seen_on: tuple[str, ...]
    is_there: Callable[[], bool]
    essential: bool = False
    imports_onnx: bool = False

    def is_supported(self) -> bool:
        """Whether the installed torch has it."""
        try:
            return self.is_there()
        except (ImportError, AttributeError, TypeError, ValueError):
            return False


def local_names(function: Callable[..., Any]) -> frozenset[str]:
    """The local variables of a function of torch, inside its decorators; frames on a traceback hold their values."""
    code = inspect.unwrap(function).__code__
    return frozenset((*code.co_varnames, *code.co_cellvars))
