"""Reads a small file that somebody names: what is no file, or has no end, is refused and not waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_MB = 64


def read_file(path: Path) -> bytes:
    """The content of a regular file of at most MOST_MB. Raises OSError, also for a pipe, a device or a larger file."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "It is no regular file", str(path))
        if status.st_size > MOST_MB * 2**20:
            raise OSError(errno.EFBIG, f"It is larger than {MOST_MB} MiB", str(path))
        return file.read(MOST_MB * 2**20)
