"""Has the worker (worker/export/export_server.py) make the files of an export."""

from __future__ import annotations

import os
from collections.abc import Callable

from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.protocol.export import ExportProgress, ExportReply, ExportRequest, ExportResult
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.process.client import LineClient, spawn
from exportdoctor.process.group import name_exit


def request_export(request: ExportRequest, doing: Callable[[str], None]) -> ExportResult:
    """What the worker made. Raises the error that it refuses with, WorkerLost where it died."""
    with spawn("worker.export.export_server", log=None) as client:
        client.send(request)
        for reply in client.listen(ExportReply):
            match reply:
                case ExportProgress(what=what):
                    doing(what)
                case ExportResult():
                    return reply
                case Refused():
                    raise reply.to_error()
        hint = "" if os.environ.get("EXPORTDOCTOR_DEBUG") else "EXPORTDOCTOR_DEBUG=1 shows what it printed"
        raise WorkerLost(f"The export process has ended{_describe_end(client)}", hint=hint)


def _describe_end(client: LineClient) -> str:
    """By which signal, if by one: SIGKILL most often means that memory ran out."""
    name = name_exit(client.wait())
    if not name.startswith("SIG"):
        return ""
    return " (killed: out of memory?)" if name == "SIGKILL" else f" ({name})"
