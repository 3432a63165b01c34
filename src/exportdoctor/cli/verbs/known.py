"""`exportdoctor known`: the upstream issues that every finding is compared with."""

from __future__ import annotations

import sys

import click

from exportdoctor.cli.options import CONTEXT, JSON
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.failure.known_issues import KnownIssue, search
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas

_IN_FULL = 3


@click.command("known", context_settings=CONTEXT)
@click.argument("words", metavar="[SEARCH]...", nargs=-1)
@JSON
def search_issues(words: tuple[str, ...], as_json: bool) -> int:
    """List the known upstream issues that contain every word of SEARCH; up to three are shown in full."""
    found = search(" ".join(words))
    if as_json:
        write_out(pretty(found).decode())
    elif not found:
        raise UsageError(f"no known issue contains {' '.join(words)!r}", hint="To list all: exportdoctor known")
    else:
        write_out(_list(found))
    return ExitCode.EXPORTS


known = search_issues  # main loads the command by the verb's name


def _list(found: tuple[KnownIssue, ...]) -> str:
    canvas = Canvas(style_of(sys.stdout))
    for issue in found:
        canvas.paragraph(issue.id, colour="title")
        canvas.paragraph(issue.title, indent=4)
        if len(found) <= _IN_FULL:
            canvas.paragraph(issue.cause, indent=4)
            canvas.paragraph(f"Next: {issue.workaround}", indent=4, hang=2)
        fixed = f"; fixed: {issue.fixed_in}" if issue.fixed_in else ""
        canvas.paragraph(f"{', '.join(issue.links)}; affected: {issue.affected}{fixed}", indent=4, colour="dim")
    if len(found) > _IN_FULL:
        canvas.blank()
        canvas.paragraph(f"{wording.count(len(found), 'issue')}. Add search words to see cause and workaround.")
    return canvas.text()
