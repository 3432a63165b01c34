"""Follows a run's folder in a thread of its own: reads what was appended, folds it, hands out pictures.

The thread touches no widget; whoever starts it gives a function that takes each picture.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.store import journal, lock
from exportdoctor_tui.fold_events import Folding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from exportdoctor_tui.view import RunView

PAUSE = 0.1  # seconds between two looks at the file
_LOCK_PAUSE = 1.0
_BETWEEN_PICTURES = 0.25
_SHARE = 50  # trees of a large run take at most one part in so many of the time, or keys would feel it


class Follower:
    """One run that is watched. `look` is a step; `follow` repeats it until `stopped` says so."""

    def __init__(self, path: Path, show: Callable[[RunView], None]) -> None:
        self._path = path
        self._show = show
        self._folding = Folding(path)
        self._reader = journal.EventReader(path / journal.NAME)
        self._held = lock.is_held(path)
        self._lock_seen = self._shown_at = 0.0
        self._unseen = True
        self._trees_at = self._between = 0.0
        self._problem = ""

    def follow(self, stopped: Callable[[], bool], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Go on until `stopped`; what cannot be read is told once, and tried again."""
        self.look(clock())
        # what a run has told stays for good: a collector that walks it again and again stops every key for 50 ms
        gc.freeze()
        while not stopped():
            time.sleep(PAUSE)
            self.look(clock())

    def look(self, now: float) -> None:
        """Read what is new and show it; a busy run is shown a few times a second, however fast events come."""
        self._read()
        if now - self._lock_seen >= _LOCK_PAUSE:
            self._lock_seen = now
            held = lock.is_held(self._path)
            self._unseen |= held != self._held
            self._held = held
        if self._unseen and now - self._shown_at >= _BETWEEN_PICTURES:
            self._unseen, self._shown_at = False, now
            self._picture(now)

    def _picture(self, now: float) -> None:
        """Show how it stands; the trees are worked out anew as often as their cost allows."""
        due = self._folding.state.finished is not None or now - self._trees_at >= self._between
        began = time.thread_time()
        self._show(self._folding.view(held=self._held, problem=self._problem, trees=due))
        if due:
            self._trees_at = now
            self._between = _SHARE * (time.thread_time() - began)
        self._unseen = not due

    def _read(self) -> None:
        problem = ""
        try:
            events = self._reader.read_new()
        except ExportdoctorError as error:
            events = ()
            problem = self._told(error)
        self._folding.take(events)
        self._unseen |= bool(events) or problem != self._problem
        self._problem = problem

    def _told(self, error: ExportdoctorError) -> str:
        """One line; a run that is only about to begin is no error."""
        if self._path.is_dir() and not self._reader.path.exists() and self._held:
            return ""
        if not self._path.exists():
            return f"The run's folder is gone: {self._path}. What was read of it stays here until you leave"
        return error.line()
