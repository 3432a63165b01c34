"""`--python`: the command line goes on under another interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from exportdoctor.cli.error_output import print_line
from exportdoctor.core.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def _go_on(context: click.Context, _option: click.Parameter, given: str | None) -> None:
    """Hand the command line over to the interpreter that was given, or to that of the project."""
    words = context.find_root().obj or ()
    if context.resilient_parsing or "--tui" in words:  # the terminal interface starts a command of its own
        return
    from exportdoctor.process.interpreter import find_interpreter, find_project_python, hand_over, handed_over

    if handed_over():
        return
    if given is not None:
        found = find_interpreter(given)
        if not found.is_ours:
            hand_over(found, words)
        return
    project = find_project_python()
    if not project:
        return
    from exportdoctor.report import wording

    try:
        found = find_interpreter(project)
    except UsageError as error:
        if not error.message.endswith(" has no torch"):
            print_line(wording.project_python_refused(project, error.message))
        return
    if not found.is_ours and not found.versions["exportdoctor"]:
        print_line(wording.project_python(project, found.versions))
        hand_over(found, words)


def follow_run(python: str, words: tuple[str, ...]) -> None:
    """Go on under the interpreter under which a run was made, if that is another one."""
    from exportdoctor.process.interpreter import find_interpreter, hand_over, handed_over

    if not python or handed_over() or "--python" in words or python == sys.executable:
        return
    hand_over(find_interpreter(python), words)


PYTHON: Callable[[F], F] = click.option(
    "--python",
    metavar="PATH",
    is_eager=True,
    expose_value=False,
    callback=_go_on,
    help="Run under this interpreter, in which exportdoctor need not be installed. "
    "Default: the project's .venv if it has torch, else exportdoctor's own.",
)
