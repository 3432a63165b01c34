"""Prints errors on stderr, one line each, gives their exit codes, and saves the traceback of an internal error."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import click

from exportdoctor.core.errors import (
    MORE_PROCESSES,
    ExitCode,
    ExportdoctorError,
    TargetError,
    WorkerFailed,
    did_you_mean,
)

_STACK_LINES = 12
_LONGEST_LINE = 1000
_REFUSED = frozenset(
    {errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ELOOP, errno.ENOTDIR,
     errno.EISDIR, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.ENXIO, errno.EINVAL}
)  # fmt: skip
"""What the operating system says of a path or a disk: nothing that exportdoctor could do better."""
_NO_PROCESS = (str(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))), "can't start new thread")
"""What a fork and the start of a thread raise where a limit is reached."""


def print_error(error: BaseException) -> int:
    """Print on stderr what went wrong, in one line; returns the exit code."""
    match error:
        case WorkerFailed():
            print_line(f"{error.line()} Traceback: {_write_crash_log(os.linesep.join(error.stack))}")
            return error.exit_code
        case ExportdoctorError():
            _print_target_stack(error)
            print_line(error.line())
            return error.exit_code
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return ExitCode.USAGE
        case click.ClickException():
            print_line(_click_line(error))
            return ExitCode.USAGE
        case click.Abort() if isinstance(error.__cause__, EOFError):  # click takes it for the end of a prompt
            return _print_internal_error(error.__cause__)
        case KeyboardInterrupt() | click.Abort():
            print_line("interrupted")
            return ExitCode.INTERRUPTED
        case OSError() if error.errno in _REFUSED:
            print_line(f"{error.strerror}: {error.filename!r}" if error.filename else f"{error.strerror}")
            return ExitCode.USAGE
        case BlockingIOError() | RuntimeError() if str(error) in _NO_PROCESS:
            print_line(f"no further process or thread can be started. {MORE_PROCESSES}")
            return ExitCode.USAGE
        case SystemExit():
            return error.code if isinstance(error.code, int) else ExitCode.INTERNAL
        case _:
            return _print_internal_error(error)


def print_line(line: str) -> None:
    """One line on stderr; a closed stderr is ignored."""
    _print_lines(f"exportdoctor: {' '.join(line.split())}")


def _print_lines(*lines: str) -> None:
    """Lines on stderr in which nothing controls the terminal, each of a length that a reader can take."""
    from exportdoctor.report.wording.formatting import plain

    with suppress(OSError, ValueError):
        print(*(plain(line)[:_LONGEST_LINE] for line in lines), sep="\n", file=sys.stderr, flush=True)


def _print_target_stack(error: ExportdoctorError) -> None:
    """The last lines of the model's own traceback, if its code raised the error."""
    stack = error.stack if isinstance(error, TargetError) else ()
    if not stack:
        return
    lines = [line for entry in stack for line in entry.rstrip("\n").split("\n")]
    left_out = len(lines) - _STACK_LINES
    if left_out > 0:
        lines = [f"  … {left_out} more lines", *lines[-_STACK_LINES:]]
    _print_lines("Traceback of the model's code:", *lines)


def _click_line(error: click.ClickException) -> str:
    """A usage error in one line, with the command that shows the help."""
    message = " ".join(error.format_message().split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    if isinstance(error, click.BadParameter | click.exceptions.NoSuchCommand):
        message += f". {_near(message, context)}".rstrip(". ")
    end = "" if message.endswith("?") else "."
    return f"{message}{end} See: {context.command_path if context else 'exportdoctor'} --help"


def _near(message: str, context: click.Context | None) -> str:
    """The choices or verbs that come near what was typed, where click does not name them itself."""
    typed = re.search(r"'([^']*)' is not one of (.+)$|No such command '([^']*)'$", message)
    if typed is None:
        return ""
    group = context.command if context is not None else None
    known = re.findall(r"'([^']*)'", typed[2] or "")
    if isinstance(group, click.Group) and context is not None and not known:
        known = group.list_commands(context)
    return did_you_mean(typed[1] or typed[3], known)


def _print_internal_error(error: BaseException) -> int:
    """A bug of ours: one line, and the traceback in a file that can be attached to an issue."""
    from exportdoctor.core.failure.messages import first_line  # here and below: --help needs none of this

    if os.environ.get("EXPORTDOCTOR_DEBUG"):
        traceback.print_exception(error)
    path = _write_crash_log("".join(traceback.format_exception(error)))
    first = first_line(error) or "no message"
    print_line(f"internal error, please report it: {type(error).__name__}: {first}. Traceback: {path}")
    return ExitCode.INTERNAL


def _write_crash_log(text: str) -> str:
    """Write a traceback to the first folder that takes it; returns the file's path."""
    from exportdoctor.store.places import data_home

    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}.txt"
    text = f"command: {sys.argv}\n\n{text}"
    for folder in (data_home() / "crashes", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"exportdoctor-{name}").write_text(text, encoding="utf-8")
        except OSError:
            continue
        return str(folder / f"exportdoctor-{name}")
    return "could not be saved; set EXPORTDOCTOR_DEBUG=1 to print it"
