"""Does something in a forked copy of this process first, to see that it raises nothing and ends."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable
from dataclasses import dataclass

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.process.descendants import kill_marked, mark_this_process, new_mark
from exportdoctor.process.group import die_with_parent, kill_group, lead_group, name_exit
from exportdoctor.process.supervise import TICK, KillReason, Limits, Supervisor

_DONE = b"done"
_leave = os._exit  # what is rehearsed may replace it


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """How it went. `error` is the line of an error of ours; `killed` why it was stopped; `end` how the copy ended."""

    error: str = ""
    killed: KillReason | None = None
    end: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether it may be done here."""
        return not (self.error or self.killed or self.end)


def rehearse(work: Callable[[], object], limits: Limits) -> Rehearsal:
    """Do `work` in a copy that prints nothing and dies with this process. Without `os.fork` nothing is rehearsed."""
    if not hasattr(os, "fork"):
        return Rehearsal()
    reader, writer = os.pipe()
    mark = new_mark()
    pid = os.fork()
    if pid == 0:
        _run_copy(work, writer, mark)
    os.close(writer)
    supervisor = Supervisor(pid, limits)
    said, ended = b"", 0
    with contextlib.closing(os.fdopen(reader, "rb", buffering=0)) as stream:
        while not ended:
            if select.select([stream], [], [], TICK)[0]:
                said += stream.read(1 << 16) or b""
            supervisor.look()
            ended, status = os.waitpid(pid, os.WNOHANG)
        while select.select([stream], [], [], 0)[0] and (more := stream.read(1 << 16)):
            said += more
    kill_group(pid)
    kill_marked(mark)
    if supervisor.kill_reason is not None:
        return Rehearsal(killed=supervisor.kill_reason)
    if said == _DONE:
        return Rehearsal()
    return (
        Rehearsal(error=said.decode(errors="replace"))
        if said
        else Rehearsal(end=name_exit(os.waitstatus_to_exitcode(status)))
    )


def _run_copy(work: Callable[[], object], writer: int, mark: str) -> None:
    """Never returns."""
    process = os.getpid()
    try:
        lead_group()
        die_with_parent()
        mark_this_process(mark)
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        try:
            work()
            said = _DONE
        except ExportdoctorError as error:
            said = error.line().encode(errors="backslashreplace")
        if os.getpid() == process:
            os.write(writer, said)
    finally:
        _leave(0)
