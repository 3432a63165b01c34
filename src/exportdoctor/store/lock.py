"""A lock on a run's folder, so that one process at a time writes in it. The OS drops it when the process ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from exportdoctor.core.errors import StoreError
from exportdoctor.store.atomic_write import refusal

LOCK = ".lock"
_TIMEOUT = 0.1  # seconds; `is_held` takes the lock for an instant, which must not look like another run
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})  # a file system without locks


class FolderLock:
    """Held from construction to `release`. Raises StoreError where another process holds it."""

    def __init__(self, folder: Path) -> None:
        from filelock import FileLock, Timeout  # imports asyncio: 40 ms that listing runs does not need

        self.path = folder / LOCK
        self._lock = FileLock(self.path, thread_local=False)
        try:
            self._lock.acquire(timeout=_TIMEOUT, poll_interval=0.02)
        except Timeout as error:
            raise StoreError(
                f"another process is using {folder}{self._owner()}",
                hint="Wait until it ends, or choose another folder with --out",
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise refusal(self.path, error) from error
        self._sign()

    def release(self) -> None:
        """Let other processes in."""
        self._lock.release()

    def _owner(self) -> str:
        try:
            process = self.path.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return ""
        return f" (process {process})" if process else ""

    def _sign(self) -> None:
        """Write our process id into the file, for the message above; a full disk is no reason to stop."""
        try:
            self.path.write_text(str(os.getpid()), encoding="ascii")
        except OSError:
            return


def is_held(folder: Path) -> bool:
    """Whether a process is writing in `folder` now."""
    if not (folder / LOCK).exists():
        return False
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False
