"""A worker's stdin, stdout and stderr: lines of JSON to its client, logs for what is printed, stacks of crashes."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import resource
import signal
import sys

from exportdoctor.core.codec import encode
from exportdoctor.process.descendants import adopt_orphans
from exportdoctor.process.group import die_with_parent

leave = os._exit
"""Ends this process at once; kept here, for the target's code may replace `os._exit`."""


def take_line_streams() -> tuple[int, int]:
    """The descriptors of requests and replies: stdin and the old stdout. Prints go to stderr from now on,
    and whatever reads stdin finds it empty. Dies with the parent.
    """
    die_with_parent()
    adopt_orphans()
    requests, replies = os.dup(0), os.dup(1)
    read_nothing()
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, replies


def read_nothing() -> None:
    """Let whatever reads stdin find it empty."""
    null = os.open(os.devnull, os.O_RDONLY)
    if null:
        os.dup2(null, 0)
        os.close(null)


def write_line(descriptor: int, message: object) -> None:
    """Write one line of JSON, whole."""
    data = memoryview(encode(message) + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


def write_stacks_to(log: int) -> None:
    """A crash, or SIGUSR1 before a kill, leaves the Python stack in the file `log`; no core file is written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(file=log, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=log, all_threads=False, chain=False)


def send_output_to(path: str | None) -> int:
    """Point stdout and stderr at the file `path` (at nothing where it cannot be opened); returns its descriptor."""
    try:
        log = os.open(path or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = ForgivingStream(2)  # type: ignore[assignment]
    _move_log_handlers()
    return log


def _move_log_handlers() -> None:
    """Let handlers of `logging` write to stderr as it is now, unless they write to a file of their own: their streams
    may be those of a notebook or of pytest, which write elsewhere than to descriptors 1 and 2."""
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for handler in [one for logger in loggers for one in getattr(logger, "handlers", ())]:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.stream = sys.stderr  # setStream would flush the stream of another process


class ForgivingStream(io.TextIOBase):
    """A text stream that drops what cannot be written: a full disk is no failure of the module that is attempted.

    torch prints the partial graph of a failing export, and an error from that print would take the failure's place.
    """

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode(errors="replace"))
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor
