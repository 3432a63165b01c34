"""The report as SARIF 2.1.0, for code scanning: a rule for each kind of failure, a result for each finding."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from exportdoctor.core.codec import pretty
from exportdoctor.core.failure import explanations
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.run.report import Report
from exportdoctor.report import wording

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: Report) -> str:
    """The whole report."""
    kinds = sorted({finding.kind for finding in report.findings})
    driver = {"name": "exportdoctor", "rules": [_rule(kind) for kind in kinds]}
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": report.complete}],
        "results": [_result(finding, kinds) for finding in report.findings],
    }
    return pretty({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}).decode()


def _rule(kind: FailureKind) -> dict[str, Any]:
    return {
        "id": kind,
        "shortDescription": {"text": kind.replace("_", " ")},
        "fullDescription": {"text": explanations.summary(kind)},
        "help": {"text": explanations.next_step(kind)},
    }


def _result(finding: Finding, kinds: list[FailureKind]) -> dict[str, Any]:
    """A finding; without a file of its own it has only the submodule as its place."""
    location: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": wording.module_name(finding.module), "kind": "module"}]
    }
    if finding.file:
        location["physicalLocation"] = _place(finding)
    return {
        "ruleId": finding.kind,
        "ruleIndex": kinds.index(finding.kind),
        "level": "error",
        "message": {"text": wording.plain("\n".join((wording.culprit_line(finding), *wording.story(finding))))},
        "locations": [location],
        "partialFingerprints": {"exportdoctorSignature/1": finding.signature},
        "properties": {"id": finding.id, "part": finding.part, "modules": list(finding.modules)},
    }


def _place(finding: Finding) -> dict[str, Any]:
    path = PurePath(finding.file or "")
    place: dict[str, Any] = {"artifactLocation": {"uri": path.as_uri() if path.is_absolute() else path.as_posix()}}
    if finding.line:
        place["region"] = {"startLine": finding.line, "snippet": {"text": finding.source or ""}}
    return place
