"""Ends what a process has started, also what has left its process group. On Linux; elsewhere nothing is found.

A process of ours adopts the orphans among its descendants, so that all of them stand below it while it lives. What
outlives it is found by a mark: copies of it inherit a mapping with that name, other programs a variable.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import psutil

from exportdoctor.process.group import PRCTL, kill_group

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_VARIABLE = "EXPORTDOCTOR_MARKS"
_ROUNDS = 20
"""At most so many looks for what was started while others were killed."""
_MAPPINGS: list[mmap.mmap] = []
_adopters: set[int] = set()
"""The process that adopts orphans, this one or the one of which it is a copy."""


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends."""
    if PRCTL is not None:
        PRCTL(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _adopters.add(os.getpid())


def new_mark() -> str:
    """A name that no other process has."""
    return f"exportdoctor-{uuid4().hex}"


def with_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """The variables for a program that is started, and for whatever that starts."""
    return {**environment, _VARIABLE: f"{environment.get(_VARIABLE, '')} {mark}".strip()}


def mark_this_process(mark: str) -> None:
    """Mark a copy of another process, and whatever it starts from now on."""
    os.environ.update(with_mark(os.environ, mark))
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            file = os.memfd_create(mark)
            os.truncate(file, mmap.PAGESIZE)
            _MAPPINGS.append(mmap.mmap(file, mmap.PAGESIZE))
            os.close(file)


def kill_marked(mark: str) -> None:
    """Kill whatever has the mark."""
    for _ in range(_ROUNDS):
        found = list(_find_marked(mark.encode()))
        if not found:
            return
        for pid in found:
            _kill(pid)


def _find_marked(mark: bytes) -> Iterator[int]:
    for pid in psutil.pids() if Path("/proc/self/environ").exists() else ():
        with contextlib.suppress(OSError):
            folder = Path("/proc", str(pid))
            if folder.stat().st_uid != os.getuid():
                continue
            if mark in (folder / "environ").read_bytes() or mark in (folder / "maps").read_bytes():
                yield pid


def kill_below(pid: int) -> None:
    """Stop a process and kill all that it has started; the process itself stays to be killed."""
    with contextlib.suppress(psutil.Error, OSError):
        os.kill(pid, signal.SIGSTOP)  # it starts no more
        top = psutil.Process(pid)
        for _ in range(_ROUNDS):
            alive = [one for one in top.children(recursive=True) if _runs(one)]
            if not alive:
                return
            for one in alive:
                _kill(one.pid)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def own_children() -> set[int]:
    """The processes whose parent this one is."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, file.read_text().split()))
    return found


def kill_other_children(expected: set[int]) -> None:
    """Kill and reap every child but those; what such a one has started is a child once it has ended.

    Nothing in a process that adopts no orphans: all of its children are its own.
    """
    if os.getpid() not in _adopters:
        return
    for _ in range(_ROUNDS):
        found = own_children() - expected
        if not found:
            return
        for pid in found:
            _kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    kill_group(pid)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
