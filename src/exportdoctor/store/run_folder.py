"""A run's folder: events.jsonl, report.json, logs/. One process at a time may write in it.

report.json is complete or absent. When the disk refuses, a scan goes on in memory and `RunFolder.trouble` is the error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import StoreError, UsageError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.run.events import AnyEvent, FindingMade
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.store import journal
from exportdoctor.store.atomic_write import make_folder, refusal, replace_file
from exportdoctor.store.lock import FolderLock

REPORT = "report.json"
LOGS = "logs"
REQUEST = ".request"


class RunFolder:
    """The writing end of a run, made by `create` or `reopen`; a context manager.

    `append` and `write_report` raise StoreError; `record` and `record_report` keep the first one in `trouble` instead,
    so that a scan does not end because the disk is full.
    """

    def __init__(self, path: Path, lock: FolderLock, events: tuple[AnyEvent, ...]) -> None:
        self.path = path
        self.events = events
        self.trouble: StoreError | None = None
        self._lock = lock
        self._journal = journal.Journal(path / journal.NAME)

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new run in `path`. Raises StoreError if it cannot be written, UsageError if it already holds a run."""
        make_folder(path)
        make_folder(path / LOGS)
        lock = FolderLock(path)
        events = path / journal.NAME
        if events.exists() and events.stat().st_size:
            lock.release()
            raise UsageError(
                f"{path} already holds a run",
                hint=f"Continue it with --resume {path}, or choose another folder with --out",
            )
        return _open_or_release(cls, path, lock, ())

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Continue the run in `path`: `events` holds its events so far; an incomplete last line is cut off.

        Raises StoreError for a folder that holds no run, and where another process is using it.
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
        return _open_or_release(cls, path, lock, events)

    @property
    def logs(self) -> Path:
        """Where the logs of failing attempts go."""
        return self.path / LOGS

    def append(self, event: AnyEvent) -> None:
        """Write one event. Raises StoreError, and then has not changed the file."""
        self._journal.append(event)

    def record(self, event: AnyEvent) -> None:
        """Write one event; none after one that was lost, because the file must stay a prefix of the events."""
        if self.trouble is None:
            try:
                self.append(event)
            except StoreError as error:
                self.trouble = error

    def record_all(self, events: Iterable[AnyEvent]) -> Iterator[AnyEvent]:
        """Each of `events`, after it was recorded."""
        for event in events:
            self.record(event)
            yield event

    def write_report(self, report: Report) -> None:
        """Replace report.json. Raises StoreError."""
        replace_file(self.path / REPORT, pretty(report))

    def record_report(self, report: Report) -> None:
        """Replace report.json; tried even after trouble, because a full disk may have room again."""
        try:
            self.write_report(report)
        except StoreError as error:
            self.trouble = self.trouble or error

    def add_finding(self, finding: Finding) -> None:
        """Add what became known of a finding after the run's end, and renew the report. Raises StoreError."""
        event = FindingMade(at=time.time(), finding=finding)
        self.append(event)
        self.write_report(fold((*self.events, event)).report())

    def note_request(self, digest: str) -> None:
        """Save the digest of what the run depends on; resuming compares it."""
        replace_file(self.path / REQUEST, digest.encode())

    def noted_request(self) -> str:
        """The saved digest; empty if there is none."""
        try:
            return (self.path / REQUEST).read_text()
        except (OSError, UnicodeDecodeError):
            return ""

    def share_logs(self, earlier: Path) -> None:
        """Link or copy the logs of an earlier run whose results this one reuses; failures are ignored."""
        for log in sorted((earlier / LOGS).glob("*")):
            try:
                os.link(log, self.logs / log.name)
            except OSError:
                _copy(log, self.logs / log.name)

    def close(self) -> None:
        """Close the journal and release the lock."""
        self._journal.close()
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_or_release(cls: type[RunFolder], path: Path, lock: FolderLock, events: tuple[AnyEvent, ...]) -> RunFolder:
    """The folder object; if the journal cannot be opened, the lock is released."""
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
