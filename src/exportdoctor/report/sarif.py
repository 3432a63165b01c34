"""The report as SARIF 2.1.0, for code scanning: a rule for each kind of failure, a result for each finding."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from exportdoctor.core.codec import pretty
from exportdoctor.core.failure import explanations
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import BlamedCode, code_of
from exportdoctor.core.failure.kinds import KINDS, FailureKind
from exportdoctor.core.run.report import Report
from exportdoctor.report import wording
from exportdoctor.report.github_annotations import level_of
from exportdoctor.report.repository_paths import CodePlace, places_of, relative_path

_ROOT = "%SRCROOT%"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: Report, known: frozenset[str] = frozenset()) -> str:
    """The whole report. `known`: the ids of findings that a baseline has."""
    kinds = sorted({finding.kind for finding in report.findings})
    driver = {"name": "exportdoctor", "version": version("exportdoctor"), "rules": [_rule(kind) for kind in kinds]}
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(report)],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "the root of the repository that was checked"}}},
        "results": [
            _result(finding, kinds, report) | _state_in_baseline(finding.id in known) for finding in report.findings
        ],
    }
    return pretty({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}).decode()


def _invocation(report: Report) -> dict[str, Any]:
    """Whether the run came to its end, and why not."""
    why = wording.cut_off_note(report)
    said = {"toolExecutionNotifications": [{"level": "error", "message": {"text": why}}]} if why else {}
    return {"executionSuccessful": report.complete, **said}


def _rule(kind: FailureKind) -> dict[str, Any]:
    page = explanations.explain(kind).documented if kind in KINDS else ""
    return {
        **({"helpUri": page} if page else {}),
        "id": kind,
        "shortDescription": {"text": kind.replace("_", " ")},
        "fullDescription": {"text": explanations.summary(kind)},
        "help": {
            "text": explanations.next_step(kind),
            "markdown": f"{explanations.next_step(kind)}\n\nMore: `exportdoctor explain {kind}`",
        },
    }


def _state_in_baseline(known: bool) -> dict[str, Any]:
    """What is said of a result that a baseline has, too."""
    said = {"kind": "external", "justification": "a known failure, as in the baseline"}
    return {"level": "note", "baselineState": "unchanged", "suppressions": [said]} if known else {}


def _result(finding: Finding, kinds: list[FailureKind], report: Report) -> dict[str, Any]:
    """A finding at the innermost line that is in the repository, with its other lines; else where it is installed."""
    location: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": wording.module_name(finding.module), "kind": "module"}]
    }
    places, code = list(places_of(finding)), code_of(finding)
    related = [{"physicalLocation": _repository_place(place)} for place in places[1:]]
    if places:
        location["physicalLocation"] = _repository_place(places[0])
        if relative_path(code.file) is None and _is_file(code):
            related.insert(0, {"physicalLocation": _place(code), "message": {"text": "the line that fails"}})
    elif _is_file(code):
        location["physicalLocation"] = _place(code)
    return {
        "ruleId": finding.kind,
        "ruleIndex": kinds.index(finding.kind),
        "level": level_of(finding, report),
        "message": {
            "text": wording.plain("\n".join((wording.culprit_line(finding), *wording.story(finding, report.run))))
        },
        "locations": [location],
        **({"relatedLocations": [{"id": number, **one} for number, one in enumerate(related, 1)]} if related else {}),
        "partialFingerprints": {"exportdoctorSignature/1": _fingerprint(finding)},
        "properties": {"id": finding.id, "part": finding.part, "modules": list(finding.modules)},
    }


def _repository_place(place: CodePlace) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": place.line, "snippet": {"text": place.source}}
    if place.columns is not None:
        region |= {"startColumn": place.columns[0], "endColumn": place.columns[1]}
    return {"artifactLocation": {"uri": quote(place.file), "uriBaseId": _ROOT}, "region": region}


def _fingerprint(finding: Finding) -> str:
    """The signature; with the guard where that is what tells violated dimensions of one module from each other."""
    if finding.file is not None or finding.guard is None:
        return finding.signature
    code = code_of(finding)
    guard = hashlib.sha256(f"{code.function}\x1f{code.source}".encode()).hexdigest()[:12]
    return f"{finding.signature}-{guard}"


def _is_file(code: BlamedCode) -> bool:
    """Whether the line stands in a file, and not in code that was given to Python as text, such as `<stdin>`."""
    return PurePath(code.file).is_absolute()


def _place(code: BlamedCode) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": PurePath(code.file).as_uri()}}
    if code.line:
        place["region"] = {"startLine": code.line, "snippet": {"text": code.source}}
    return place
