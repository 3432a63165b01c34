"""Follows a scan to its end: each event is recorded, then shown. However it ends, what was found is saved and told."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from exportdoctor.cli.error_output import say, tell
from exportdoctor.cli.interruption import Interruption
from exportdoctor.cli.progress import progress_for
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core import events as ev
from exportdoctor.core.errors import ExitCode, ExportdoctorError
from exportdoctor.core.run_state import RunState
from exportdoctor.report import render
from exportdoctor.store.recording import Recorder
from exportdoctor.store.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How the user wants to be told."""

    as_json: bool = False
    quiet: bool = False


def follow(
    events: Generator[ev.AnyEvent], folder: RunFolder, state: RunState, *, manner: Manner
) -> tuple[RunState, int]:
    """Take `events` into `folder` and `state`; returns what is known at the end, and the exit code."""
    recorder = Recorder(folder)
    begun = time.time()
    with Interruption():
        stop = _take_in(events, recorder, state, manner=manner)
        if state.finished is None or stop is not None:
            ended = _ending(stop, begun)
            recorder.record(ended)
            state.apply(ended)
        recorder.write_report(state.report())
        if state.parts or stop is None:
            tell_result(state, None if recorder.trouble else folder.path, manner=manner)
    code = _stopped(stop, state) if stop else state.finished.exit_code if state.finished else ExitCode.INTERNAL
    if recorder.trouble is not None:
        code = tell(recorder.trouble)
    return state, code


def _take_in(
    events: Generator[ev.AnyEvent], recorder: Recorder, state: RunState, *, manner: Manner
) -> BaseException | None:
    """Record and show each event; returns what stopped them before their end, if anything did."""
    with progress_for(sys.stderr, quiet=manner.quiet) as progress:
        try:
            for event in recorder.recorded(events):
                progress.show(event, state.apply(event))
        except (Exception, KeyboardInterrupt) as stop:
            return stop
        finally:
            events.close()
    return None


def tell_result(state: RunState, path: Path | None, *, manner: Manner) -> None:
    """The report on stdout, and on stderr where it is kept, if it is."""
    report = state.report()
    form = "json" if manner.as_json else "text"
    write_out(render(report, form, style_of(sys.stdout)))
    if path is not None and not manner.quiet:
        say(f"saved in {path}")


def _stopped(stop: BaseException, state: RunState) -> int:
    """Say what stopped the run; returns its exit code."""
    if not isinstance(stop, KeyboardInterrupt):
        return tell(stop)
    run = state.started.run if state.started else ""
    say(f"interrupted; go on with: exportdoctor scan --resume {run}")
    return ExitCode.INTERRUPTED


def _ending(stop: BaseException | None, begun: float) -> ev.RunFinished:
    """The last event of a run that did not end by itself."""
    match stop:
        case KeyboardInterrupt():
            code, error = ExitCode.INTERRUPTED, "interrupted"
        case ExportdoctorError():
            code, error = stop.exit_code, stop.line()
        case None:
            code, error = ExitCode.INTERNAL, "the engine ended without a verdict"
        case _:
            code, error = ExitCode.INTERNAL, f"{type(stop).__name__}: {stop}"
    now = time.time()
    return ev.RunFinished(at=now, exit_code=code, seconds=now - begun, complete=False, error=error)
