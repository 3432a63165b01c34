"""Process groups, death with the parent, and how a process ended. Every process of ours leads its own group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# looked up at import: between fork and exec nothing may be loaded
PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
"""The C function, None where there is none."""


def die_with_parent() -> None:
    """On Linux, have the kernel kill this process when its parent dies; elsewhere a closed pipe has to do.

    For the kernel the parent is the thread that started it (prctl(2), PR_SET_PDEATHSIG): `start_from_lasting_thread`.
    """
    if PRCTL is not None:
        PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start_from_lasting_thread(start: Callable[[], T]) -> T:
    """What `start` returns, which starts a process that dies with its parent and may outlive the thread that asks."""
    if threading.current_thread() is threading.main_thread():
        return start()
    return _starter().submit(start).result()


@cache
def _starter() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="starter")


os.register_at_fork(after_in_child=_starter.cache_clear)  # a fork has one thread: that in which it was made


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
