"""What can be copied to the clipboard from a selection; the texts are those of the reports."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from exportdoctor.core.run.report import Report
from exportdoctor.report import render, wording
from exportdoctor.report.wording.formatting import issue_name
from exportdoctor_tui.actions.commands import bundle_folder
from exportdoctor_tui.pages.cure_page import export_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.core.failure.finding import Finding
    from exportdoctor_tui.state.selection import Selection


def copies(selection: Selection) -> tuple[tuple[str, str], ...]:
    """Title and text of everything that can be copied."""
    return tuple((title, text) for title, text in _copies(selection) if text)


def _copies(selection: Selection) -> Iterator[tuple[str, str]]:
    view, finding = selection.view, selection.finding
    if finding is not None and finding.id:
        report = Report(run=view.run, target=view.target, environment=dict(view.environment), findings=(finding,))
        yield f"{finding.id} as Markdown, for an issue", render(report, "md")
    if finding is not None:
        yield "The exception", f"{finding.exception.type}: {finding.exception.message}"
        yield "file:line of the culprit", wording.place(finding)
        yield "The repro script", _script(selection)
        yield from _places(selection, finding)
    yield "The command that exports the part with shims", export_command(selection)
    yield "The shims as Python code", wording.prescription_code(selection.part.record)
    yield "The submodule's name", selection.row.fqns[0]
    if view.started is not None:
        yield "The command that made this run", " ".join(map(shlex.quote, ("exportdoctor", *view.started.command[1:])))
    yield "The folder of this run", view.path
    yield "The command that prints this report", f"exportdoctor report {shlex.quote(view.run)} --format md"


def _places(selection: Selection, finding: Finding) -> Iterator[tuple[str, str]]:
    """Addresses of upstream issues, and paths of what was written for a finding."""
    for issue in finding.known_issues:
        if issue.link:
            yield f"The address of {issue_name(issue.link)}", wording.issue_link(issue.link)
    bundle = bundle_folder(selection.view, finding)
    if finding.id and bundle.is_dir():
        yield "The folder of the issue", str(bundle)
    if finding.repro is not None:
        yield "The path of the repro script", str(bundle.parents[1] / finding.repro.path)
    yield "The path of the log", finding.log or ""


def _script(selection: Selection) -> str:
    finding = selection.finding
    if finding is None or finding.repro is None:
        return ""
    try:
        return selection.read(finding.repro.path)
    except OSError:
        return ""
