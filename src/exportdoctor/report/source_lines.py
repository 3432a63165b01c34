"""The source around a frame's line, read from disk, and shown only if it still has the line that ran.

A run may come from another machine or environment: an installed file is then looked for in this one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exportdoctor.core.records.outcome import Frame

_INSTALLED = "site-packages/"
_AROUND = 4


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """Lines of a file, the first of them number `first`; `culprit` is the frame's own. `path` is None if not found."""

    first: int
    lines: tuple[str, ...]
    culprit: int
    path: Path | None = None
    remark: str = ""


@dataclass(frozen=True)
class Sources:
    """Finds sources below one of `roots`, or with `own_paths` also at their own path."""

    roots: tuple[Path, ...] = ()
    own_paths: bool = True

    def excerpt(self, frame: Frame, *, around: int = _AROUND) -> Excerpt:
        """The lines around `frame`, or its line alone where the file is missing or has changed."""
        path = self.find(frame)
        if path is None:
            found = any(candidate.is_file() for candidate in self._candidates(frame.file))
            remark = "the file has changed since" if found else ""
            return Excerpt(
                first=frame.line, lines=tuple(frame.source.splitlines()[:1]) or ("",), culprit=frame.line, remark=remark
            )
        lines = _lines(path, path.stat().st_mtime)
        first = max(1, frame.line - around)
        return Excerpt(first=first, lines=lines[first - 1 : frame.line + around], culprit=frame.line, path=path)

    def find(self, frame: Frame) -> Path | None:
        """The file that holds `frame`'s line unchanged, or None."""
        for path in self._candidates(frame.file):
            try:
                lines = _lines(path, path.stat().st_mtime)
            except OSError:
                continue
            if 0 < frame.line <= len(lines) and _same(lines[frame.line - 1], frame.source):
                return path
        return None

    def _candidates(self, file: str) -> list[Path]:
        parts = Path(file).parts
        tail = file.rpartition(_INSTALLED)[2] if _INSTALLED in file else "/".join(parts[-2:])
        places = [root / tail for root in self.roots]
        if self.own_paths:
            installed = [Path(place) / tail for place in sys.path if place.endswith("site-packages")]
            places = [Path(file), *places, *(installed if _INSTALLED in file else ())]
        return places


@lru_cache(maxsize=64)
def _lines(path: Path, _changed: float) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())


def _same(line: str, source: str) -> bool:
    """Whether `line` is the first one of the recorded `source`, or nothing was recorded."""
    recorded = (source.strip().splitlines() or [""])[0].strip()
    return not recorded or line.strip().startswith(recorded) or recorded.startswith(line.strip() or "\0")
