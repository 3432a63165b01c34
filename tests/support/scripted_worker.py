"""A scan worker without torch for tests/engine/test_pool.py: each attempt does what its submodule is called."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import msgspec

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.scan import (
    AttemptProbe,
    CallFact,
    Capture,
    Captured,
    Finished,
    ModuleFact,
    Open,
    Opened,
    Prepare,
    Prepared,
    Ready,
    ScanCommand,
    ScanReply,
    Started,
)
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef
from exportdoctor.worker.child import fork
from exportdoctor.worker.standard_streams import take_line_streams, write_line

OPENED = Opened(
    environment={}, parameters=0, weights="random", device="cpu", dtype="float32", isolation="fork", seconds=0.0,
    parts=("default",),
)  # fmt: skip


def attempt(probe: Probe, logs: Path, _: int) -> bytes:
    """What the child does."""
    with open(logs / "attempts", "a") as file:
        print(probe.fqn, file=file)
    match probe.fqn:
        case "kills its worker" | "kills its first worker":
            if "first" not in probe.fqn or (logs / "attempts").read_text().count(probe.fqn) == 1:
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(60)
        case "hangs":
            time.sleep(60)
        case "crashes":
            os.abort()
        case "raises garbage":
            return b"garbage"
    return encode(Outcome(probe=probe.id, status=OutcomeStatus.PASSED))


def answer(command: ScanCommand, logs: Path) -> ScanReply:
    """The reply to what is no attempt."""
    match command:
        case Open(shim_files=("refuse",)):
            return Refused(message="no such file", hint="look", fault="usage")
        case Open(target=TargetRef(ref="fails first")):
            return msgspec.structs.replace(OPENED, parts=("fails", "default"))
        case Open():
            return OPENED
        case Prepare(part=part):
            return Prepared(part=part, prefix="hangs", question="q")
        case Capture(part="kills its worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        case Capture(part="fails"):
            return Refused(message="the forward fails", fault="target", stack=("line",))
    root = ModuleFact(fqn="", class_name="Model", calls=(CallFact(question="q", group="g"),))
    return Captured(part="default", title="", prefix="", seconds=0.0, modules=(root,))


def main() -> None:
    """Serve, one attempt after the other."""
    requests, replies = take_line_streams()
    write_line(replies, Ready())
    logs = Path(os.environ["SCRIPTED_WORKER_LOGS"])
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            command: ScanCommand = decode(line, ScanCommand)
            if not isinstance(command, AttemptProbe):
                write_line(replies, answer(command, logs))
                continue
            probe = command.probe
            child = fork(partial(attempt, probe, logs), close=(replies,))
            write_line(replies, Started(probe=probe.id, pid=child.pid))
            write_line(replies, Finished(outcome=child.wait().outcome(probe.id)))


if __name__ == "__main__":
    main()
