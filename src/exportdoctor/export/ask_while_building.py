"""One request to a process that builds the target, runs it and goes on: kept within limits as long as it builds."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec

from exportdoctor.core.errors import TargetError, WorkerLost
from exportdoctor.core.protocol.export import ExportProgress, ExportSoFar
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.process.client import spawn
from exportdoctor.process.group import name_exit
from exportdoctor.process.supervise import Limits, keep_within
from exportdoctor.report.wording import build_ended, build_killed, export_ended
from exportdoctor.report.wording.capture import sizes_not_tried


def ask_while_building(
    server: str,
    request: Any,
    kind: Any,
    limits: Limits | None,
    *,
    doing: Callable[[str], None] = lambda what: None,
    steps: int = 1,
    part: str = "",
) -> Any:
    """The answer to `request`, a reply of `kind`; `doing` hears of each step before. Raises what it refuses with.

    The limits, if any, hold until it has told of more than so many `steps`; in the second it runs `part` in eager.
    Raises TargetError where the target's code ends the process or exceeds them, WorkerLost where it ends before its
    first step. Where it ends after it has told a result so far, that is the answer, with a note of its end.
    """
    told, step, so_far = 0, "", None
    with spawn(server, log=None) as client, ExitStack() as building:
        client.send(request)
        supervisor = building.enter_context(keep_within(client.pid, limits)) if limits is not None else None
        for reply in client.listen(kind):
            match reply:
                case ExportProgress(what=what):
                    told, step = told + 1, what
                    if told > steps:
                        building.close()
                    doing(what)
                case ExportSoFar(result=found):
                    so_far = found
                case Refused():
                    raise reply.to_error()
                case _:
                    return reply
        end = name_exit(client.wait())
    if so_far is not None:
        return msgspec.structs.replace(so_far, notes=(*so_far.notes, sizes_not_tried(export_ended(end, step))))
    where = part if told > 1 else ""
    hint = "" if os.environ.get("EXPORTDOCTOR_DEBUG") else "EXPORTDOCTOR_DEBUG=1 shows what it printed"
    if supervisor is not None and (reason := supervisor.kill_reason):
        message = build_killed(
            where, reason.signal, seconds=reason.seconds, memory_mb=reason.memory_mb, limit_mb=reason.limit_mb
        )
        raise TargetError(message, hint=hint)
    if told:
        raise TargetError(export_ended(end, step) if told > steps else build_ended(where, end), hint=hint)
    raise WorkerLost(export_ended(end, step), hint=hint)
