"""Puts the files of an export where the user wants them, under their final names only when they are complete.

Everything is written into a folder beside the final place, flushed, and renamed. Whatever happens, no half-written
file is left under a final name, and the folder is gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from exportdoctor.core.errors import StoreError
from exportdoctor.store.atomic_write import make_folder, refusal


@contextmanager
def draft_folder(folder: Path, stem: str) -> Iterator[Path]:
    """A temporary folder below `folder`, for files that will move there. Raises StoreError."""
    make_folder(folder)
    draft = folder / f".{stem}.{os.getpid()}.part"
    try:
        draft.mkdir()
    except OSError as error:
        raise refusal(folder, error, doing="written to") from error
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def install(draft: Path, folder: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """Move these files from `draft` to `folder`, the last of `names` last: a file that refers to others comes after.

    Raises StoreError; what had been there before is replaced file by file.
    """
    for name in names:
        _flush(draft / name)
    return tuple(_move(draft / name, folder / name) for name in names)


def write_draft(path: Path, data: bytes) -> None:
    """Write a file of a draft folder. Raises StoreError."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise refusal(path, error) from error


def _move(source: Path, final: Path) -> Path:
    try:
        os.replace(source, final)
    except OSError as error:
        raise refusal(final, error) from error
    return final


def _flush(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise refusal(path, error) from error


def check_output_path(path: Path) -> None:
    """Raise StoreError where `path` can be no file: it is a folder, a device or a pipe, or its parent is a file."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder", hint="Give a file name with -o")
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is a device or a pipe, not a file", hint="Give a file name with -o")
    if path.parent.exists() and not path.parent.is_dir():
        raise StoreError(f"{path.parent} is a file, not a folder", hint="Give another path with -o")
