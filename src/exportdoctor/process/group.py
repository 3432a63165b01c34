"""Process groups, death with the parent, and how a process ended. Every process of ours leads its own group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# looked up at import: between fork and exec nothing may be loaded
PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
"""The C function, None where there is none."""


def die_with_parent() -> None:
    """On Linux, have the kernel kill this process when its parent dies; elsewhere a closed pipe has to do."""
    if PRCTL is not None:
        PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def lead_group(pid: int = 0) -> None:
    """Make a process, by default this one, the leader of its own group, so that it dies with all that it started."""
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)


def kill_group(pid: int) -> None:
    """Kill a process and what is left of its group."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill all that this process has started, and what that has."""
    import psutil  # group.py is imported by every attempt

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def name_exit(code: int | None) -> str:
    """An exit status, as `subprocess` gives it, in words: `SIGSEGV`, `exit code 3`; None is `it vanished`."""
    if code is None:
        return "it vanished"
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
