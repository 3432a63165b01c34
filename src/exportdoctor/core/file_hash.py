"""The hash of a file's content, by which stored results are matched to the sources they depend on."""

from __future__ import annotations

import hashlib
from os import PathLike


def file_sha256(path: str | PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
