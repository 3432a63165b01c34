"""The known upstream issues: whether one of them is about a failure. When in doubt, nothing is reported.

An issue is about a failure only where the code that fails is the code that the issue is about: a function in a file of
the library, or an operation or class that torch's message names. Anywhere else it is at most the same pattern in other
code (`elsewhere`). What the user calls their own functions and variables is no evidence at all.

The catalogue is data/known_issues.yaml; tests/core/test_known.py checks its entries. An entry that says where in the
code its failure is beats one that fits by message alone; a fallback counts only where no other entry fits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

import msgspec

from exportdoctor.core.exporters import Exporter
from exportdoctor.core.failure.evidence import Evidence, evidence_of
from exportdoctor.core.failure.identity import outermost_operation
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, Stage
from exportdoctor.core.versions import is_in_range

# How well a clause fits: 0 = not at all
_BY_MESSAGE_BUT_ELSEWHERE, _BY_MESSAGE, _BY_PLACE = 1, 2, 3


class Clause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to recognise an issue. The catalogue's header says how each field is used."""

    exporters: tuple[Exporter, ...]
    stages: tuple[Stage, ...]
    exceptions: tuple[str, ...]
    message: str
    frames: str | None = None
    culprit: str | None = None
    raised_in: str | None = None
    unless: str | None = None
    guard: str | None = None
    frames_needed: bool = False
    dynamic: bool | None = None
    fixed_by_torch: bool | None = None
    takes: str | None = None

    @property
    def places(self) -> bool:
        """Whether it says where in the code the failure lies."""
        return any((self.frames, self.culprit, self.raised_in))


