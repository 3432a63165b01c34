"""Writes a run's events down before anyone sees them.

Law: when the disk refuses, the scan goes on in memory and its result is still told; `trouble` says what was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from exportdoctor.core.errors import StoreError
from exportdoctor.core.events import AnyEvent
from exportdoctor.core.report import Report
from exportdoctor.store.run_folder import RunFolder


class Recorder:
    """Records into `folder` until the disk refuses once; `trouble` is then the error, to be told to the user."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.trouble: StoreError | None = None

    def recorded(self, events: Iterable[AnyEvent]) -> Iterator[AnyEvent]:
        """Each of `events`, once it is on disk."""
        for event in events:
            self.record(event)
            yield event

    def record(self, event: AnyEvent) -> None:
        """Append one event; nothing follows an event that was lost, or the file would not be a prefix."""
        if self.trouble is None:
            try:
                self.folder.append(event)
            except StoreError as error:
                self.trouble = error

    def write_report(self, report: Report) -> None:
        """Save report.json; tried even after trouble, for a full disk may have room again."""
        try:
            self.folder.write_report(report)
        except StoreError as error:
            self.trouble = self.trouble or error
