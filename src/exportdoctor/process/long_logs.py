"""Bounds the file that takes what a process prints: of more than LOG_MB its beginning and its end are kept."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from exportdoctor.core.limits import LOG_MB

_BEGINNING, _END = 1 << 20, 1 << 18


def cut_log(log: str | Path | None) -> bool:
    """Whether it was too long, and now says what was left out. Its process may go on to append to it."""
    with contextlib.suppress(OSError):
        if log is None or os.stat(log).st_size <= LOG_MB * 2**20:
            return False
        with open(log, "r+b") as file:
            size = file.seek(-_END, os.SEEK_END) + _END
            end = file.read(_END)
            file.truncate(_BEGINNING)
        left = (size - _BEGINNING - _END) / 2**20
        with open(log, "ab", buffering=0) as file:
            file.write(b"\n[exportdoctor: %.0f MiB of output are left out here]\n" % left + end)
        return True
    return False
