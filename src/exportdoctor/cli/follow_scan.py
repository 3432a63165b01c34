"""Follows a scan to its end: records each event, then shows it. However it ends, results are saved and printed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from exportdoctor.cli.baseline_check import ACCEPT, BaselineCheck
from exportdoctor.cli.error_output import print_error, print_line
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.errors import ExitCode, ExportdoctorError, UsageError
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import RunState
from exportdoctor.report import render, wording
from exportdoctor.report.live.progress import LineProgress, Progress
from exportdoctor.report.markdown_text import escape_line
from exportdoctor.report.plain_text import render_end
from exportdoctor.report.wording.baselines import baseline_lines
from exportdoctor.store.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How results and progress are printed."""

    form: str = "text"
    quiet: bool = False
    check: BaselineCheck = field(default_factory=BaselineCheck)


def follow(
    events: Generator[ev.AnyEvent], folder: RunFolder, state: RunState, *, output: OutputOptions
) -> tuple[RunState, int]:
    """Record `events` in `folder` and apply them to `state`; returns the state at the end, and the exit code."""
    began = time.time()
    stop = _consume(events, folder, state, output=output)
    if state.finished is None or stop is not None:
        end = _end_event(stop, began)
        folder.record(end)
        state.apply(end)
    folder.record_report(state.report())
    if stop is None or (state.parts and not isinstance(stop, UsageError)):
        print_result(state, None if folder.trouble else folder.path, output=output)
    code = _report_stop(stop, state) if stop else state.finished.exit_code if state.finished else ExitCode.INTERNAL
    if folder.trouble is not None:
        code = print_error(folder.trouble)
    elif stop is None:
        code = output.check.judge(state, code)
    return state, code


def _consume(
    events: Generator[ev.AnyEvent], folder: RunFolder, state: RunState, *, output: OutputOptions
) -> BaseException | None:
    """Record and show each event; returns what stopped them before their end, if anything did."""
    with _progress_for(sys.stderr, quiet=output.quiet) as progress:
        try:
            for event in folder.record_all(events):
                progress.show(event, state.apply(event))
        except (Exception, KeyboardInterrupt) as stop:
            return stop
        finally:
            events.close()
    return None


def _progress_for(stream: TextIO, *, quiet: bool) -> Progress:
    """The display that suits `stream`."""
    if quiet:
        return Progress()
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from exportdoctor.report.live.live_display import LiveDisplay

        return LiveDisplay(stream)
    return LineProgress(stream)


def print_result(state: RunState, path: Path | None, *, output: OutputOptions) -> None:
    """The report on stdout; on stderr the run's folder, if it was saved. No command tells more of one that was not."""
    report = state.report()
    style = style_of(sys.stdout)
    difference = output.check.difference(state)
    known = frozenset(one.id for one in report.findings if difference is not None and difference.knows(one))
    further = render_end(report, style) if output.form == "text" and path is not None else ""
    write_out(render(report, output.form, style, known=known) + further)
    if output.form == "github" and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
        beside = baseline_lines(difference, accept=ACCEPT) if difference is not None else ()
        with open(summary, "a", encoding="utf-8") as file:
            file.write("".join(f"- {escape_line(line)}\n" for line in beside) + "\n" * bool(beside))
            file.write(render(report, "md"))
    if path is not None and not output.quiet:
        print_line(f"saved in {path}")


def _report_stop(stop: BaseException, state: RunState) -> int:
    """Print what stopped the run; returns its exit code."""
    if not isinstance(stop, KeyboardInterrupt):
        return print_error(stop)
    if state.parts and sys.stdout.isatty():  # the report above ends with that command
        print_line("interrupted")
        return ExitCode.INTERRUPTED
    run = state.started.run if state.started else ""
    print_line(f"interrupted. Continue with: {wording.resume_command(run)}")
    return ExitCode.INTERRUPTED


def _end_event(stop: BaseException | None, began: float) -> ev.RunFinished:
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
    return ev.RunFinished(at=now, exit_code=code, seconds=now - began, complete=False, error=error)
