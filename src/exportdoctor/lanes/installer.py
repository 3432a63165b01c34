"""Installs packages by uv where it is there, else by pip. Raises InstallError with the installer's own reason.

Wheels only: to build a package from its source takes minutes, tools and its author's code.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from exportdoctor.core.errors import ExportdoctorError, UsageError
from exportdoctor.core.failure.messages import TRACEBACK
from exportdoctor.lanes.releases import list_releases, near_versions
from exportdoctor.process.group import die_with_parent, kill_group

_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_WHEELS = "--only-binary=:all:"
_UNKNOWN = re.compile(r"there is no version of ([\w.-]+)==(\S+)")
"""uv's words, which name no other version."""
_CONFLICT = re.compile(r"^The conflict is caused by:\n((?:[ \t]+\S.*\n)+)", re.M)
"""pip's words, on stdout."""


class InstallError(ExportdoctorError):
    """What the installer said."""


class _Metadata(msgspec.Struct):
    name: str
    version: str


class _Install(msgspec.Struct):
    metadata: _Metadata


class _PipReport(msgspec.Struct):
    install: list[_Install]


def find_changes(requirements: Sequence[str]) -> tuple[str, ...]:
    """What must be installed beside this environment so that it has these packages, with what they need, as pins."""
    if uv := shutil.which("uv"):
        said = _run([uv, "pip", "install", "--dry-run", _WHEELS, "--python", sys.executable, *requirements])
        return tuple(re.findall(r"^ \+ (\S+==\S+)$", said, re.M))
    said = _run([*_pip(), "--dry-run", "--quiet", "--report", "-", *requirements])
    try:
        report = msgspec.json.decode(said[said.index("{") :].encode(), type=_PipReport)
    except (ValueError, msgspec.MsgspecError) as error:
        raise InstallError("pip gives no report; pip 22.2 or later does", hint="Upgrade pip, or install uv") from error
    return tuple(f"{one.metadata.name}=={one.metadata.version}" for one in report.install)


def install_overlay(pins: Sequence[str], folder: Path) -> None:
    """Install exactly these, without what they need, into a folder for PYTHONPATH."""
    where = ["--no-deps", "--target", str(folder)]
    uv = shutil.which("uv")
    command = [uv, "pip", "install", _WHEELS, "--python", sys.executable] if uv else _pip()
    _run([*command, *where, *pins])


def install_environment(requirements: Sequence[str], folder: Path) -> None:
    """Make an environment of its own with these packages and all that they need."""
    python = str(folder / "bin" / "python")
    if uv := shutil.which("uv"):
        _run([uv, "venv", "--python", sys.executable, str(folder)])
        _run([uv, "pip", "install", _WHEELS, "--python", python, *requirements])
        return
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([*_pip(python), *requirements])


def _pip(python: str = sys.executable) -> list[str]:
    return [python, "-m", "pip", "install", "--disable-pip-version-check", _WHEELS]


def _run(command: list[str]) -> str:
    """What it prints on stdout and, for uv, stderr. It and what it starts end with us."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=die_with_parent,
    )
    try:
        out, errors = process.communicate()
    finally:
        if process.poll() is None:
            kill_group(process.pid)
            process.wait()
    if process.returncode:
        raise InstallError(_reason(out, errors, process.returncode))
    return out if command[0] == sys.executable else out + errors


def _reason(out: str, errors: str, code: int) -> str:
    """The line that says why; the versions that exist are not listed, the near ones are named."""
    if conflict := _CONFLICT.search(out):
        return "these requirements exclude each other: " + "; ".join(line.strip() for line in conflict[1].splitlines())
    known = re.search(r"No matching distribution found for (\S+?)==(\S+)", errors)
    versions = re.search(r"\(from versions: ([^)]*)\)", errors)
    if known and versions:
        there = [one for one in versions[1].split(", ") if one != "none"]
        if not there:
            return f"no index that can be reached has a wheel of {known[1]} for this Python"
        return f"there is no wheel of {known[1]} {known[2]} for this Python. {near_versions(known[2], there)}"
    if known := _UNKNOWN.search(errors):
        with suppress(UsageError):
            return f"there is no wheel of {known[1]} {known[2]} for this Python. " + near_versions(
                known[2], list_releases(known[1])[0]
            )
    if full := next((said for said in _FULL if said in errors), ""):
        return f"the disk is full: {full}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"(ERROR|error|cause|×|╰)", line, re.I) and TRACEBACK not in errors]
    said = said or lines[-1:]
    if code == -signal.SIGKILL:
        return "the installer was killed"
    return " ".join(" ".join(said)[:600].split()) or f"the installer ended with exit code {code}"
