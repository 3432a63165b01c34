"""Errors as a user sees them: one line on stderr each, and the exit code. The only place that writes a crash log."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import click

from exportdoctor.core.errors import ExitCode, ExportdoctorError, TargetError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.store.places import data_home

_STACK_LINES = 12


def tell(error: BaseException) -> int:
    """Say on stderr what went wrong, in one line; returns the exit code."""
    match error:
        case ExportdoctorError():
            tell_stack(error)
            say(error.line())
            return error.exit_code
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return ExitCode.USAGE
        case click.ClickException():
            say(_click_line(error))
            return ExitCode.USAGE
        case KeyboardInterrupt() | click.Abort():
            say("interrupted")
            return ExitCode.INTERRUPTED
        case SystemExit():
            return error.code if isinstance(error.code, int) else ExitCode.INTERNAL
        case _:
            return _tell_own_fault(error)


def say(line: str) -> None:
    """One line on stderr; a closed stderr is nobody's problem."""
    try:
        print(f"exportdoctor: {line}", file=sys.stderr, flush=True)
    except OSError:
        return


def tell_stack(error: ExportdoctorError) -> None:
    """The last lines of the target's own traceback, where the target is at fault."""
    stack = error.stack if isinstance(error, TargetError) else ()
    if not stack:
        return
    lines = [line for entry in stack for line in entry.rstrip("\n").split("\n")]
    left_out = len(lines) - _STACK_LINES
    if left_out > 0:
        lines = [f"  … {left_out} more lines", *lines[-_STACK_LINES:]]
    try:
        print("the target's own stack:", *lines, sep="\n", file=sys.stderr)
    except OSError:
        return


def _click_line(error: click.ClickException) -> str:
    """A usage error in one line, with the command that shows what is right."""
    message = " ".join(error.format_message().split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    return f"{message}. See: {context.command_path if context else 'exportdoctor'} --help"


def _tell_own_fault(error: BaseException) -> int:
    """A bug of ours: one line, and the traceback in a file that can be sent in."""
    if os.environ.get("EXPORTDOCTOR_DEBUG"):
        traceback.print_exception(error)
    path = _write_crash_log(error)
    line = first_line(error) or "no message"
    say(f"this is a fault of exportdoctor itself: {type(error).__name__}: {line}. Traceback: {path}")
    return ExitCode.INTERNAL


def _write_crash_log(error: BaseException) -> str:
    """Write the traceback where it can be written; returns the file's path."""
    text = "".join(traceback.format_exception(error))
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}.txt"
    text = f"command: {sys.argv}\n\n{text}"
    for folder in (data_home() / "crashes", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"exportdoctor-{name}").write_text(text, encoding="utf-8")
        except OSError:
            continue
        return str(folder / f"exportdoctor-{name}")
    return "nowhere could be written; EXPORTDOCTOR_DEBUG=1 shows it"
