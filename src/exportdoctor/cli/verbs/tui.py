"""`exportdoctor tui`: starts the terminal interface, which is loaded by its entry point."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Protocol

import click

from exportdoctor.cli.complete_words import complete_runs
from exportdoctor.cli.options import CONTEXT
from exportdoctor.core.errors import UsageError
from exportdoctor.store.runs import find_run, run_ids

GROUP = "exportdoctor.tui"


class TerminalInterface(Protocol):
    """Shows the run in a folder (None: the list of runs) until the user quits; returns an exit code.

    `scan` is a command line that makes that run, started by the interface; `web` serves it to a browser.
    """

    def __call__(self, run: Path | None, *, scan: tuple[str, ...] = (), web: bool = False, port: int = 8000) -> int: ...


@click.command(context_settings=CONTEXT)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--web", is_flag=True, help="Serve it to a browser on this machine.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Port for --web.")
def tui(run: str | None, web: bool, port: int) -> int:
    """Browse RUN in the terminal. Default: the newest run."""
    shown = find_run(run) if run or run_ids() else None
    return find_interface()(shown, web=web, port=port)


def find_interface(group: str = GROUP) -> TerminalInterface:
    """The interface installed under the entry point `group`. Raises UsageError if there is none."""
    for point in metadata.entry_points(group=group):
        try:
            interface: TerminalInterface = point.load()
        except ImportError as error:
            raise UsageError(
                f"the terminal interface cannot be loaded: {error}", hint="pip install 'exportdoctor[tui]'"
            ) from error
        return interface
    raise UsageError("the terminal interface is not installed", hint="pip install 'exportdoctor[tui]'")
