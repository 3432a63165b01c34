"""Hears when code of the user's asks for the time or for chance: a profiler, for a reading of source code cannot know.

It costs every call something, and runs only once a file was opened that names a source of either (read_log.py).
"""

from __future__ import annotations

import datetime
import os
import random
import sys
import sysconfig
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

from exportdoctor.core.failure.frames import is_local_file

_CLOCKS = frozenset(
    {"time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime", "localtime", "gmtime",
     "strftime", "ctime", "asctime"}
)  # fmt: skip
_DATES = frozenset({"now", "utcnow", "today"})
_CHANCE = frozenset({"urandom", "getrandom", "getpid", "seed"})
_ASKING = _CLOCKS | {f"{name}_ns" for name in _CLOCKS} | _DATES | _CHANCE
_SEEDING = random.Random.seed.__code__
_PYTHON = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


@dataclass
class CallListener:
    """`tell` is given what was asked and in which file. `is_shared`: a profiler of ours hands its events to `hear`."""

    tell: Callable[[str], None]
    is_on: bool = False
    is_shared: bool = False

    def start(self) -> bool:
        """Listen from now on. False where that cannot be: another profiler runs, or this is not the main thread."""
        running = sys.getprofile()
        is_ours = running is None or running == self.hear or self.is_shared
        if not is_ours or threading.current_thread() is not threading.main_thread():
            return False
        self.is_on = True
        if running is None:
            sys.setprofile(self.hear)
        threading.setprofile(self.hear)
        return True

    @property
    def profile(self) -> Callable[[FrameType, str, Any], None] | None:
        """What `sys.setprofile` is to be given where nothing else listens."""
        return self.hear if self.is_on else None

    def was_stopped(self) -> bool:
        """Whether something has taken its place."""
        return self.is_on and sys.getprofile() != self.hear

    def hear(self, frame: FrameType, event: str, arg: Any) -> None:
        """One event of a profiler."""
        if not _ASKING:  # the interpreter ends, and has taken the names of this file away
            return
        if event == "c_call":
            name = getattr(arg, "__name__", "")
            source = _source_asked(name, getattr(arg, "__self__", None)) if name in _ASKING else None
        elif event == "call" and frame.f_code is _SEEDING and frame.f_locals.get("a") is None:
            source = "chance"
        else:
            return
        file = asking_file(frame, directly=source != "chance") if source is not None else None
        if file is not None:
            self.tell(f"{source}, in {os.path.basename(file)}")


def _source_asked(name: str, owner: Any) -> str | None:
    """What a builtin function gives that is another thing each time."""
    if isinstance(owner, type):
        return "the clock" if name in _DATES and issubclass(owner, datetime.date) else None
    if name == "seed":  # of a generator of torch, which then takes a new one
        return "chance" if type(owner).__module__.partition(".")[0] == "torch" else None
    module = getattr(owner, "__name__", "")
    if module == "time" and name in _ASKING:
        return "the clock"
    if module not in ("posix", "nt"):
        return None
    return "the process's number" if name == "getpid" else "chance"


def asking_file(frame: FrameType | None, *, directly: bool) -> str | None:
    """The user's file that asks, itself or (not `directly`) through Python's library and torch's `seed`."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith("<frozen importlib"):
            return None
        generated = path.startswith("<")
        if not generated and is_local_file(path):
            return path
        passes_on = _is_of_python(path) or frame.f_code.co_name == "seed"
        if not generated and (directly or not passes_on):
            return None
        frame = frame.f_back
    return None


@cache
def _is_of_python(path: str) -> bool:
    return path.startswith(_PYTHON) and "-packages" not in path
