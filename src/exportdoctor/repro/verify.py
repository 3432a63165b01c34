"""Verifies a finished script: runs it in a fresh interpreter, in another folder, and compares how it fails.

It reads what a user would see: the traceback on stderr, the signal, or that nothing happens any more.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from exportdoctor.core.failure.identity import NameFreeSignature
from exportdoctor.core.failure.kinds import KIND_OF_STATUS, FailureKind
from exportdoctor.core.failure.messages import without_names
from exportdoctor.core.limits import IDLE_ATTEMPT, script_limits
from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.process.group import die_with_parent, name_exit
from exportdoctor.process.supervise import Limits, supervise

_TRACEBACK = "Traceback (most recent call last):\n"
_CAUSED = "The above exception was the direct cause of the following exception:"


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
        with open(errors, "wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-I", "-X", "faulthandler", str(path)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                process_group=0,
                preexec_fn=die_with_parent,
            )
        seconds, memory_mb = script_limits(wanted.kind)
        killed = supervise(process, Limits(wall=seconds, idle=IDLE_ATTEMPT, memory_mb=memory_mb))
        status = killed.status if killed else None
        return _compare(wanted, process.returncode, status, errors.read_text(errors="replace"))


def _compare(wanted: NameFreeSignature, code: int, killed: OutcomeStatus | None, output: str) -> Sighting:
    if killed is not None:
        return Sighting(wanted.kind == KIND_OF_STATUS[killed], died=killed, output=output)
    if code <= 0 or _TRACEBACK not in output:
        end = name_exit(code)
        same = wanted.kind == FailureKind.CRASH and wanted.exceptions == (end,)
        return Sighting(same, died="" if code == 0 else end, output=output)
    name, message = read_exception(output)
    chain = output.split(_TRACEBACK)[1:]
    links = sum(1 for block in chain if _CAUSED in block)
    same = (
        bool(wanted.exceptions)
        and _printed_name(wanted.exceptions[0]) == name
        and without_names(message) == wanted.message
        and links >= len(wanted.exceptions) - 1
    )
    return Sighting(same, exception=name, message=message, output=output)


def read_exception(output: str) -> tuple[str, str]:
    """The last exception of a printed traceback: its name as printed, and its message with all its lines."""
    lines = output.rpartition(_TRACEBACK)[2].splitlines()
    for index, line in enumerate(lines):
        found = re.match(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$", line)
        if found and not line.startswith(" "):
            return found[1], "\n".join([found[2] or "", *lines[index + 1 :]]).strip("\n")
    return "", ""


def _printed_name(name: str) -> str:
    """How Python prints an exception of that qualified name."""
    return name.removeprefix("builtins.")
