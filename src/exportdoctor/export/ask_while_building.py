"""One request to a process that builds the target, runs it and goes on: kept within limits as long as it builds."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from exportdoctor.core.errors import TargetError, WorkerLost
from exportdoctor.core.protocol.export import OTHER_INPUTS_STEP, SCRATCH, ExportProgress, ExportSoFar
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.process.client import spawn
from exportdoctor.process.group import name_exit
from exportdoctor.process.supervise import Limits, Supervisor, keep_within, limits_of_other_inputs
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

    The limits, if any, hold until it has told of more than so many `steps`; in the second it runs `part` in eager. The
    other inputs together may take longer, and so may the sizes that are tried when there is a result.
    Raises TargetError where the target's code ends the process or exceeds them, WorkerLost where it ends before its
    first step. Where it ends after it has told a result so far, that is the answer, with a note of its end.
    """
    told, step, so_far, supervisor = 0, "", None, None
    with (
        TemporaryDirectory(prefix="exportdoctor-", ignore_cleanup_errors=True) as scratch,
        spawn(server, log=None, environment={SCRATCH: scratch}) as client,
        ExitStack() as watch,
    ):

        def keep(within: Limits) -> Supervisor:
            watch.close()
            return watch.enter_context(keep_within(client.pid, within))

        client.send(request)
        if limits is not None:
            supervisor = keep(limits)
        for reply in client.listen(kind):
            match reply:
                case ExportProgress(what=what):
                    told, step = told + 1, what
                    if limits is not None and what == OTHER_INPUTS_STEP:
                        supervisor = keep(limits_of_other_inputs(limits))
                    elif told > steps and so_far is None:
                        watch.close()
                    doing(what)
                case ExportSoFar(result=found):
                    so_far = found
                    if limits is not None:
                        supervisor = keep(replace(limits_of_other_inputs(limits), memory_mb=None))
                case Refused() if so_far is not None:
                    return _with_end(so_far, reply.message)
                case Refused():
                    raise reply.to_error()
                case _:
                    return reply
        end = name_exit(client.wait())
    reason = supervisor.kill_reason if supervisor is not None else None
    if so_far is not None:
        return _with_end(so_far, export_ended(reason.signal if reason is not None else end, step))
    where = part if told > 1 else ""
    hint = "" if os.environ.get("EXPORTDOCTOR_DEBUG") else "EXPORTDOCTOR_DEBUG=1 shows what it printed"
    if reason is not None:
        message = build_killed(
            where, reason.signal, seconds=reason.seconds, memory_mb=reason.memory_mb, limit_mb=reason.limit_mb
        )
        raise TargetError(message, hint=hint)
    if told:
        raise TargetError(export_ended(end, step) if told > steps else build_ended(where, end), hint=hint)
    raise WorkerLost(export_ended(end, step), hint=hint)


def _with_end(so_far: Any, end: str) -> Any:
    return msgspec.structs.replace(so_far, notes=(*so_far.notes, sizes_not_tried(end)))
