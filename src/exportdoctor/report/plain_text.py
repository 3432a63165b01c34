"""The report for a terminal: a line for each part, the folded tree of each part that fails, then the findings."""

from __future__ import annotations

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.run.report import PartRecord, Report
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span, Style
from exportdoctor.report.folded_tree import Row, condense, group_siblings, label, silent

_COLOURS = {"pass": "green", "cured": "yellow", "not_called": "dim", "not_asked": "dim"}


def render(report: Report, style: Style) -> str:
    """The whole report in `style`."""
    canvas = Canvas(style)
    canvas.paragraph(wording.plain(" · ".join(wording.headline(report))), hang=2, colour="bold")
    _part_lines(report, canvas)
    for part in report.parts:
        if part.verdict != "passes" or not part.complete:
            _tree(part, canvas)
    for finding in report.findings:
        canvas.blank()
        _finding_section(finding, report, canvas)
    for part in report.parts:
        _cure(part, report, canvas)
    _end(report, canvas)
    return canvas.text()


def _part_lines(report: Report, canvas: Canvas) -> None:
    """One line for each part, in columns where there is room."""
    canvas.table([_part_cells(report, part, canvas.style) for part in report.parts], indent=2, hang=4)


def _part_cells(report: Report, part: PartRecord, style: Style) -> tuple[Span, ...]:
    found = sum(1 for finding in report.findings if finding.part == part.name)
    status = wording.VERDICT_STATUS[part.verdict] if part.complete else "not_asked"
    verdict = f"{_symbol(status, style)} {wording.verdict(part, found)}"
    return (
        Span(wording.plain(part.name), "bold"),
        Span(wording.plain(part.title)),
        Span(verdict, _COLOURS.get(status, "red")),
        Span(wording.cure(part)),
        Span(wording.proof(part.prescription)),
    )


def _tree(part: PartRecord, canvas: Canvas) -> None:
    canvas.blank()
    canvas.paragraph(wording.plain(f"{part.name} · {wording.coverage(part)}"), hang=2, colour="bold")
    rows = _flat(condense(group_siblings(part)), depth=0)
    cells = [_row_cells(row, canvas.style) for _, row in rows]
    lengths = [
        (2 * depth + len(own[0].text), *(len(cell.text) for cell in own[1:])) for (depth, _), own in zip(rows, cells)
    ]
    room = canvas.style.width * 3 // 5  # a very long name must not push the columns of all others out
    widths = [max((length[column] for length in lengths if length[0] <= room), default=0) for column in range(3)]
    for (depth, _), own in zip(rows, cells, strict=True):
        first = max(widths[0] - 2 * depth, len(own[0].text))
        canvas.columns(own, widths=(first, *widths[1:]), indent=2 + 2 * depth, hang=4)
    for status in ("not_called", "not_asked"):
        if names := silent(part, status):
            shown = label(map(wording.module_name, names), most=6)
            text = f"{_symbol(status, canvas.style)} {wording.STATUS_WORDS[status]}: {shown}"
            canvas.paragraph(wording.plain(text), indent=2, hang=4, colour="dim")


def _flat(rows: tuple[Row, ...], *, depth: int) -> list[tuple[int, Row]]:
    return [entry for row in rows for entry in ((depth, row), *_flat(row.children, depth=depth + 1))]


def _row_cells(row: Row, style: Style) -> tuple[Span, ...]:
    colour = _COLOURS.get(row.status, "red")
    names = f"{_symbol(row.status, style)} {wording.row_name(row)}"
    return (
        Span(wording.plain(names), colour),
        Span(wording.remark(row)),
        Span(wording.row_finding(row), "title"),
    )


def _finding_section(finding: Finding, report: Report, canvas: Canvas) -> None:
    """What, where, why, what next."""
    canvas.paragraph(wording.plain(wording.title(finding, report)), hang=4, colour="title")
    if finding.source and not wording.same_as_earlier(finding, report):
        canvas.code(wording.plain(finding.source.strip()), indent=6)
    for sentence in wording.chapter(finding, report):
        if sentence.startswith("Log: "):
            canvas.unbroken(wording.plain(sentence), indent=4)
        else:
            canvas.paragraph(wording.plain(sentence), indent=4, hang=2)


def _cure(part: PartRecord, report: Report, canvas: Canvas) -> None:
    """The prescription of a part that has one."""
    sentences = wording.prescription(part, report)
    if sentences:
        canvas.blank()
        canvas.paragraph(wording.plain(wording.cure_title(part)), hang=4, colour="title")
    for sentence in sentences:
        canvas.paragraph(wording.plain(sentence), indent=4, hang=2)
    if sentences:
        canvas.paragraph("In Python:", indent=4)
        canvas.code(wording.plain(wording.prescription_code(part)), indent=6)


def _end(report: Report, canvas: Canvas) -> None:
    canvas.blank()
    for note in report.notes:
        canvas.paragraph(wording.plain(note), hang=2)
    _summary(report, canvas)
    canvas.paragraph(wording.cost(report), hang=2, colour="dim")
    if text := wording.cut_off_note(report):
        canvas.paragraph(text, hang=2, colour="yellow")


def _summary(report: Report, canvas: Canvas) -> None:
    """What stays on the screen when the rest has scrolled away: a verdict for each part, a line for each failure."""
    if not report.findings:
        return
    canvas.blank()
    canvas.paragraph(f"Summary: {wording.different_findings(report)}", colour="title")
    for part in report.parts:
        name, _, *rest = _part_cells(report, part, canvas.style)
        said = ", ".join(cell.text for cell in rest if cell.text)
        canvas.paragraph(f"{name.text}  {said}", indent=2, hang=4, colour=rest[0].colour)
    for line in wording.summary_lines(report):
        canvas.paragraph(wording.plain(line), indent=2, hang=4)
    canvas.blank()


def render_end(report: Report, style: Style) -> str:
    """What follows a scan's report: the commands that come next; empty where there are none."""
    canvas = Canvas(style)
    commands = wording.next_commands(report)
    if commands:
        canvas.paragraph("Next", colour="title")
        rows = [(wording.plain(command), what) for command, what in commands]
        longest = [max(map(len, column)) for column in zip(*rows, strict=True)]
        if sum(longest) + 4 <= style.width:
            canvas.table([(Span(command), Span(what, "dim")) for command, what in rows], indent=2)
        else:
            for command, what in rows:
                canvas.unbroken(command, indent=2)
                canvas.paragraph(what, indent=6, colour="dim")
    return "\n" + canvas.text() if commands else ""


def render_summary(report: Report, style: Style) -> str:
    """Verdicts and failures alone, for those who have read the rest elsewhere, and the commands that come next."""
    canvas = Canvas(style)
    if report.findings:
        _summary(report, canvas)
    else:
        _part_lines(report, canvas)
    return canvas.text() + render_end(report, style)


def _symbol(status: str, style: Style) -> str:
    return (wording.ASCII_SYMBOLS if style.ascii else wording.SYMBOLS)[status]