class KnownIssue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure that upstream knows. `links` are `owner/repository#number`, the one to read first.

    `upstream`, `operation` and `named` say how to see that the failing code is the one that the issue is about.
    `reproduced` and `measured` say on which versions it was seen; `affected` and `fixed_in` are as they were read.
    """

    id: str
    title: str
    cause: str
    workaround: str
    shim_hint: str
    match: tuple[Clause, ...]
    links: tuple[str, ...]
    affected: str
    fixed_in: str | None = None
    fallback: bool = False
    alternatives: tuple[str, ...] = ()
    upstream: str | None = None
    operation: str | None = None
    named: str | None = None
    only_with: dict[str, str] = {}
    seen_with: dict[str, str] = {}
    reproduced: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    source_checked: bool = False


class KnownIssueMatch(NamedTuple):
    """An issue and whether the failing code is other code than the issue is about."""

    issue: KnownIssue
    elsewhere: bool


@cache
def load() -> tuple[KnownIssue, ...]:
    """The catalogue, in its own order."""
    import yaml  # a tenth of the command line's start-up, and most runs match nothing

    text = files("exportdoctor").joinpath("data/known_issues.yaml").read_text(encoding="utf-8")
    # libyaml reads the catalogue in 10 ms, the Python parser in 130
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    issues = msgspec.convert(yaml.load(text, loader), tuple[KnownIssue, ...])
    return tuple(msgspec.structs.replace(issue, **_prose(issue)) for issue in issues)


def _prose(issue: KnownIssue) -> dict[str, str]:
    """The texts without the line breaks of the file."""
    return {name: " ".join(getattr(issue, name).split()) for name in ("title", "cause", "workaround", "affected")}


def match(
    failure: Failure, *, exporter: str, dynamic: bool, versions: Mapping[str, str]
) -> tuple[KnownIssueMatch, ...]:
    """The issues about this failure, the likeliest first. Never raises, whatever the texts hold.

    `dynamic` = the attempt had dynamic shapes; `versions` by package.
    """
    takes = failure.op.arguments if failure.op is not None and failure.op.raised else ()
    found = failure.exceptions, failure.frames, failure.guard, bool(failure.fixed_by), takes
    return _match(*found, failure.stage, exporter, dynamic, tuple(versions.items()))


@lru_cache(maxsize=512)  # a finding is made again whenever more is known of it
def _match(
    exceptions: tuple[ExceptionFact, ...],
    frames: tuple[Frame, ...],
    guard: Frame | None,
    fixed_by_torch: bool,
    takes: tuple[str, ...],
    stage: Stage,
    exporter: str,
    dynamic: bool,
    versions: tuple[tuple[str, str], ...],
) -> tuple[KnownIssueMatch, ...]:
    evidence = evidence_of(exceptions, frames, guard, fixed_by_torch=fixed_by_torch, takes=takes)
    installed = dict(versions)
    stages = {stage, "export"} if any(fact.name == "TorchExportError" for fact in exceptions) else {stage}
    found = [
        (strength, issue)
        for issue in load()
        if not _is_outside(issue.only_with, installed)
        and (strength := max(_strength(clause, evidence, stages, exporter, dynamic) for clause in issue.match))
    ]
    matches = [(strength, KnownIssueMatch(issue, not _is_about(issue, evidence))) for strength, issue in found]
    ranked = sorted(
        _select_best(matches),
        key=lambda pair: (pair[1].elsewhere, -pair[0], _is_outside(pair[1].issue.seen_with, installed)),
    )
    return tuple(found for _, found in ranked)


def search(text: str) -> tuple[KnownIssue, ...]:
    """The entries that contain every word of `text`, in any case; those with all of them in id or title first."""
    words = text.casefold().split()
    found = [issue for issue in load() if all(word in _all_of(issue) for word in words)]
    return tuple(sorted(found, key=lambda issue: not all(w in f"{issue.id} {issue.title}".casefold() for w in words)))


def _is_about(issue: KnownIssue, evidence: Evidence) -> bool:
    """Whether the failing code is the code that the issue is about.

    A library's function counts where the culprit is code of a library, too, or where the function runs below the
    culprit: user code that a library calls is not the library's. A violated guard was made by the operation that an
    issue asks for on its line.
    """
    if any(clause.guard and re.search(clause.guard, evidence.guard) for clause in issue.match):
        return True
    if issue.upstream and any(re.search(issue.upstream, line) for line in _failing_lines(evidence)):
        return True
    if issue.operation and re.fullmatch(issue.operation, outermost_operation(evidence.evaluated)):
        return True
    return issue.named is not None and evidence.has_exception(names=(), pattern=issue.named)


def _failing_lines(evidence: Evidence) -> tuple[str, ...]:
    if not evidence.own_code:
        return evidence.library
    below = evidence.inner[1:]
    return tuple(line for line in evidence.library if any(one.endswith(line) for one in below))


def _select_best(found: list[tuple[int, KnownIssueMatch]]) -> list[tuple[int, KnownIssueMatch]]:
    if any(strength == _BY_PLACE for strength, _ in found):
        found = [pair for pair in found if pair[0] != _BY_MESSAGE_BUT_ELSEWHERE]
    specific = [pair for pair in found if not pair[1].issue.fallback]
    return specific or found


def _strength(clause: Clause, evidence: Evidence, stages: set[Stage], exporter: str, dynamic: bool) -> int:
    if exporter not in clause.exporters or stages.isdisjoint(clause.stages):
        return 0
    if clause.dynamic not in (None, dynamic) or clause.fixed_by_torch not in (None, evidence.fixed_by_torch):
        return 0
    if not evidence.has_exception(names=clause.exceptions, pattern=clause.message):
        return 0
    if clause.takes is not None and not re.search(clause.takes, ", ".join(evidence.takes)):
        return 0
    if clause.unless and any(re.search(clause.unless, line) for line in evidence.lines):
        return 0
    if clause.guard is not None:
        return _BY_PLACE if re.search(clause.guard, evidence.guard) else 0
    if not clause.places:
        return _BY_MESSAGE
    if _fits_place(clause, evidence):
        return _BY_PLACE
    return 0 if clause.frames_needed else _BY_MESSAGE_BUT_ELSEWHERE


def _fits_place(clause: Clause, evidence: Evidence) -> bool:
    """Whether a pattern for the place fits: in a library's frames, or in what the culprit was evaluating."""
    innermost = evidence.lines[-1] if evidence.lines else ""
    place = evidence.culprit.partition(": ")[0]
    return (
        (clause.frames is not None and any(re.search(clause.frames, line) for line in evidence.library))
        or (clause.culprit is not None and bool(re.search(clause.culprit, f"{place}: {evidence.evaluated}")))
        or (clause.raised_in is not None and bool(re.search(clause.raised_in, innermost)))
    )


def _is_outside(ranges: Mapping[str, str], versions: Mapping[str, str]) -> bool:
    """Whether the version of some package is known to lie outside of its range."""
    return any(is_in_range(versions.get(name), text) is False for name, text in ranges.items())


def _all_of(issue: KnownIssue) -> str:
    exceptions = (name for clause in issue.match for name in clause.exceptions)
    fields = (issue.id, issue.title, issue.cause, issue.workaround, issue.shim_hint, issue.affected)
    return " ".join((*fields, issue.fixed_in or "", *issue.links, *exceptions)).casefold()
