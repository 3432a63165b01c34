"""Exceptions that only an export raises, and that the model's own code catches: the program is what runs after them.

torch refuses a tensor's value, say, and an `except` takes that for what it was written for. The program then has that
arm for all inputs, where eager has it for none.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from exportdoctor.core.exception_text import class_name
from exportdoctor.core.failure.messages import first_line, without_hints
from exportdoctor.report.wording.export import caught_in_export
from exportdoctor.shims.caught_exceptions import catching_line
from exportdoctor.targets.built import Inputs
from exportdoctor.torch_internals.tracing_modes import after_each_refusal
from exportdoctor.worker.describe.python_frames import is_user_frame
from exportdoctor.worker.prove.input_set import run_in_eager

_GIVES = frozenset(number for name, number in dis.opmap.items() if name.startswith(("RETURN_", "YIELD_")))
"""Instructions by which a function gives something, so that no exception leaves it."""
_ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)
"""By which loops and generators end."""
_KEPT, _LONGEST = 1000, 120

Place = tuple[str, int, str]
"""A file, the line on which an exception came up in the function that caught it, and the exception's type."""


@dataclass
class CaughtExceptions:
    """What functions of the user's caught: each place once, in order, with what the exception said."""

    found: dict[Place, str] = field(default_factory=dict)
    _may_catch: dict[int, tuple[bool, CodeType]] = field(default_factory=dict)  # by identity: the hash of code is slow
    _pending: dict[FrameType, list[tuple[Place, str]]] = field(default_factory=dict)

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A trace function for all calls; follows those that have code for an exception."""
        code = frame.f_code
        known = self._may_catch.get(id(code))
        if known is None:
            known = self._may_catch[id(code)] = bool(code.co_exceptiontable) and is_user_frame(frame), code
        if not known[0]:
            return None
        frame.f_trace_lines = False
        return self._on_event

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "exception" and len(self.found) < _KEPT:
            kind, error = arg[0], arg[1]
            if not issubclass(kind, _ENDS) and catching_line(frame.f_code.co_filename, frame.f_lineno):
                place = frame.f_code.co_filename, frame.f_lineno, class_name(kind)
                self._pending.setdefault(frame, []).append((place, _describe(error)))
        elif event == "return":
            caught = self._pending.pop(frame, [])
            if frame.f_code.co_code[frame.f_lasti] in _GIVES:  # else the exception leaves the function
                self.found.update(dict(reversed(caught)))
        return self._on_event


@contextmanager
def watch_export(*, on: bool) -> Iterator[dict[Place, str]]:
    """Note which exceptions of torch functions, and of questions about symbols, functions of the user's catch in an
    export; known when it is over. Nothing unless it is `on`."""
    found: dict[Place, str] = {}
    if not on:
        yield found
        return
    raised: dict[int, BaseException] = {}

    def note(error: BaseException) -> None:
        if len(raised) < _KEPT:
            raised[id(error)] = error

    with after_each_refusal(note):
        yield found
    for error in raised.values():
        link = error.__traceback__  # its first link is where the exception ended
        if link is not None and not isinstance(error, _ENDS) and is_user_frame(link.tb_frame):
            found.setdefault(
                (link.tb_frame.f_code.co_filename, link.tb_lineno, class_name(type(error))), _describe(error)
            )


@contextmanager
def watch_caught() -> Iterator[CaughtExceptions]:
    """Note which exceptions functions of the user's catch inside. All Python code is traced, which is slow."""
    watch, before = CaughtExceptions(), sys.gettrace()
    sys.settrace(watch.on_call)
    try:
        yield watch
    finally:
        sys.settrace(before)


def caught_in_eager(module: torch.nn.Module, calls: Iterable[Sequence[Inputs]]) -> dict[Place, str]:
    """What functions of the user's catch in these series of calls. Call it while no shim is active."""
    with watch_caught() as watch:
        for series in calls:
            run_in_eager(module, series)
    return watch.found


def note_caught(export: Mapping[Place, str], eager: Mapping[Place, str]) -> str:
    """What the export alone raised; empty where that is nothing."""
    only = [(place, said) for place, said in export.items() if place not in eager]
    if not only:
        return ""
    (file, line, _), said = only[0]
    return caught_in_export(f"{Path(file).name}:{line}", said, others=len(only) - 1)


def _describe(error: BaseException) -> str:
    said = without_hints(first_line(error, _LONGEST)).rstrip(".")
    return ": ".join(filter(None, (class_name(type(error)), said)))
