"""Small facts of the operating system that a worker relies on: process groups, death with the parent, crash stacks."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """On Linux, ask the kernel to kill this process when its parent dies; elsewhere a closed pipe must do."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def lead_a_group() -> None:
    """Make this process its own group, so that it is killed together with whatever it starts."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


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
    sys.stdout = sys.stderr = _Forgiving(2)  # type: ignore[assignment]
    return log


class _Forgiving(io.TextIOBase):
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
