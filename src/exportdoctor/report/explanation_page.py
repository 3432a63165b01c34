"""What a kind of failure means and how to rewrite it, for a kind or for a finding, as text or Markdown."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec.structs import replace

from exportdoctor.core.failure.explanations import Explanation, Rewrite, documented_limit_of, explain
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import KINDS, FailureKind
from exportdoctor.core.failure.statement_forms import statement_form
from exportdoctor.core.run.report import Report
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Style
from exportdoctor.report.markdown_text import escape_line, fence
from exportdoctor.report.wording import operators, rewrites, scripted_modules

_DIFF_COLOURS = {"+": "green", "-": "red", "@": "dim"}


class Block(NamedTuple):
    """A piece of an explanation: a heading (`title`, `section`, `item`), a paragraph, code, a diff, or the address of
    the page that documents the failure."""

    kind: Literal["title", "section", "item", "text", "code", "diff", "page"]
    text: str


def kind_blocks(name: str) -> Iterator[Block]:
    """Everything that is said of a kind of failure. Raises ExportdoctorError where there is none of that name."""
    told = explain(name)
    yield Block("title", f"{told.title} ({told.kind})")
    yield Block("text", told.summary)
    yield Block("section", rewrites.WHY)
    yield Block("text", told.paragraph)
    if told.documented:
        yield Block("page", told.documented)
    yield Block("section", rewrites.ADVICE)
    yield Block("text", told.next_step)
    yield Block("section", rewrites.REWRITES)
    for rewrite in told.rewrites:
        yield from _example(rewrite)


def finding_blocks(finding: Finding, report: Report, *, note: str = "") -> Iterator[Block]:
    """A finding with its explanation; `note` stands where its own line has no rewrites."""
    yield Block("title", wording.title(finding, report))
    if finding.source:
        yield Block("code", finding.source.strip())
    yield Block("text", wording.exception_line(finding))
    if cure := rewrites.cured_by_shims(finding, report):
        yield Block("text", cure)
    examples = bool(_examples_for(finding))
    yield from explanation_of(finding, note=note or rewrites.no_rewrite_works(finding.rewrites, examples=examples))


def explanation_of(finding: Finding, *, note: str = "") -> Iterator[Block]:
    """Why a finding fails, the rewrites of its own line that were tried, and those of its kind."""
    told = _explanation_for(finding)
    yield Block("section", f"{rewrites.WHY}: {told.title}")
    yield Block("text", told.paragraph)
    if page := documented_limit_of(finding):
        yield Block("page", page)
    if finding.rewrites or note:
        yield Block("section", rewrites.OWN_LINE)
        yield from own_line_blocks(finding, note=note)
    yield Block("section", rewrites.ADVICE)
    yield Block("text", told.next_step if scripted_modules.is_torchscript(finding) else rewrites.usual_step(finding))
    for issue in finding.known_issues:
        if issue.workaround:
            yield Block("text", wording.issue_advice(issue))
    chosen = _examples_for(finding)
    if chosen:
        yield Block("section", f"{rewrites.EXAMPLES} ({told.kind})")
    for rewrite in chosen:
        yield from _example(rewrite)


def _explanation_for(finding: Finding) -> Explanation:
    """That of the finding's kind, as it holds for the finding."""
    known = explain(finding.kind if finding.kind in KINDS else FailureKind.PYTHON_ERROR)
    if not scripted_modules.is_torchscript(finding):
        return operators.explanation_for(known, finding)
    return replace(
        known,
        title=scripted_modules.TITLE,
        paragraph=scripted_modules.PARAGRAPH,
        next_step=scripted_modules.NEXT,
        rewrites=(),
    )


def _examples_for(finding: Finding) -> tuple[Rewrite, ...]:
    """The rewrites of its kind that fit the form of its statement, or its operator."""
    told = _explanation_for(finding)
    return told.rewrites_for(operators.form(finding) or statement_form(finding)) if told.rewrites else ()


def own_line_blocks(finding: Finding, *, note: str = "") -> Iterator[Block]:
    """The rewrites of a finding's own line that were tried, those that work first."""
    ranks = ("exports", "no_values", "further", "not_tried", "before")
    kept = [one for one in finding.rewrites if not rewrites.is_failed(one)]
    shown = sorted(kept, key=lambda one: ranks.index(one.ended or one.result))
    for tried in shown:
        yield Block("item", tried.title)
        yield Block("diff", tried.diff)
        yield Block("text", rewrites.rewrite_result(tried, finding))
    for line in rewrites.failed_rewrites(finding.rewrites, finding):
        yield Block("text", line)
    if note and not shown:
        yield Block("text", note)


def _example(rewrite: Rewrite) -> Iterator[Block]:
    yield Block("item", rewrite.title)
    yield Block("diff", rewrite_diff(rewrite))


def rewrite_diff(rewrite: Rewrite) -> str:
    """A kind's rewrite as a unified diff without its head."""
    before, after = rewrite.before.strip().splitlines(), rewrite.code.strip().splitlines()
    lines = difflib.unified_diff(before, after, n=max(len(before), len(after)), lineterm="")
    return "\n".join(list(lines)[3:]) + "\n"


def as_text(blocks: Iterator[Block], style: Style) -> str:
    """The blocks for a terminal."""
    canvas = Canvas(style)
    for kind, text in blocks:
        text = wording.plain(text)
        if kind in {"title", "section", "item"}:
            canvas.blank()
        match kind:
            case "title":
                canvas.paragraph(text, hang=4, colour="title")
            case "section":
                canvas.paragraph(text, hang=4, colour="bold")
            case "item":
                canvas.paragraph(text, indent=2, hang=4)
            case "diff":
                for line in text.rstrip().splitlines():
                    canvas.unbroken(line, indent=6, colour=_DIFF_COLOURS.get(line[:1], ""))
            case "page":
                canvas.paragraph(wording.DOCUMENTED, indent=2)
                canvas.unbroken(text, indent=4)
            case "code":
                canvas.code(text, indent=6)
            case _:
                canvas.paragraph(text, indent=2)
    return canvas.text()


def as_markdown(blocks: Iterator[Block], *, level: int = 1) -> str:
    """The blocks as Markdown, their title at this level of heading."""
    marks = {"title": "#" * level, "section": "#" * (level + 1), "item": "#" * (level + 2)}
    parts = []
    for kind, text in blocks:
        if kind in marks:
            parts.append(f"{marks[kind]} {escape_line(text)}")
        elif kind in {"diff", "code"}:
            parts.append(fence(text.rstrip("\n"), "diff" if kind == "diff" else "python"))
        elif kind == "page":
            parts.append(f"{wording.DOCUMENTED} <{text}>")
        else:
            parts.append(escape_line(text))
    return "\n\n".join(parts) + "\n"
