"""One run at a time in a folder. The operating system drops the lock with its process, however that ends."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from exportdoctor.core.errors import StoreError
from exportdoctor.store.disk import refusal

NAME = ".lock"
_TRIES, _PAUSE = 5, 0.02  # `is_held` takes the lock for an instant, which must not look like another run


class FolderLock:
    """Held from construction to `release`. Raises StoreError where another process holds it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise refusal(self.path, error) from error
        if not self._take():
            owner = os.read(self._file, 32).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StoreError(
                f"another run is at work in {folder}" + (f" (process {owner})" if owner else ""),
                hint="Wait for it, or choose another folder with --out",
            )
        self._sign()

    def release(self) -> None:
        """Let others in."""
        os.close(self._file)

    def _take(self) -> bool:
        for _ in range(_TRIES):
            if _lock(self._file):
                return True
            time.sleep(_PAUSE)
        return False

    def _sign(self) -> None:
        """Leave our process id for whoever finds the lock held; a full disk is no reason to stop here."""
        try:
            os.ftruncate(self._file, 0)
            os.write(self._file, str(os.getpid()).encode())
        except OSError:
            pass


def is_held(folder: Path) -> bool:
    """Whether a process is at work in `folder` now."""
    try:
        file = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _lock(file)
    finally:
        os.close(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> bool:
        """Try to lock the byte far behind the process id."""
        os.lseek(file, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(file, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _lock(file: int) -> bool:
        """Try to lock the file; a file system that knows no locks must not forbid scanning."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True
