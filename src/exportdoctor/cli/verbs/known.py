"""`exportdoctor known`: the upstream issues that every finding is compared with."""

from __future__ import annotations

import sys

import click
from msgspec.structs import asdict

from exportdoctor.cli.answers import KnownRow
from exportdoctor.cli.options import CONTEXT, JSON
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.failure.known_issues import KnownIssue, search
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas
from exportdoctor.store.measurements import list_measurements

_IN_FULL = 3


@click.command("known", context_settings=CONTEXT)
@click.argument("words", metavar="[SEARCH]...", nargs=-1)
@JSON
def search_issues(words: tuple[str, ...], as_json: bool) -> int:
    """List the known upstream issues that contain every word of SEARCH; up to three are shown in full.

    For example: exportdoctor known window index
    """
    found = search(" ".join(words))
    if as_json:
        kept = list_measurements()
        rows = [KnownRow(**asdict(one) | {"measured": tuple(m for m in kept if one.id in m.issues)}) for one in found]
        write_out(pretty(rows).decode())
    elif not found:
        raise UsageError(f"no known issue contains {' '.join(words)!r}", hint="To list all: exportdoctor known")
    else:
        write_out(_list(found))
    return ExitCode.EXPORTS


known = search_issues  # main loads the command by the verb's name


def _list(found: tuple[KnownIssue, ...]) -> str:
    canvas, measured = Canvas(style_of(sys.stdout)), list_measurements()
    for issue in found:
        canvas.paragraph(issue.id, colour="title")
        canvas.paragraph(issue.title, indent=4)
        if len(found) <= _IN_FULL:
            canvas.paragraph(issue.cause, indent=4)
            canvas.paragraph(f"Next: {issue.workaround}", indent=4, hang=2)
        canvas.paragraph(", ".join(issue.links), indent=4, colour="dim")
        for line in wording.known_versions(issue, [one for one in measured if issue.id in one.issues]):
            canvas.paragraph(line, indent=4, hang=2, colour="dim")
    if len(found) > _IN_FULL:
        canvas.blank()
        canvas.paragraph(f"{wording.count(len(found), 'issue')}. Add search words to see cause and workaround.")
    return canvas.text()
