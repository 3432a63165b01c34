"""The report as workflow commands of GitHub Actions: an annotation for each finding, at its line in the repository."""

from __future__ import annotations

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.run.report import PartRecord, Report
from exportdoctor.report import wording
from exportdoctor.report.repository_paths import places_of


def render(report: Report, known: frozenset[str] = frozenset()) -> str:
    """A line for each finding, one for each part that has none, and one for a run that was cut off. `known`: the ids
    that a baseline has."""
    lines = [
        _annotation(finding, report, "notice" if finding.id in known else level_of(finding, report))
        for finding in report.findings
    ]
    told = {finding.part for finding in report.findings}
    lines += [_of_part(part, report) for part in report.parts if part.complete and part.name not in told]
    if note := wording.cut_off_note(report):
        lines.append(f"::error title=exportdoctor::{_data(f'{report.target.ref}: {note}')}")
    return "\n".join(lines) + "\n" if lines else ""


def _of_part(part: PartRecord, report: Report) -> str:
    level, said = ("notice", "exports") if part.verdict == "passes" else ("error", wording.verdict(part, 0))
    return f"::{level} title=exportdoctor::{_data(f'{report.target.ref} {part.name} {said}')}"


def level_of(finding: Finding, report: Report) -> str:
    """`error` where the part fails, `warning` where it exports with shims."""
    cured = any(part.name == finding.part and part.verdict == "cured" for part in report.parts)
    return "warning" if cured else "error"


def _annotation(finding: Finding, report: Report, level: str) -> str:
    place = next(places_of(finding), None)
    properties = {"title": f"torch.export: {finding.kind.replace('_', ' ')}"}
    if place is not None:
        properties = {"file": place.file, "line": str(place.line), **properties}
        if place.columns is not None:
            properties |= {"col": str(place.columns[0]), "endColumn": str(place.columns[1])}
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    sentences = (wording.title(finding, report), *wording.chapter(finding, report))
    text = "\n".join(sentence for sentence in sentences if not sentence.startswith("Log: "))
    return f"::{level} {given}::{_data(text)}"


def _data(text: str) -> str:
    return wording.plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
