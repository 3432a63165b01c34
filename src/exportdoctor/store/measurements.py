"""What was seen on which versions: a line for each answer of `matrix`, `bisect` and `retest` about a finding.

A script is known by a digest of its code, so that it is found again however its head is worded.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from exportdoctor.core.run.lane_matrix import CellState
from exportdoctor.core.run.measurement import Measurement
from exportdoctor.store.places import data_home

_NAME = "measurements.jsonl"


def note_measurement(script: str, issues: tuple[str, ...], versions: Mapping[str, str], state: CellState) -> None:
    """Keep an answer; where the disk refuses, it is not kept."""
    found = Measurement(
        script=code_digest(script) if script else "",
        issues=issues,
        versions=dict(versions),
        state=state,
        at=time.time(),
    )
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with open(_file(), "ab") as file:
            file.write(msgspec.json.encode(found) + b"\n")


def list_measurements() -> list[Measurement]:
    """The newest answer for each script or issue on each set of versions, oldest first; other lines are left out."""
    found: dict[tuple[object, ...], Measurement] = {}
    with suppress(OSError):
        for line in _file().read_bytes().splitlines():
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                one = msgspec.json.decode(line, type=Measurement)
                key = (one.script, one.issues, *sorted(one.versions.items()))
                found.pop(key, None)
                found[key] = one
    return list(found.values())


def code_digest(script: str) -> str:
    """The digest of a script's code: comments at its head and empty lines do not count."""
    lines = [line.rstrip() for line in script.splitlines() if line.strip()]
    first = next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return hashlib.sha256("\n".join(lines[first:]).encode()).hexdigest()[:32]


def _file() -> Path:
    return data_home() / _NAME
