"""A run's folder: events.jsonl, report.json, logs/. One process at a time may write in it.

Law: an event is on disk before anybody sees it, and report.json is whole or absent.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from exportdoctor.core.codec import decode, pretty
from exportdoctor.core.errors import StoreError, UsageError
from exportdoctor.core.events import AnyEvent
from exportdoctor.core.report import Report
from exportdoctor.store import journal
from exportdoctor.store.disk import make_folder, refusal, replace_file
from exportdoctor.store.lock import FolderLock

REPORT = "report.json"
LOGS = "logs"
REQUEST = ".request"


class RunFolder:
    """The writing end of a run, made by `create` or `reopen`; use it as a context manager."""

    def __init__(self, path: Path, lock: FolderLock, events: tuple[AnyEvent, ...]) -> None:
        self.path = path
        self.events = events
        self._lock = lock
        self._journal = journal.Journal(path / journal.NAME)

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new run in `path`. Raises StoreError where it cannot be written, UsageError where there is one already."""
        make_folder(path)
        make_folder(path / LOGS)
        lock = FolderLock(path)
        events = path / journal.NAME
        if events.exists() and events.stat().st_size:
            lock.release()
            raise UsageError(
                f"{path} already holds a run",
                hint=f"Go on with it by --resume {path}, or choose another folder with --out",
            )
        return _opened(cls, path, lock, ())

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Go on with the run in `path`: `events` holds what it has; a torn last line is cut off.

        Raises StoreError for a folder that holds no run, and where another process is at work in it.
        """
        file = path / journal.NAME
        if not file.is_file():
            raise StoreError(f"{path} holds no run", hint="See: exportdoctor runs")
        lock = FolderLock(path)
        try:
            reader = journal.EventReader(file)
            events = reader.read_new()
            if reader.offset < file.stat().st_size:
                os.truncate(file, reader.offset)
        except OSError as error:
            lock.release()
            raise refusal(file, error) from error
        except StoreError:
            lock.release()
            raise
        return _opened(cls, path, lock, events)

    @property
    def logs(self) -> Path:
        """Where the logs of failing attempts go."""
        return self.path / LOGS

    def append(self, event: AnyEvent) -> None:
        """Write one event. Raises StoreError, and then has not changed the file."""
        self._journal.append(event)

    def write_report(self, report: Report) -> None:
        """Put report.json in place of the earlier one, as a whole."""
        replace_file(self.path / REPORT, pretty(report))

    def note_request(self, digest: str) -> None:
        """Keep what the run depends on, so that resuming it can tell whether that has changed."""
        replace_file(self.path / REQUEST, digest.encode())

    def noted_request(self) -> str:
        """The digest noted when the run was made; empty where there is none."""
        try:
            return (self.path / REQUEST).read_text()
        except (OSError, UnicodeDecodeError):
            return ""

    def share_logs(self, earlier: Path) -> None:
        """Let this run have the logs of the one that gave its answers; a log that cannot be had is not missed."""
        for log in sorted((earlier / LOGS).glob("*")):
            try:
                os.link(log, self.logs / log.name)
            except OSError:
                _copy(log, self.logs / log.name)

    def close(self) -> None:
        """Let other processes in."""
        self._journal.close()
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _opened(cls: type[RunFolder], path: Path, lock: FolderLock, events: tuple[AnyEvent, ...]) -> RunFolder:
    """The folder object, or the lock given back."""
    try:
        return cls(path, lock, events)
    except StoreError:
        lock.release()
        raise


def _copy(source: Path, target: Path) -> None:
    """Copy a file where linking is impossible (another file system)."""
    try:
        target.write_bytes(source.read_bytes())
    except OSError:
        target.unlink(missing_ok=True)


def read_report(path: Path) -> Report:
    """The report.json of the run in `path`. Raises StoreError for a missing or foreign one."""
    try:
        data = (path / REPORT).read_bytes()
    except OSError as error:
        raise refusal(path / REPORT, error, doing="read") from error
    report: Report = decode(data, Report)
    return report
