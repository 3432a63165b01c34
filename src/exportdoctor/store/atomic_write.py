"""Turns an operating system's refusal into one clear error, and replaces files atomically."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from exportdoctor.core.errors import StoreError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_ELSEWHERE = "Choose another folder, or set EXPORTDOCTOR_HOME"


def refusal(path: Path, error: OSError, *, doing: str = "written") -> StoreError:
    """The error that says why `path` cannot be `doing`, and what to do about it."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreError(f"{path} cannot be {doing}: the disk is full", hint=f"Free some space. {_ELSEWHERE}")
    if error.errno in _FORBIDDEN:
        return StoreError(f"{path} cannot be {doing}: {reason}", hint=_ELSEWHERE)
    if error.errno == errno.EFBIG:
        return StoreError(f"{path} cannot be {doing}: {reason}", hint="Allow larger files (`ulimit -f`)")
    return StoreError(f"{path} cannot be {doing}: {reason}")


def make_folder(path: Path) -> None:
    """Create `path` and its parents. Raises StoreError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        what = "a link that leads nowhere" if path.is_symlink() else "a file"
        raise StoreError(f"{path} is {what}, not a folder", hint="Choose another folder") from error
    except OSError as error:
        raise refusal(path, error, doing="created") from error


def replace_file(path: Path, data: bytes) -> None:
    """Write `path` atomically: afterwards it holds either all of `data` or what it held before.

    A link is followed. What is no regular file, such as a device or a pipe, is opened and written to; so is what the
    process has open, such as /dev/stdout, at its end.
    """
    is_open = path.is_symlink() and path.absolute().is_relative_to("/dev")
    if is_open or (os.path.exists(path) and not (path.is_file() or path.is_dir())):
        _write_into(path, data)
        return
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise refusal(path, error) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _write_into(path: Path, data: bytes) -> None:
    try:
        with open(path, "ab", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except OSError as error:
        raise refusal(path, error) from error
