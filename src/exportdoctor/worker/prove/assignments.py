"""Which attributes of modules a call assigns, and at which line of the model's code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.core.records.outcome import Frame
from exportdoctor.report.wording import export as wording
from exportdoctor.targets.built import Inputs
from exportdoctor.worker.describe.python_frames import is_user_frame, source_line
from exportdoctor.worker.prove.input_set import run_in_eager


@dataclass(frozen=True)
class Assignment:
    """The line that assigned an attribute last, and in words how the tensor is another one apart from its values."""

    line: Frame
    change: str = ""


Assignments = dict[str, Assignment]
"""By the path of each attribute."""


def find_assignments(module: torch.nn.Module, calls: Iterable[Inputs]) -> Assignments:
    """What eager assigns in these calls, one after the other, by a statement in the code of a user or a library; empty
    where it raises. The module is restored."""
    found: Assignments = {}
    with _note_assignments(module, found):
        return found if run_in_eager(module, tuple(calls)) is not None else {}


@contextmanager
def _note_assignments(module: torch.nn.Module, found: Assignments) -> Iterator[None]:
    paths = {id(child): path for path, child in module.named_modules()}
    plain = torch.nn.Module.__setattr__

    def note(self: torch.nn.Module, name: str, value: Any) -> None:
        before = vars(self).get("_buffers", {}).get(name)
        plain(self, name, value)
        path, frame = paths.get(id(self)), _find_frame(sys._getframe(1))
        if path is not None and frame is not None:
            file, line = frame.f_code.co_filename, frame.f_lineno
            place = Frame(
                file=file,
                line=line,
                function=frame.f_code.co_qualname,
                source=source_line(file, line),
                module=path,
                user=True,
            )
            where = f"{path}.{name}".lstrip(".")
            change = _change(before, value) or (found[where].change if where in found else "")
            found[where] = Assignment(place, change)

    with patch_attribute(torch.nn.Module, "__setattr__", note):
        yield


def _change(before: Any, after: Any) -> str:
    """How a buffer that was assigned is another one, apart from its values; empty where it is not."""
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return ""
    if before.shape != after.shape:
        return wording.OTHER_SHAPE
    return wording.OTHER_DTYPE if before.dtype != after.dtype else ""


def _find_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the model's code, past a `__setattr__` of its own; None below torch's code alone."""
    while frame is not None and (frame.f_code.co_name == "__setattr__" or not is_user_frame(frame)):
        frame = frame.f_back
    return frame
