"""The line at which eager takes another way for one set of inputs than for another."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.records.size_domain import SizeCondition
from exportdoctor.report.wording import size_domains as wording
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import run_once
from exportdoctor.worker.describe.python_frames import is_user_frame, source_line

_KEPT = 200_000
_Step = tuple[str, int, str]


def branch_line(module: torch.nn.Module, one: Inputs, other: Inputs) -> Frame | None:
    """The last line that both runs share before they part; None where they share none, or all.

    Both are traced line by line in the user's code, and compared up to their 200 000th line.
    """
    first, second = _lines_of(module, one), _lines_of(module, other)
    parted = next((at for at, (left, right) in enumerate(zip(first, second, strict=False)) if left != right), None)
    if parted is None:
        parted = min(len(first), len(second)) if len(first) != len(second) else None
    if not parted:
        return None
    file, line, function = first[parted - 1]
    return Frame(file=file, line=line, function=function, source=source_line(file, line), user=True)


def _lines_of(module: torch.nn.Module, inputs: Inputs) -> list[_Step]:
    found: list[_Step] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            return trace if is_user_frame(frame) else None
        if event == "line" and len(found) < _KEPT:
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        run_once(module, inputs)
    except Exception:  # eager may refuse these sizes: the lines up to there are what is asked for
        pass
    finally:
        sys.settrace(before)
    return found


def branch_condition(frame: Frame) -> SizeCondition:
    """A line at which eager goes another way than for the example."""
    return SizeCondition(text=wording.OTHER_WAY, kind="branch", file=frame.file, line=frame.line, source=frame.source)
