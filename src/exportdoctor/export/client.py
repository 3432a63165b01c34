"""Starts the process that makes the files (worker/export/export_server.py) and hands its answer on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.protocol.export import ExportProgress, ExportReply, ExportRequest, ExportResult
from exportdoctor.core.protocol.reply import Refused

_ROOT = str(Path(__file__).resolve().parents[2])


def asked(order: ExportRequest, doing: Callable[[str], None]) -> ExportResult:
    """What the worker made. Raises UsageError and TargetError as the worker says, WorkerLost where it died."""
    process = _started()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write(encode(order) + b"\n")
            process.stdin.flush()
        for line in process.stdout:
            reply: ExportReply = decode(line, ExportReply)
            match reply:
                case ExportProgress(what=what):
                    doing(what)
                case ExportResult():
                    return reply
                case Refused():
                    raise reply.to_error()
        raise WorkerLost(f"The process that makes the files has ended{_how(process)}", hint=_told(process))
    finally:
        _end(process)


def _started() -> subprocess.Popen[bytes]:
    """A process that speaks in lines, leader of its own group. What libraries print goes nowhere but to its end."""
    environment = dict(os.environ)
    if _ROOT in sys.path:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, environment.get("PYTHONPATH"))))
    environment.setdefault("TRANSFORMERS_VERBOSITY", "error")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "exportdoctor.worker.export.export_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("EXPORTDOCTOR_DEBUG") else subprocess.DEVNULL,
        env=environment,
        process_group=0,
    )


def _how(process: subprocess.Popen[bytes]) -> str:
    """By which signal, if by one: SIGKILL most often means that memory ran out."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    code = process.returncode
    if code is None or code >= 0:
        return ""
    return " (killed: out of memory?)" if code == -9 else f" (signal {-code})"


def _told(process: subprocess.Popen[bytes]) -> str:
    return "" if os.environ.get("EXPORTDOCTOR_DEBUG") else "EXPORTDOCTOR_DEBUG=1 shows what it printed"


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, 9)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
