"""The stack of an attempt that died or hung: the interpreter's own dump, which is all that a dead process leaves."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.outcome import ExceptionFact, Failure, Frame, Outcome, OutcomeStatus

_HEADER = re.compile(r"^(?:Current thread|Thread|Stack) .*\(most recent call first\):$")
_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_MEANING = {
    "SIGSEGV": "Segmentation fault: native code touched memory that is not its own",
    "SIGABRT": "Abort: native code gave up on an internal check",
    "SIGBUS": "Bus error: native code touched memory that cannot be had",
    "SIGFPE": "Floating-point exception in native code, often an integer division by zero",
    "SIGILL": "Illegal instruction: native code was built for another processor",
    "SIGKILL": "Killed from outside",
}


def read_stack(log: str | None) -> tuple[Frame, ...]:
    """The last dumped stack in `log`, outermost frame first, cut to what runs inside the export call."""
    if log is None:
        return ()
    try:
        lines = Path(log).read_text(errors="replace").splitlines()
    except OSError:
        return ()
    starts = [index for index, line in enumerate(lines) if _HEADER.match(line)]
    if not starts:
        return ()
    frames = []
    for line in lines[starts[-1] + 1 :]:
        found = _LINE.match(line)
        if found is None:
            break
        frames.append(_frame(found["file"], int(found["line"]), found["function"]))
    frames.reverse()
    inside = next(
        (i for i, frame in enumerate(frames) if "/torch/export/" in frame.file or "/torch/onnx/" in frame.file), 0
    )
    return tuple(frames[inside:])


def _frame(file: str, line: int, function: str) -> Frame:
    source = linecache.getline(file, line).strip()
    return Frame(file=file, line=line, function=function, source=source, user=is_user_file(file))


def describe_crash(outcome: Outcome, *, status: OutcomeStatus, reason: str) -> Outcome:
    """`outcome` of a dead attempt with its failure: why it died and where it was."""
    message = reason or _MEANING.get(outcome.signal or "", f"The process died: {outcome.signal}")
    failure = Failure(
        stage="export",
        exceptions=(ExceptionFact(type=outcome.signal or status, message=message),),
        frames=read_stack(outcome.log),
    )
    return Outcome(
        probe=outcome.probe,
        status=status,
        seconds=outcome.seconds,
        peak_rss_mb=outcome.peak_rss_mb,
        stages={"export": "fail"},
        failure=failure,
        signal=outcome.signal,
        log=outcome.log,
    )
