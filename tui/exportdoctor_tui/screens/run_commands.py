"""What a user does on a run's screen: start a command and watch it, copy a text, open an editor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exportdoctor_tui.actions.choices import all_shims, known_shims, other_runs
from exportdoctor_tui.actions.editor import open_editor
from exportdoctor_tui.app_services import services_of
from exportdoctor_tui.pages.copies import copies
from exportdoctor_tui.pages.run_status import job_line
from exportdoctor_tui.sanitize import line
from exportdoctor_tui.screens.dialogs import Menu, Page, output_text
from exportdoctor_tui.screens.picker import Picker
from exportdoctor_tui.widgets.texts import TextBlock

if TYPE_CHECKING:
    from pathlib import Path

    from textual.screen import Screen

    from exportdoctor.core.records.outcome import Frame
    from exportdoctor_tui.actions.background_job import BackgroundJob
    from exportdoctor_tui.actions.commands import CommandLine
    from exportdoctor_tui.state.run_view import RunView
    from exportdoctor_tui.state.selection import Selection


_KEPT = 60.0  # seconds that the line of a job stays after its end


class RunCommands:
    """Belongs to `screen`, which has a TextBlock `#job` for the state of the job."""

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._shown: BackgroundJob | None = None
        self._ended: tuple[BackgroundJob, float] | None = None

    def choose(self, commands: tuple[CommandLine, ...], view: RunView, selection: Selection | None) -> None:
        """Let the user choose one of `commands`, and start it."""
        if not commands:
            self._screen.notify("No actions are available yet", markup=False)
            return
        self._screen.app.push_screen(
            Menu("Actions", tuple(command.title for command in commands)),
            lambda number: self.start(commands[number], view, selection) if number is not None else None,
        )

    def start(self, command: CommandLine, view: RunView, selection: Selection | None) -> None:
        """Start a command, once the user has picked what it needs."""
        if not command.needs:
            self._start(command, ())
            return
        self._screen.app.push_screen(
            self._picker(command, view, selection),
            lambda picked: self._start(command, picked) if picked is not None else None,
        )

    def _picker(self, command: CommandLine, view: RunView, selection: Selection | None) -> Picker:
        if command.needs == "run":
            root = services_of(self._screen).root
            return Picker(command.title, (), lambda: other_runs(view.path, root), many=False)
        assert view.started is not None
        options, python = view.started.options, view.started.python
        known = known_shims(selection) if selection else ()
        return Picker(command.title, known, lambda: all_shims(options, python), many=command.needs == "shims")

    def _start(self, command: CommandLine, picked: tuple[str, ...]) -> None:
        """Start the process; the run that it creates is opened at once."""
        doctor = services_of(self._screen)
        title = command.title.replace(" …", f": {' + '.join(map(line, picked))}")
        if not doctor.start_job(title, command.argv_with(picked), shows=command.shows, done=command.done):
            return
        if command.opens is not None:
            doctor.open_run(command.opens)
        self.draw()

    def copy(self, selection: Selection) -> None:
        """Let the user choose a text, and copy it to the clipboard."""
        offered = copies(selection)
        self._screen.app.push_screen(
            Menu("Copy", tuple(title for title, _ in offered)),
            lambda number: self._copy(*offered[number]) if number is not None else None,
        )

    def _copy(self, title: str, text: str) -> None:
        self._screen.app.copy_to_clipboard(text)
        self._screen.notify(line(title), title="Copied", markup=False)

    def edit(self, frame: Frame | None, file: Path | None = None) -> None:
        """Open `file` in the editor where there is one, else the source of a frame."""
        if file is not None and file.is_file():
            open_editor(self._screen.app, file, 1)
        elif frame is None:
            self._screen.notify("There is no source line here", markup=False)
        elif (path := services_of(self._screen).sources.find(frame)) is None:
            self._screen.notify(f"{line(frame.file)} is not here, or has changed", severity="warning", markup=False)
        else:
            open_editor(self._screen.app, path, frame.line)

    def cancel(self) -> None:
        """Interrupt the running job."""
        job = services_of(self._screen).job
        if job is not None and job.state == "running":
            job.cancel()
        else:
            self._screen.notify("No command is running", markup=False)

    def show_output(self) -> None:
        """Show what the job printed."""
        job = services_of(self._screen).job
        if job is None:
            self._screen.notify("No command was started yet", markup=False)
            return
        self._screen.app.push_screen(Page(line(job.title), output_text(job.output())))

    def draw(self) -> None:
        """The state of the job in one line. Output that is its result is shown once, when it has ended."""
        doctor, block = services_of(self._screen), self._screen.query_one("#job", TextBlock)
        job = doctor.job
        block.display = job is not None
        if job is None:
            return
        now, state = doctor.clock(), job.state
        block.show(job_line(job, now))
        if state != "running":
            if self._ended is None or self._ended[0] is not job:
                self._ended = (job, now)
            block.display = now - self._ended[1] < _KEPT
        if state != "running" and job.shows and job is not self._shown:
            self._shown = job
            if state != "cancelled" and self._screen.app.screen is self._screen:
                self.show_output()
