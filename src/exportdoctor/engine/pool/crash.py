"""The stack of an attempt that died or hung: the interpreter's own dump, which is all that a dead process leaves."""

from __future__ import annotations

import linecache
import os
import re

import msgspec

from exportdoctor.core.failure.frames import is_inside_entrance, is_user_file
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, Outcome, OutcomeStatus

_READ = 1 << 20
_HEADER = re.compile(r"^(?:Current thread|Thread|Stack) .*\(most recent call first\):$", re.MULTILINE)
_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


def read_stack(log: str | None, *, start: int = 0) -> tuple[Frame, ...]:
    """The last stack dumped in `log` behind byte `start`, outermost frame first, cut to what the export call runs."""
    text = _read_end(log, start) if log else ""
    dump = _HEADER.split(text)[1:][-1:]
    frames = [_frame(*found.groups()) for found in map(_LINE.match, "".join(dump).splitlines()[1:]) if found][::-1]
    inside = (i for i, frame in enumerate(frames) if is_inside_entrance(frame.file))
    return tuple(frames[next(inside, 0) :])


def _read_end(log: str, start: int) -> str:
    """The text from byte `start` on, at most the last _READ bytes of it."""
    try:
        with open(log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(start if start <= size else 0, size - _READ))  # it is shorter where it was cut
            return file.read(_READ).decode(errors="replace")
    except OSError:
        return ""


def _frame(file: str, line: str, function: str) -> Frame:
    source = linecache.getline(file, int(line)).strip()
    return Frame(file=file, line=int(line), function=function, source=source, user=is_user_file(file))


def describe_crash(outcome: Outcome, *, status: OutcomeStatus, message: str) -> Outcome:
    """`outcome` of a dead attempt with its failure: `message` says why it died, the stack where it was."""
    failure = Failure(
        stage="export",
        exceptions=(ExceptionFact(type=outcome.signal or status, message=message),),
        frames=read_stack(outcome.log),
    )
    return msgspec.structs.replace(outcome, status=status, stages={"export": "fail"}, failure=failure)
