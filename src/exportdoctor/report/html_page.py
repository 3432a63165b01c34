"""The report as one HTML file that needs nothing else: no script, no font, no address but upstream's.

Every text that comes from the target is escaped.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.run.report import PartRecord, Report
from exportdoctor.report import wording
from exportdoctor.report.folded_tree import Row, condense, group_siblings, label, silent


def render(report: Report) -> str:
    """The whole page."""
    title, *rest = wording.headline(report)
    body = [f"<h1>{_text(title)}</h1>", f"<p>{_text(' · '.join(rest))}</p>", _parts(report)]
    body += [_tree(part) for part in report.parts]
    body += [_finding_section(finding, report) for finding in report.findings]
    for part in report.parts:
        if sentences := wording.prescription(part, report):
            body += [
                f"<h2>{_text(wording.cure_title(part))}</h2>",
                *(f"<p>{_text(sentence)}</p>" for sentence in sentences),
            ]
            body.append(f"<pre>{_text(wording.prescription_code(part))}</pre>")
    body += [
        f"<p>{_text(note)}</p>" for note in (*report.notes, wording.cost(report), wording.cut_off_note(report)) if note
    ]
    body.append(f"<p class=dim>{_text(', '.join(map(' '.join, sorted(report.environment.items()))))}</p>")
    css = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}: exportdoctor</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _parts(report: Report) -> str:
    lines = ["<table>"]
    for part in report.parts:
        found = sum(1 for finding in report.findings if finding.part == part.name)
        status = wording.VERDICT_STATUS[part.verdict] if part.complete else "not_asked"
        cells = (part.title, wording.cure(part), wording.proof(part.prescription))
        verdict = f'<td class="{status}">{wording.SYMBOLS[status]} {_text(wording.verdict(part, found))}</td>'
        first, *others = [f"<td>{_text(cell)}</td>" for cell in cells]
        lines.append(f"<tr><th>{_text(part.name)}</th>{first}{verdict}{''.join(others)}</tr>")
    return "\n".join([*lines, "</table>"])


def _tree(part: PartRecord) -> str:
    lines = [f"<h2>{_text(part.name)}</h2>", f"<p>{_text(wording.coverage(part))}</p>"]
    lines += _rows(condense(group_siblings(part)))
    for status in ("not_called", "not_asked"):
        if names := silent(part, status):
            lines.append(
                f"<p class=dim>{wording.SYMBOLS[status]} {wording.STATUS_WORDS[status]}: {_text(label(names))}</p>"
            )
    return "\n".join(lines)


def _rows(rows: tuple[Row, ...]) -> list[str]:
    if not rows:
        return []
    lines = ["<ul>"]
    for row in rows:
        named = _text(wording.row_finding(row))
        link = f' <a href="#{named}">{named}</a>' if named else ""
        names = f'<code title="{_text(row.class_name)}">{_text(wording.row_name(row))}</code>'
        lines.append(
            f'<li class="{row.status}">{wording.SYMBOLS[row.status]} {names} {_text(wording.remark(row))}{link}'
        )
        lines += [*_rows(row.children), "</li>"]
    return [*lines, "</ul>"]


def _finding_section(finding: Finding, report: Report) -> str:
    source = (
        f"<pre>{_text(finding.source.strip())}</pre>"
        if finding.source and not wording.same_as_earlier(finding, report)
        else ""
    )
    links = [wording.issue_link(issue.link) for issue in finding.known_issues if issue.link]
    safe = [link for link in links if link.startswith("https://")]
    frames = "\n".join(map(_frame, finding.stack))
    return "\n".join(
        (
            f'<section id="{_text(finding.id)}">',
            f"<h2>{_text(wording.title(finding, report))}</h2>",
            source,
            *(f"<p>{_text(sentence)}</p>" for sentence in wording.chapter(finding, report)),
            *(f'<p><a href="{_text(link)}">{_text(link)}</a></p>' for link in safe),
            "<details><summary>Exception and stack</summary>",
            f"<pre>{_text(f'{finding.exception.type}: {finding.exception.message}')}</pre>",
            f"<ol>\n{frames}\n</ol></details>",
            "</section>",
        )
    )


def _frame(frame: Frame) -> str:
    inside = f" in <code>{_text(wording.module_name(frame.module))}</code>" if frame.module is not None else ""
    source = f"<br><code>{_text(frame.source.strip())}</code>" if frame.source else ""
    where = f"{wording.short_path(frame.file)}:{frame.line} {frame.function}"
    return f'<li class="{"user" if frame.user else "dim"}">{_text(where)}{inside}{source}</li>'


def _text(text: str) -> str:
    return escape(wording.plain(text), quote=True)
