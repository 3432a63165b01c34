"""The half of a run's screen that does things: edit, copy, start commands, show and cancel them."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported, SystemCommand
from textual.content import Content
from textual.screen import Screen

from exportdoctor.report.wording import culprit_line, duration
from exportdoctor_tui.actions import Deed, deeds
from exportdoctor_tui.choices import all_shims, known_shims, other_runs
from exportdoctor_tui.editor import editor_command
from exportdoctor_tui.pages.copies import copies
from exportdoctor_tui.pages.output import output
from exportdoctor_tui.sanitize import line
from exportdoctor_tui.screens.choose import Choose
from exportdoctor_tui.screens.page import Page
from exportdoctor_tui.screens.pick import Pick
from exportdoctor_tui.widgets.finding_pane import FindingPane
from exportdoctor_tui.widgets.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.core.outcome import Frame
    from exportdoctor_tui.app import DoctorApp
    from exportdoctor_tui.jobs import Job, JobState
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
        """Start it, once what it needs is picked."""
        if not deed.needs:
            self._start(deed, ())
            return
        self.app.push_screen(self._pick(deed), lambda chosen: self._start(deed, chosen) if chosen is not None else None)

    def _pick(self, deed: Deed) -> Pick:
        view, selection, root = self.view, self.selection, self.doctor.root
        if deed.needs == "run":
            return Pick(deed.title, (), lambda: other_runs(view.path, root), many=False)
        assert view.started is not None
        options = view.started.options
        known = known_shims(selection) if selection else ()
        return Pick(deed.title, known, lambda: all_shims(options), many=deed.needs == "shims")

    def _start(self, deed: Deed, chosen: tuple[str, ...]) -> None:
        """A new run is opened at once, and followed."""
        title = deed.title.replace(" …", f": {' + '.join(map(line, chosen))}")
        if not self.doctor.start_job(title, deed.command(chosen), shows=deed.shows):
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
        if self.doctor.job is None:
            self.notify("Nothing was started here yet", markup=False)
            return
        self._show_output(self.doctor.job)

    def _show_output(self, job: Job) -> None:
        self.app.push_screen(Page(line(job.title), output(job.output())))

    def draw_job(self) -> None:
        """One line on what was started here: how it stands, and the last that it said."""
        place, job = self.query_one("#job", Text), self.doctor.job
        place.display = job is not None
        if job is None:
            return
        view = job.view()
        since = f" · {duration(max(0.0, self.doctor.clock() - view.begun))}" if view.state == "running" else ""
        code = f" · exit code {view.code}" if view.state == "failed" else ""
        place.show(
            Content.assemble(
                (f"{view.state}  ", f"bold {_STATES[view.state]}"),
                line(view.title) + since + code,
                (f"  {line(job.last_line())}", "$foreground 60%"),
                ("  x cancels · o output" if view.state == "running" else "  o output", "$foreground 60%"),
            )
        )
        self._tell_the_end(job, view.state)

    def _tell_the_end(self, job: Job, state: JobState) -> None:
        """Once: output that is the result is shown, if nothing else lies over this screen."""
        if state == "running" or not job.shows or job.told:
            return
        job.told = True
        if state != "cancelled" and self.app.screen is self:
            self._show_output(job)
