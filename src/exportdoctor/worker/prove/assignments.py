"""Which attributes of modules a call assigns, and at which line of the model's code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.core.records.outcome import Frame
from exportdoctor.targets.built import Inputs
from exportdoctor.worker.describe.python_frames import is_user_frame, source_line
from exportdoctor.worker.prove.input_set import run_in_eager

Assignments = dict[str, Frame]
"""The path of each attribute, with the line that assigned it last."""


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
        plain(self, name, value)
        path, frame = paths.get(id(self)), _find_frame(sys._getframe(1))
        if path is not None and frame is not None:
            found[f"{path}.{name}".lstrip(".")] = Frame(
                file=frame.f_code.co_filename,
                line=frame.f_lineno,
                function=frame.f_code.co_qualname,
                source=source_line(frame.f_code.co_filename, frame.f_lineno),
                module=path,
                user=True,
            )

    with patch_attribute(torch.nn.Module, "__setattr__", note):
        yield


def _find_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the model's code, past a `__setattr__` of its own; None below torch's code alone."""
    while frame is not None and (frame.f_code.co_name == "__setattr__" or not is_user_frame(frame)):
        frame = frame.f_back
    return frame
