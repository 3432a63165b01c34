"""The half of a run's screen that does things: edit, copy, start commands, show and cancel them."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported, SystemCommand
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from exportdoctor.report.wording import culprit_line, elapsed
from exportdoctor_tui.actions import Deed, deeds
from exportdoctor_tui.editor import editor_command
from exportdoctor_tui.inked import block, line
from exportdoctor_tui.pages.copies import copies
from exportdoctor_tui.screens.choose import Choose
from exportdoctor_tui.screens.page import Page
from exportdoctor_tui.widgets.finding_pane import FindingPane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.core.outcome import Frame
    from exportdoctor_tui.app import DoctorApp
    from exportdoctor_tui.pages.selection import Selection
    from exportdoctor_tui.view import RunView

_STATES = {
    "running": "$text-primary",
    "done": "$text-success",
    "failed": "$text-error",
    "cancelled": "$text-warning",
}


class RunDeeds(Screen[None]):
    """Mixed into the run's screen, which has `view`, `selection` and `doctor`."""

    view: RunView
    read: bool

    @property
    def selection(self) -> Selection | None:
        """The screen's."""
        raise NotImplementedError

    @property
    def doctor(self) -> DoctorApp:
        """The screen's."""
        raise NotImplementedError

    def deeds(self) -> tuple[Deed, ...]:
        """What can be done now."""
        return deeds(self.view, self.selection) if self.read else ()

    def commands(self) -> Iterator[SystemCommand]:
        """What can be done and every finding, for the palette."""
        for deed in self.deeds():
            yield SystemCommand(line(deed.title), "Do", partial(self.do, deed))
        for finding in self.view.findings.values():
            yield SystemCommand(
                line(f"{finding.id}  {culprit_line(finding)}"), "Go to this finding", partial(self.go_to, finding.id)
            )

    def go_to(self, finding: str) -> None:
        """The screen's."""
        raise NotImplementedError

    def action_actions(self) -> None:
        """Choose something to do."""
        offered = self.deeds()
        if not offered:
            self.notify("Nothing can be done here yet", markup=False)
            return
        self.app.push_screen(
            Choose("Do", tuple(deed.title for deed in offered)),
            lambda number: self.do(offered[number]) if number is not None else None,
        )

    def do(self, deed: Deed) -> None:
        """Start it; a new run is opened at once, and followed."""
        if not self.doctor.start_job(deed.title, deed.command):
            return
        if deed.opens is not None:
            self.doctor.open_run(deed.opens)
        self.draw_job()

    def action_copy(self) -> None:
        """Choose something to copy."""
        if self.selection is None:
            return
        offered = copies(self.selection)
        self.app.push_screen(
            Choose("Copy", tuple(title for title, _ in offered)),
            lambda number: self._copied(*offered[number]) if number is not None else None,
        )

    def _copied(self, title: str, text: str) -> None:
        self.app.copy_to_clipboard(text)
        self.notify(line(title), title="Copied", markup=False)

    def action_edit(self) -> None:
        """Open the frame's source, and come back when the editor ends."""
        frame = self.query_one(FindingPane).frame
        if frame is None:
            self.notify("There is no source line here", markup=False)
            return
        path = self.doctor.sources.find(frame)
        if path is None:
            self.notify(f"{line(frame.file)} is not here, or has changed", severity="warning", markup=False)
            return
        self._edit(editor_command(path, frame.line), frame)

    def _edit(self, command: tuple[str, ...], frame: Frame) -> None:
        try:
            with self.app.suspend():
                subprocess.run(command, check=False)
        except SuspendNotSupported:
            self.notify("An editor needs a terminal; this is a browser", severity="warning", markup=False)
        except OSError as error:
            self.notify(f"{command[0]}: {error.strerror}. Set EDITOR to your editor", severity="error", markup=False)

    def action_cancel(self) -> None:
        """Ask the running job to stop."""
        if not self.doctor.cancel_job():
            self.notify("Nothing that was started here is running", markup=False)

    def action_job_log(self) -> None:
        """What the job printed."""
        job = self.doctor.job
        if job is None:
            self.notify("Nothing was started here yet", markup=False)
            return
        self.app.push_screen(Page(line(job.title), Content(block(job.output()) or "(no output yet)")))

    def draw_job(self) -> None:
        """One line on what was started here."""
        place = self.query_one("#job", Static)
        job = self.doctor.job.view() if self.doctor.job else None
        place.display = job is not None
        if job is None:
            return
        hints = {"running": "x cancels · o output", "failed": f"exit code {job.code} · o output"}
        hint = hints.get(job.state, "o output")
        since = f" · {elapsed(max(0.0, self.doctor.clock() - job.begun))}" if job.state == "running" else ""
        place.update(
            Content.assemble(
                (f"{job.state}  ", f"bold {_STATES[job.state]}"),
                line(job.title) + since,
                (f"  {hint}", "$foreground 60%"),
            )
        )
