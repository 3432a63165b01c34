"""What screens ask of the application; the protocol keeps them from importing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from textual.screen import Screen

    from exportdoctor.report.source_lines import Sources
    from exportdoctor_tui.actions.background_job import BackgroundJob
    from exportdoctor_tui.actions.commands import Argv


class AppServices(Protocol):
    """Clock in seconds since the epoch, where sources and runs are (None = the usual folder), and the one job."""

    clock: Callable[[], float]
    sources: Sources
    root: Path | None
    job: BackgroundJob | None

    def open_run(self, path: Path) -> None:
        """Show a run in place of the one that is shown."""

    def show_runs(self) -> None:
        """Go back to the list of runs."""

    def start_job(self, title: str, argv: Argv, *, shows: bool = False, done: str = "") -> bool:
        """Start a process; False where one is running or it cannot be started, which the user is notified of."""


def services_of(screen: Screen[None]) -> AppServices:
    """The application that shows `screen`."""
    return cast("AppServices", screen.app)
