"""The report as GitHub-flavoured Markdown: a table of parts, the folded trees, and a section for each finding."""

from __future__ import annotations

import re

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.run.report import PartRecord, Report
from exportdoctor.report import wording
from exportdoctor.report.explanation_page import as_markdown, explanation_of, own_line_blocks
from exportdoctor.report.folded_tree import Row, condense, group_siblings, label, silent
from exportdoctor.report.markdown_text import bold, code_span, escape_line, fence

_ADDRESS = re.compile(r"https://[!-;=?-~]+")


def render(report: Report) -> str:
    """The whole report."""
    title, *rest = wording.headline(report)
    blocks = [f"# {escape_line(title)}", escape_line(" · ".join(rest)), _parts(report)]
    for part in report.parts:
        if part.verdict != "passes" or not part.complete:
            blocks.append(_tree(part))
    for finding in report.findings:
        blocks += _finding_section(finding, report)
    for part in report.parts:
        if sentences := wording.prescription(part, report):
            blocks += [f"## {escape_line(wording.cure_title(part))}", *map(escape_line, sentences)]
            blocks.append(fence(wording.prescription_code(part), "python"))
    blocks += [escape_line(note) for note in report.notes]
    blocks += [escape_line(wording.cost(report)), escape_line(wording.cut_off_note(report)), _environment(report)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _parts(report: Report) -> str:
    header = wording.PARTS_HEADER
    lines = [f"| {' | '.join(header)} |", f"| {' | '.join('---' for _ in header)} |"]
    for part in report.parts:
        found = sum(1 for finding in report.findings if finding.part == part.name)
        symbol = wording.SYMBOLS[wording.VERDICT_STATUS[part.verdict] if part.complete else "not_asked"]
        verdict = f"{symbol} {wording.verdict(part, found)}"
        cells = (part.name, part.title, verdict, wording.cure(part), wording.proof(part.prescription))
        lines.append("| " + " | ".join(escape_line(cell) for cell in cells) + " |")
    return "\n".join(lines) if report.parts else ""


def _tree(part: PartRecord) -> str:
    """The folded tree as a nested list."""
    lines = [f"## {escape_line(part.name)}", "", escape_line(wording.coverage(part)), ""]
    lines += _rows(condense(group_siblings(part)), depth=0)
    for status in ("not_called", "not_asked"):
        if names := silent(part, status):
            lines.append(
                f"- {wording.SYMBOLS[status]} {wording.STATUS_WORDS[status]}: "
                f"{code_span(label(map(wording.module_name, names), most=6))}"
            )
    return "\n".join(lines)


def _rows(rows: tuple[Row, ...], *, depth: int) -> list[str]:
    lines = []
    for row in rows:
        pieces = (code_span(wording.row_name(row)), escape_line(wording.remark(row)), bold(wording.row_finding(row)))
        text = " · ".join(piece for piece in pieces if piece)
        lines.append(f"{'  ' * depth}- {wording.SYMBOLS[row.status]} {text}")
        lines += _rows(row.children, depth=depth + 1)
    return lines


def _finding_section(finding: Finding, report: Report) -> list[str]:
    """What, where, why, what next, and the stack folded away."""
    blocks = [f"## {escape_line(wording.title(finding, report))}"]
    if finding.source and not wording.same_as_earlier(finding, report):
        blocks.append(fence(finding.source.strip(), "python"))
    blocks += [escape_line(sentence) for sentence in wording.chapter(finding, report)]
    links = [wording.issue_link(issue.link) for issue in finding.known_issues if issue.link]
    blocks.append("\n".join(f"- <{link}>" if _ADDRESS.fullmatch(link) else f"- {escape_line(link)}" for link in links))
    first = next(one for one in report.findings if one.kind == finding.kind) is finding
    if first or finding.rewrites:
        told = as_markdown(explanation_of(finding) if first else own_line_blocks(finding), level=3)
        blocks.append(f"<details><summary>Why, and how to rewrite it</summary>\n\n{told}\n</details>")
    stack = "\n".join(_frame(frame) for frame in finding.stack)
    details = f"{finding.exception.type}: {finding.exception.message}\n\n{stack}".strip()
    blocks.append(f"<details><summary>Exception and stack</summary>\n\n{fence(details, 'text')}\n\n</details>")
    return blocks


def _frame(frame: Frame) -> str:
    """A frame as Python prints it; `>` marks the user's."""
    mark = ">" if frame.user else " "
    inside = f" [{wording.module_name(frame.module)}]" if frame.module is not None else ""
    head = f"{mark} {wording.short_path(frame.file)}:{frame.line} in {frame.function}{inside}"
    return f"{head}\n      {frame.source.strip()}" if frame.source else head


def _environment(report: Report) -> str:
    return ", ".join(escape_line(f"{name} {version}") for name, version in sorted(report.environment.items()))
