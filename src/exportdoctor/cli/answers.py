"""The JSON answers of the verbs: the records of those that have no other, and the table that `schema` prints."""

from __future__ import annotations

import importlib
from types import GenericAlias
from typing import Any

import msgspec

from exportdoctor.core.failure.explanations import Explanation
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.known_issues import KnownIssue
from exportdoctor.core.run.measurement import Measurement
from exportdoctor.lanes.lane import Lane

_HERE = "exportdoctor.cli.answers"
ANSWERS = {
    "report": ("exportdoctor.core.run.report:Report", "report.json, scan --json, report --format json"),
    "brief": ("exportdoctor.report.brief:BriefReport", "scan --format brief, report --format brief"),
    "explain": (f"{_HERE}:ExplainedFinding", "explain FINDING --format json"),
    "explain-kind": ("exportdoctor.core.failure.explanations:Explanation", "explain KIND --format json"),
    "runs": ("exportdoctor.store.runs:RunSummary[]", "runs --json"),
    "parts": (f"{_HERE}:PartRow[]", "parts --json"),
    "compare": ("exportdoctor.report.comparison:Comparison", "compare --json"),
    "shims-list": (f"{_HERE}:ShimRow[]", "shims list --json"),
    "shims-show": (f"{_HERE}:ShimSheet", "shims show --json"),
    "shims-try": ("exportdoctor.engine.cure.try_shims:PartTrial[]", "shims try --json"),
    "known": (f"{_HERE}:KnownRow[]", "known --json"),
    "lanes": (f"{_HERE}:LaneRow[]", "lanes list --json, lanes make --json, lanes prune --json"),
    "matrix": ("exportdoctor.core.run.lane_matrix:LaneMatrix", "matrix --format json"),
    "retest": ("exportdoctor.core.run.lane_matrix:RetestRow[]", "retest --json"),
    "bisect": ("exportdoctor.core.run.bisection:VersionBisection", "bisect --package --format json"),
    "numbers": ("exportdoctor.core.protocol.numbers_ladder:LadderResult", "numbers --format json"),
    "domain": ("exportdoctor.core.protocol.domain:DomainResult", "domain --format json"),
    "sensitivity": ("exportdoctor.core.protocol.sensitivity:SensitivityResult", "sensitivity --format json"),
    "version": ("exportdoctor.cli.verbs.version:HookTable", "version --json"),
    "baseline": ("exportdoctor.core.run.known_failures:Baseline", "the file of --baseline and --export-baseline"),
    "atlas": ("exportdoctor.core.run.atlas:Atlas", "atlas.json of a sweep"),
}
"""Each answer's type, `[]` for a list of them, and the commands that give it."""


class PartRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a target; `scanned`: by default, without --part."""

    part: str
    scanned: bool


class ShimRow(msgspec.Struct, frozen=True, kw_only=True):
    """A shim; `reason` says why it does not fit what is installed."""

    id: str
    title: str
    provider: str
    soundness: str
    fits: bool
    reason: str | None
    does: str
    precondition: str
    needs: dict[str, str]
    link: str
    retire: str
    conflicts: tuple[str, ...]


class ShimSheet(ShimRow, frozen=True, kw_only=True):
    """A shim with the diff of what it replaces."""

    diff: str


class KnownRow(KnownIssue, frozen=True, kw_only=True):
    """A known issue; `measured` is what was seen of it on this machine."""

    measured: tuple[Measurement, ...] = ()  # type: ignore[assignment]


class LaneRow(msgspec.Struct, frozen=True, kw_only=True):
    """A lane with its state."""

    state: str
    lane: Lane


class ExplainedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with the rewrites of its line, and what is said of its kind."""

    finding: Finding
    explanation: Explanation


def schema_of(name: str) -> dict[str, Any]:
    """The JSON schema of an answer of the table."""
    path, given_by = ANSWERS[name]
    module, _, names = path.partition(":")
    kind: Any = getattr(importlib.import_module(module), names.removesuffix("[]"))
    schema = msgspec.json.schema(GenericAlias(list, kind) if names.endswith("[]") else kind)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": given_by, **schema}
