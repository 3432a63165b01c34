"""The report in brief, `exportdoctor.brief/1`: what an agent or a script needs first."""

from __future__ import annotations

import msgspec

from exportdoctor.core.codec import pretty
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import across_parts, code_of
from exportdoctor.core.run.report import PartRecord, PartVerdict, Report
from exportdoctor.report import wording


class BriefPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part's verdict, and the shims with which it exports; `max_abs_diff` is the largest difference to eager."""

    name: str
    verdict: PartVerdict
    complete: bool
    shims: tuple[str, ...] = ()
    soundness: str = ""
    max_abs_diff: float | None = None


class BriefFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A failure, once, at the line that fails, or that made the guard which a dimension violates.

    `also` are the findings of other parts that are the same, `masked_by` the one that hides it.
    """

    id: str
    part: str
    module: str
    function: str
    file: str
    line: int
    source: str
    kind: str
    message: str
    next: str
    also: tuple[str, ...] = ()
    masked_by: str = ""


class BriefReport(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts, failures, and the commands that come next. `error` is why a run ended that has neither."""

    schema: str = "exportdoctor.brief/1"
    run: str
    target: str
    complete: bool
    exports: bool
    parts: tuple[BriefPart, ...]
    findings: tuple[BriefFinding, ...]
    notes: tuple[str, ...]
    next: tuple[str, ...]
    error: str = ""


def brief(report: Report) -> BriefReport:
    """The report in brief."""
    return BriefReport(
        run=report.run,
        target=report.target.ref,
        complete=report.complete,
        exports=report.exports,
        parts=tuple(map(_brief_part, report.parts)),
        findings=tuple(
            _brief_finding(one, report) for one in report.findings if not wording.same_as_earlier(one, report)
        ),
        notes=report.notes,
        next=_next(report),
        error=report.error,
    )


def _next(report: Report) -> tuple[str, ...]:
    if not report.complete and not report.error and not report.target.in_memory:
        return (wording.resume_command(report.run),)
    return tuple(command for command, _ in wording.next_commands(report, run=report.run))


def render(report: Report) -> str:
    """As indented JSON with a final newline."""
    return pretty(brief(report)).decode()


def _brief_part(part: PartRecord) -> BriefPart:
    found = part.prescription
    proof = found.proof if found else part.numbers.proof if part.numbers else None
    return BriefPart(
        name=part.name,
        verdict=part.verdict,
        complete=part.complete,
        shims=found.shims if found else (),
        soundness=found.soundness if found else "",
        max_abs_diff=proof.max_abs_diff if proof else None,
    )


def _brief_finding(finding: Finding, report: Report) -> BriefFinding:
    code = code_of(finding)
    same = (one.id for one in report.findings if one is not finding and across_parts(one) == across_parts(finding))
    return BriefFinding(
        id=finding.id,
        part=finding.part,
        module=finding.module,
        function=code.function,
        file=code.file,
        line=code.line,
        source=code.source,
        kind=finding.kind,
        message=wording.exception_line(finding),
        next=wording.next_step(finding),
        also=tuple(same),
        masked_by=finding.behind or "",
    )
