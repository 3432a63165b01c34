"""Verifies a finished script: runs it in a fresh interpreter, in another folder, and compares how it fails.

It reads what a user would see: the traceback on stderr, the signal, or that nothing happens any more.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from exportdoctor.core.failure.identity import NameFreeSignature
from exportdoctor.core.failure.kinds import KIND_OF_STATUS, FailureKind
from exportdoctor.core.failure.messages import (
    TRACEBACK,
    exception_in_text,
    says_other_numbers,
    without_arithmetic,
    without_names,
)
from exportdoctor.core.limits import IDLE_ATTEMPT
from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.process.group import name_exit
from exportdoctor.process.supervise import Limits, run_within
from exportdoctor.repro.kind_limits import script_limits

_CAUSED = "The above exception was the direct cause of the following exception:"
_WHILE_HANDLED = "During handling of the above exception, another exception occurred:"


@dataclass(frozen=True)
class Sighting:
    """What a fresh run showed: its exception (printed name, message, number of causes), or how it died."""

    verified: bool
    exception: str = ""
    message: str = ""
    died: str = ""
    output: str = ""


def verify(script: str, wanted: NameFreeSignature) -> Sighting:
    """Run `script` by `python -I` in a folder of its own, within its kind's limits, and compare it with `wanted`."""
    with tempfile.TemporaryDirectory(prefix="exportdoctor-") as folder:
        path = Path(folder) / "repro.py"
        path.write_text(script, encoding="utf-8")
        errors = Path(folder) / "stderr"
        seconds, memory_mb = script_limits(wanted.kind)
        with open(errors, "wb") as stream:
            code, killed = run_within(
                [sys.executable, "-I", "-X", "faulthandler", str(path)],
                Limits(wall=seconds, idle=IDLE_ATTEMPT, memory_mb=memory_mb),
                folder=Path(folder),
                errors=stream,
            )
        status = killed.status if killed else None
        return _compare(wanted, code, status, errors.read_text(errors="replace"))


def _compare(wanted: NameFreeSignature, code: int, killed: OutcomeStatus | None, output: str) -> Sighting:
    if killed is not None:
        return Sighting(wanted.kind is KIND_OF_STATUS[killed], died=killed, output=output)
    interrupted = code == -signal.SIGINT  # Python ends so, too, where nothing catches a KeyboardInterrupt
    if (code <= 0 and not interrupted) or TRACEBACK not in output:
        end = name_exit(code)
        same = wanted.kind is FailureKind.CRASH and wanted.exceptions == (end,)
        return Sighting(same, died="" if code == 0 else end, output=output)
    name, message = exception_in_text(output)
    chain = output.split(TRACEBACK)[1:]
    if wanted.kind is FailureKind.TRANSLATE:  # the message is that of the cause
        causes = [exception_in_text(TRACEBACK + block.partition(_CAUSED)[0]) for block in chain]
        name, message = next((cause for cause in causes if _is_wanted(wanted, *cause)), (name, message))
    # dynamo takes the traceback away from a cause, which is then printed without its first line
    links = sum(1 for block in output.split(TRACEBACK) if _CAUSED in block or _WHILE_HANDLED in block)
    if wanted.kind is FailureKind.NUMBERS:
        return Sighting(says_other_numbers(message), exception=name, message=message, output=output)
    same = _is_wanted(wanted, name, message) and links >= len(wanted.exceptions) - 1
    return Sighting(same, exception=name, message=message, output=output)


def _is_wanted(wanted: NameFreeSignature, name: str, message: str) -> bool:
    printed = wanted.exceptions[0].removeprefix("builtins.") if wanted.exceptions else ""
    return bool(printed) and printed == name and without_arithmetic(without_names(message)) == wanted.message
