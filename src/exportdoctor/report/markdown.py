"""The report as GitHub-flavoured Markdown: a table of parts, the folded trees, and a section for each finding."""

from __future__ import annotations

import re

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.run.report import PartRecord, Report
from exportdoctor.report import wording
from exportdoctor.report.folded_tree import Row, condense, group_siblings, label, silent

_ADDRESS = re.compile(r"https://[!-;=?-~]+")
_SPECIAL = re.compile(r"([\\`*{}\[\]<>#|~]|(?<!\w)_|_(?!\w))")


def render(report: Report) -> str:
    """The whole report."""
    title, *rest = wording.headline(report)
    blocks = [f"# {_text(title)}", _text(" · ".join(rest)), _parts(report)]
    for part in report.parts:
        if part.verdict != "passes" or not part.complete:
            blocks.append(_tree(part))
    for finding in report.findings:
        blocks += _finding_section(finding, report)
    for part in report.parts:
        if sentences := wording.prescription(part, report):
            blocks += [f"## {_text(wording.cure_title(part))}", *map(_text, sentences)]
            blocks.append(_fence(wording.prescription_code(part), "python"))
    blocks += [_text(note) for note in report.notes]
    blocks += [_text(wording.cost(report)), _text(wording.cut_off_note(report)), _environment(report)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _parts(report: Report) -> str:
    header = wording.PARTS_HEADER
    lines = [f"| {' | '.join(header)} |", f"| {' | '.join('---' for _ in header)} |"]
    for part in report.parts:
        found = sum(1 for finding in report.findings if finding.part == part.name)
        symbol = wording.SYMBOLS[wording.VERDICT_STATUS[part.verdict] if part.complete else "not_asked"]
        verdict = f"{symbol} {wording.verdict(part, found)}"
        cells = (part.name, part.title, verdict, wording.cure(part), wording.proof(part.prescription))
        lines.append("| " + " | ".join(_text(cell) for cell in cells) + " |")
    return "\n".join(lines) if report.parts else ""


def _tree(part: PartRecord) -> str:
    """The folded tree as a nested list."""
    lines = [f"## {_text(part.name)}", "", _text(wording.coverage(part)), ""]
    lines += _rows(condense(group_siblings(part)), depth=0)
    for status in ("not_called", "not_asked"):
        if names := silent(part, status):
            lines.append(f"- {wording.SYMBOLS[status]} {wording.STATUS_WORDS[status]}: {_code(label(names, most=6))}")
    return "\n".join(lines)


def _rows(rows: tuple[Row, ...], *, depth: int) -> list[str]:
    lines = []
    for row in rows:
        pieces = (_code(wording.row_name(row)), _text(wording.remark(row)), _bold(wording.row_finding(row)))
        text = " · ".join(piece for piece in pieces if piece)
        lines.append(f"{'  ' * depth}- {wording.SYMBOLS[row.status]} {text}")
        lines += _rows(row.children, depth=depth + 1)
    return lines


def _finding_section(finding: Finding, report: Report) -> list[str]:
    """What, where, why, what next, and the stack folded away."""
    blocks = [f"## {_text(wording.title(finding, report))}"]
    if finding.source and not wording.same_as_earlier(finding, report):
        blocks.append(_fence(finding.source.strip(), "python"))
    blocks += [_text(sentence) for sentence in wording.chapter(finding, report)]
    links = [wording.issue_link(issue.link) for issue in finding.known_issues if issue.link]
    blocks.append("\n".join(f"- <{link}>" if _ADDRESS.fullmatch(link) else f"- {_text(link)}" for link in links))
    stack = "\n".join(_frame(frame) for frame in finding.stack)
    details = f"{finding.exception.type}: {finding.exception.message}\n\n{stack}".strip()
    blocks.append(f"<details><summary>Exception and stack</summary>\n\n{_fence(details, 'text')}\n\n</details>")
    return blocks


def _frame(frame: Frame) -> str:
    """A frame as Python prints it; `>` marks the user's."""
    mark = ">" if frame.user else " "
    inside = f" [{wording.module_name(frame.module)}]" if frame.module is not None else ""
    head = f"{mark} {wording.short_path(frame.file)}:{frame.line} in {frame.function}{inside}"
    return f"{head}\n      {frame.source.strip()}" if frame.source else head


def _environment(report: Report) -> str:
    return ", ".join(_text(f"{name} {version}") for name, version in sorted(report.environment.items()))


def _text(text: str) -> str:
    """One line of `text` in which nothing is markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(wording.plain(text).split()))


def _bold(text: str) -> str:
    return f"**{_text(text)}**" if text else ""


def _code(text: str) -> str:
    """`text` as a code span, whatever backticks it has."""
    text = " ".join(wording.plain(text).split()) or " "
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def _fence(text: str, language: str) -> str:
    """`text` as a code block, whatever fences it has."""
    text = wording.plain(text)
    ticks = "`" * max(3, max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"
