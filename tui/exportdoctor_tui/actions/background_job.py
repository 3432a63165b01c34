"""Commands that were started from the interface: processes in sessions of their own, with their output in a file.

A job outlives the interface unless it is cancelled; cancelling it signals its whole process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from exportdoctor.core.limits import INTERRUPTED

if TYPE_CHECKING:
    from exportdoctor_tui.actions.commands import Argv

JobState = Literal["running", "done", "failed", "cancelled"]
_TAIL = 200_000
_LINE = 2_000


class BackgroundJob:
    """One process, which prints `width` columns. Exit codes 0 (no finding) and 1 (findings) are results.

    `begun`: seconds since the epoch; `shows`: its output is its result; `done`: what there is once it has ended well.
    Raises OSError where it cannot be started.
    """

    def __init__(
        self, title: str, argv: Argv, *, begun: float, shows: bool = False, done: str = "", width: int = 80
    ) -> None:
        self.title = title
        self.done = done
        self.begun = begun
        self.shows = shows
        handle, name = tempfile.mkstemp(prefix="exportdoctor-", suffix=".log")
        self._output = Path(name)
        self._cancelled_at: float | None = None
        with os.fdopen(handle, "wb") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "COLUMNS": str(width)},
            )  # fmt: skip

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs. A job that ignores its cancellation for too long is killed here."""
        code = self._process.poll()
        if code is None and self._cancelled_at and time.monotonic() - self._cancelled_at > INTERRUPTED:
            self._signal(signal.SIGKILL)
        return code

    @property
    def state(self) -> JobState:
        """A cancelled job runs until its process has ended."""
        code = self.code
        if code is None:
            return "running"
        if self._cancelled_at is not None:
            return "cancelled"
        return "done" if code in (0, 1) else "failed"

    def cancel(self) -> None:
        """Interrupt it; what it has found so far is saved."""
        if self._process.poll() is None and self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
            self._signal(signal.SIGINT)

    def wait(self, seconds: float) -> None:
        """Wait for its end; kill it after `seconds`."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def output(self) -> str:
        """The end of what it printed."""
        try:
            return self._output.read_bytes()[-_TAIL:].decode("utf-8", "replace")
        except OSError:
            return ""

    def last_line(self) -> str:
        """The last printed line that is not blank."""
        try:
            with self._output.open("rb") as file:
                file.seek(max(0, self._output.stat().st_size - _LINE))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return next((each.strip() for each in reversed(lines) if each.strip()), "")

    def forget(self) -> None:
        """Delete its output, unless it still runs."""
        if self._process.poll() is not None:
            self._output.unlink(missing_ok=True)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, number)
