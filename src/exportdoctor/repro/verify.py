"""Runs a finished script in a fresh interpreter, in another folder, and says whether it is still the same bug.

The only place that may call a repro verified. It reads what a user would see: the traceback on stderr, the signal, or
that nothing happens any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from exportdoctor.core.failure.kinds import KIND_OF_STATUS, FailureKind
from exportdoctor.core.outcome import OutcomeStatus
from exportdoctor.repro.repro_signature import Trait, anonymous

_TRACEBACK = "Traceback (most recent call last):\n"
_CAUSED = "The above exception was the direct cause of the following exception:"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_TICK = 0.1
_IDLE = 5.0  # seconds without using the processor after which a script counts as hanging


@dataclass(frozen=True)
class Sighting:
    """What a fresh run showed: its exception (printed name, message, number of causes), or how it died."""

    verified: bool
    exception: str = ""
    message: str = ""
    died: str = ""
    output: str = ""


def verify(script: str, wanted: Trait, *, timeout: float = 120.0, memory_mb: float = 1500.0) -> Sighting:
    """Run `script` by `python -I` in a folder of its own and compare what it shows with `wanted`."""
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
                preexec_fn=_die_with_parent,
            )
        fate = _watched(process, timeout=timeout, memory_mb=memory_mb)
        return _sighting(wanted, process.returncode, fate, errors.read_text(errors="replace"))


def _die_with_parent() -> None:
    """On Linux, a script that never ends does not outlive us, however we end. Runs in the child before the script."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watched(process: subprocess.Popen[bytes], *, timeout: float, memory_mb: float) -> OutcomeStatus | None:
    """Why it was killed; None where it ended by itself."""
    deadline, idle_since, worked = time.monotonic() + timeout, time.monotonic(), 0.0
    fate: OutcomeStatus | None = None
    watched = psutil.Process(process.pid)
    try:
        while process.poll() is None:
            time.sleep(_TICK)
            now = time.monotonic()
            with contextlib.suppress(psutil.Error):
                times = watched.cpu_times()
                if times.user + times.system > worked + 0.02 or watched.status() == psutil.STATUS_RUNNING:
                    worked, idle_since = times.user + times.system, now
                if watched.memory_info().rss > memory_mb * 2**20:
                    fate = OutcomeStatus.OUT_OF_MEMORY
            if now > deadline or now - idle_since > _IDLE:
                fate = fate or OutcomeStatus.TIMED_OUT
            if fate:
                break
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return fate


def _sighting(wanted: Trait, code: int | None, fate: OutcomeStatus | None, output: str) -> Sighting:
    if fate is not None:
        return Sighting(wanted.kind == KIND_OF_STATUS[fate], died=fate, output=output)
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return Sighting(wanted.kind == FailureKind.CRASH and wanted.exceptions == (name,), died=name, output=output)
    if code == 0 or _TRACEBACK not in output:
        same = wanted.kind == FailureKind.CRASH and wanted.exceptions == (f"exit code {code}",)
        return Sighting(same, died="" if code == 0 else f"exit code {code}", output=output)
    name, message = raised(output)
    chain = output.split(_TRACEBACK)[1:]
    links = sum(1 for block in chain if _CAUSED in block)
    same = (
        bool(wanted.exceptions)
        and _printed(wanted.exceptions[0]) == name
        and anonymous(message) == wanted.message
        and links >= len(wanted.exceptions) - 1
    )
    return Sighting(same, exception=name, message=message, output=output)


def raised(output: str) -> tuple[str, str]:
    """The last exception of a printed traceback: its name as printed, and its message with all its lines."""
    lines = output.rpartition(_TRACEBACK)[2].splitlines()
    for index, line in enumerate(lines):
        found = re.match(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$", line)
        if found and not line.startswith(" "):
            return found[1], "\n".join([found[2] or "", *lines[index + 1 :]]).strip("\n")
    return "", ""


def _printed(name: str) -> str:
    """How Python prints an exception of that qualified name."""
    return name.removeprefix("builtins.")
