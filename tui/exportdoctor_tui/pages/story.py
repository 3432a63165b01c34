"""The tab Story, in the reports' sentences: what failed, where, why, what next; or the evidence for another status."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from textual.content import Content
from textual.style import Style

from exportdoctor.report import wording
from exportdoctor.report.wording.formatting import issue_name
from exportdoctor_tui.pages.code import code
from exportdoctor_tui.sanitize import line
from exportdoctor_tui.state.outline import failures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.core.failure.finding import Finding
    from exportdoctor_tui.state.selection import Selection

COLOURS = {
    "pass": "$text-success",
    "fails_own": "$text-error",
    "fails_child": "$text-error",
    "cured": "$text-warning",
    "crashed": "$text-secondary",
    "timed_out": "$text-secondary",
    "unknown": "$text-warning",
}
_LABELLED = re.compile(r"^(Next|Known upstream|Shims tried|Repro|Log): ")
_WIDEST = 66  # cells of a line of context: beside its number it fits a pane of 76
_BLANK = Content("")


def story(selection: Selection) -> Content:
    """The whole tab."""
    paragraphs = [_module(selection)]
    if selection.finding is not None:
        others = [one for name in selection.row.also if (one := selection.view.findings.get(name)) is not None]
        paragraphs += _finding_lines(selection, selection.finding)
        for finding in others:
            paragraphs += [_BLANK, *_finding_lines(selection, finding)]
    else:
        paragraphs += _status_lines(selection)
    if selection.view.notes and selection.row.fqns == selection.part.rows[0].fqns:
        paragraphs += [_BLANK, Content.styled("Notes of this run", "bold $text-accent")]
        paragraphs += [Content(f"· {line(note)}") for note in selection.view.notes]
    return link_issues(Content("\n").join(paragraphs), selection.finding)


def link_issues(content: Content, finding: Finding | None) -> Content:
    """`content` in which the names of a finding's upstream issues are links, where the terminal has them."""
    for issue in finding.known_issues if finding else ():
        name, address = issue_name(issue.link), wording.issue_link(issue.link)
        if address.startswith("https://"):
            for found in re.finditer(re.escape(name), content.plain):
                content = content.stylize(Style(link=address), found.start(), found.end())
    return content


def _module(selection: Selection) -> Content:
    """The submodule, its class and its verdict."""
    row = selection.row
    status = selection.part.look(row)
    colour = COLOURS.get(status, "$foreground 75%")
    fact = selection.fact
    size = f" · {wording.parameters(fact.parameters)}" if fact and fact.parameters else ""
    others = f"  and {len(row.fqns) - 1} {'identical' if row.equal else 'similar'}" if len(row.fqns) > 1 else ""
    name = line(wording.module_name(row.fqns[0])) + others
    return Content.assemble(
        (f"{wording.SYMBOLS[status]} {name}", f"bold {colour}"),
        ("  " + line(row.class_name) + size, "$foreground 75%"),
    )


def _finding_lines(selection: Selection, finding: Finding) -> Iterator[Content]:
    kind = finding.kind.replace("_", " ") if finding.id else "being diagnosed"
    yield Content.assemble((f"{finding.id or '…'} · {kind} · {finding.stage}", "$foreground 75%"))
    if selection.part.cured:
        record = selection.part.record
        yield Content.assemble((f"✚ {line(record.name)} {wording.cure(record)}", "$text-warning"), ": press 5 for how")
    yield _BLANK
    yield Content.styled(line(wording.culprit_line(finding)), "bold $text-accent")
    culprit = selection.culprit if finding is selection.finding else None
    if culprit is not None:
        yield code(selection.sources.excerpt(culprit, around=2), expression=culprit.expression, widest=_WIDEST)
    elif finding.source:
        yield Content.styled("  " + line(finding.source), "$text-warning")
    yield _BLANK
    first, *rest = wording.story(finding, selection.view.run)
    yield Content.styled(line(first), "$text-error")
    for sentence in rest:
        if sentence.startswith("Log: "):  # a tab of its own
            continue
        yield _BLANK
        yield _sentence(line(sentence))


def _sentence(text: str) -> Content:
    """A sentence, with its label in bold."""
    label = _LABELLED.match(text)
    if label is None:
        return Content(text)
    return Content.assemble((label[0], "bold"), text[label.end() :])


def _status_lines(selection: Selection) -> Iterator[Content]:
    row, record = selection.row, selection.record
    yield _BLANK
    yield Content(f"{wording.STATUS_WORDS[row.status].capitalize()}: {line(wording.evidence(record, row.status))}")
    below = {path[-1].finding for path in failures(row.children) if path[-1].finding}
    for number in sorted(below, key=str):
        finding = selection.view.findings.get(number or "")
        if finding is not None:
            yield Content.assemble((f"{finding.id}  ", "bold $text-accent"), line(wording.culprit_line(finding)))
    if record is not None and record.note:
        yield Content(line(record.note))
    if selection.fact is not None and selection.fact.same_object is not None:
        yield Content(line(wording.same_object(selection.fact.same_object)))
    if selection.part.record.verdict == "passes" and not row.fqns[0] and selection.part.record.complete:
        passes = line(wording.part_without_shims(selection.part.record))
        yield Content(f"\n{passes}: {wording.coverage(selection.part.record)}.")
