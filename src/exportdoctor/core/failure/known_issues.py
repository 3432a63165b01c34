"""Tells whether upstream knows a failure already. No false friends: when in doubt, nothing is reported.

An entry that says where in the code its failure lies beats one that fits by message alone; a fallback speaks only
where no other entry does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import msgspec

from exportdoctor.core.failure.evidence import Evidence, ExceptionLike, FrameLike, evidence_of
from exportdoctor.core.failure.known_issue import Clause, KnownIssue, issues_from
from exportdoctor.core.version_range import holds

# How well a clause fits: 0 = not at all
_BY_MESSAGE_BUT_ELSEWHERE, _BY_MESSAGE, _BY_PLACE = 1, 2, 3


class KnownMatch(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream issue with the same failure. `note` says what speaks against it, such as another version."""

    id: str
    title: str
    cause: str
    workaround: str
    link: str
    links: tuple[str, ...]
    affected: str
    fixed_in: str | None
    shim_hint: str
    note: str = ""


@cache
def load() -> tuple[KnownIssue, ...]:
    """The catalogue, checked, in its own order. A broken entry raises an ExportdoctorError that names it."""
    import yaml  # a tenth of the command line's start-up, and most runs match nothing

    text = files("exportdoctor").joinpath("data/known_issues.yaml").read_text(encoding="utf-8")
    # libyaml reads the catalogue in 10 ms, the Python parser in 130
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return issues_from(yaml.load(text, loader))


def match(
    *,
    exceptions: Sequence[ExceptionLike],
    frames: Sequence[FrameLike],
    stage: str,
    exporter: str,
    dynamic: bool,
    versions: Mapping[str, str],
) -> tuple[KnownMatch, ...]:
    """The issues that tell of this failure, the likeliest first. Never raises, whatever the texts hold.

    `exceptions` and `frames` run outermost first; `dynamic` = the attempt had dynamic shapes; `versions` by package.
    """
    evidence = evidence_of(exceptions, frames)
    stages = {stage, "export"} if any(one.name == "TorchExportError" for one in evidence.messages) else {stage}
    found = [
        (strength, issue)
        for issue in load()
        if not _outside(issue.only_with, versions)
        and (strength := max(_strength(clause, evidence, stages, exporter, dynamic) for clause in issue.match))
    ]
    ranked = sorted(_kept(found), key=lambda pair: (-pair[0], bool(_outside(pair[1].seen_with, versions))))
    return tuple(_told(issue, versions) for _, issue in ranked)


def search(text: str) -> tuple[KnownIssue, ...]:
    """The entries that contain every word of `text`, in any case; those with all of them in id or title first."""
    words = text.casefold().split()
    found = [issue for issue in load() if all(word in _all_of(issue) for word in words)]
    return tuple(sorted(found, key=lambda issue: not all(w in f"{issue.id} {issue.title}".casefold() for w in words)))


def _kept(found: list[tuple[int, KnownIssue]]) -> list[tuple[int, KnownIssue]]:
    if any(strength == _BY_PLACE for strength, _ in found):
        found = [pair for pair in found if pair[0] != _BY_MESSAGE_BUT_ELSEWHERE]
    specific = [pair for pair in found if not pair[1].fallback]
    return specific or found


def _strength(clause: Clause, evidence: Evidence, stages: set[str], exporter: str, dynamic: bool) -> int:
    if exporter not in clause.exporters or stages.isdisjoint(clause.stages):
        return 0
    if clause.dynamic not in (None, dynamic):
        return 0
    if not evidence.has_message(names=clause.exceptions, pattern=clause.message):
        return 0
    if clause.unless and any(re.search(clause.unless, line) for line in evidence.lines):
        return 0
    if not clause.places:
        return _BY_MESSAGE
    if _placed(clause, evidence):
        return _BY_PLACE
    return 0 if clause.frames_needed else _BY_MESSAGE_BUT_ELSEWHERE


def _placed(clause: Clause, evidence: Evidence) -> bool:
    innermost = evidence.lines[-1] if evidence.lines else ""
    return (
        (clause.frames is not None and any(re.search(clause.frames, line) for line in evidence.lines))
        or (clause.culprit is not None and bool(re.search(clause.culprit, evidence.culprit)))
        or (clause.raised_in is not None and bool(re.search(clause.raised_in, innermost)))
    )


def _outside(ranges: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """The first package whose version is known to lie outside of its range; empty where none is."""
    return next((name for name, text in ranges.items() if holds(text, versions.get(name)) is False), "")


def _told(issue: KnownIssue, versions: Mapping[str, str]) -> KnownMatch:
    other = _outside(issue.seen_with, versions)
    return KnownMatch(
        id=issue.id,
        title=issue.title,
        cause=issue.cause,
        workaround=issue.workaround,
        link=issue.links[0],
        links=issue.links,
        affected=issue.affected,
        fixed_in=issue.fixed_in,
        shim_hint=issue.shim_hint,
        note=f"seen with {other} {issue.seen_with[other]}; this is {versions[other]}" if other else "",
    )


def _all_of(issue: KnownIssue) -> str:
    exceptions = (name for clause in issue.match for name in clause.exceptions)
    fields = (issue.id, issue.title, issue.cause, issue.workaround, issue.shim_hint, issue.affected)
    return " ".join((*fields, issue.fixed_in or "", *issue.links, *exceptions)).casefold()
