"""Keeps the verdict of each candidate on disk, so that a reduction that was interrupted judges nothing twice.

One JSON line for each verdict, and for each script worth looking at again; a torn last line is dropped. The first
line is a digest of the failure and the versions for which the verdicts hold: with others the file begins anew.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import suppress
from pathlib import Path

from exportdoctor.reduce import Verdict

_KEPT = "kept"


class VerdictLog:
    """Verdicts by the digest of their source, in the file at `path`, or only in memory where that is None. Thread-safe.

    `kept` are the scripts of an earlier reduction that were worth looking at again, the latest last.
    """

    def __init__(self, path: Path | None, *, holds_for: str = "") -> None:
        self._path = path
        self._known: dict[str, Verdict] = {}
        self._lock = threading.Lock()
        self.kept: list[str] = []
        if path is not None:
            self._open(path, holds_for)

    def _open(self, path: Path, holds_for: str) -> None:
        head = json.dumps({"holds_for": hashlib.sha256(holds_for.encode()).hexdigest()[:16]})
        lines = []
        with suppress(OSError):
            lines = path.read_text(encoding="utf-8").splitlines()
        if not lines or lines[0] != head:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(head + "\n", encoding="utf-8")
            return
        for line in lines[1:]:
            with suppress(ValueError, AttributeError):
                ((key, text),) = json.loads(line).items()
                if key == _KEPT:
                    self.kept.append(text)
                else:
                    self._known[key] = Verdict(text)

    def verdict_of(self, source: str) -> Verdict | None:
        """The verdict of `source`; None where there is none yet."""
        with self._lock:
            return self._known.get(_digest(source))

    def note(self, source: str, verdict: Verdict) -> None:
        """Remember a verdict; a full disk costs a resumed run some candidates and nothing else."""
        with self._lock:
            self._known[_digest(source)] = verdict
            self._append(_digest(source), verdict.value)

    def keep(self, source: str) -> None:
        """Remember a script for a later run that resumes this reduction."""
        with self._lock:
            if source not in self.kept:
                self._append(_KEPT, source)

    def _append(self, key: str, text: str) -> None:
        if self._path is not None:
            with suppress(OSError), open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps({key: text}) + "\n")


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:20]
