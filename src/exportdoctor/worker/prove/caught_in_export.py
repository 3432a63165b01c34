"""Exceptions that only an export raises, and that the model's own code catches: the program is what runs after them.

torch refuses a tensor's value, say, and an `except` takes that for what it was written for. The program then has that
arm for all inputs, where eager has it for none.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from exportdoctor.core.exception_text import class_name
from exportdoctor.core.failure.messages import first_line, without_hints
from exportdoctor.report.wording.export import caught_in_export
from exportdoctor.shims.caught_exceptions import catching_line
from exportdoctor.worker.describe.python_frames import is_user_frame

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
    may_catch: dict[CodeType, bool] = field(default_factory=dict)
    _pending: dict[FrameType, list[tuple[Place, str]]] = field(default_factory=dict)

    @property
    def may_be_more(self) -> bool:
        """Whether any function that ran has code for an exception."""
        return any(self.may_catch.values())

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A trace function for all calls; follows those that have code for an exception."""
        code = frame.f_code
        if code not in self.may_catch:
            self.may_catch[code] = bool(code.co_exceptiontable) and is_user_frame(frame)
        if not self.may_catch[code]:
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
def watch_caught(*, on: bool) -> Iterator[CaughtExceptions]:
    """Note which exceptions functions of the user's catch inside; nothing unless it is `on`, for it takes time."""
    watch, before = CaughtExceptions(), sys.gettrace()
    if not on:
        yield watch
        return
    sys.settrace(watch.on_call)
    try:
        yield watch
    finally:
        sys.settrace(before)


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
