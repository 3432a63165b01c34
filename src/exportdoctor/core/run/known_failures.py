"""A baseline: the failures that are known, by identity, so that a check is red for a new one only. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.run.report import Report

BASELINE_SCHEMA = "exportdoctor.baseline/1"


class KnownFailure(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A finding as a baseline keeps it; part, module and signature identify it, the rest is for the reader."""

    part: str
    module: str
    signature: str
    kind: str = ""
    place: str = ""
    source: str = ""
    error: str = ""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The known failures of each check: a target, or a test."""

    schema: str = BASELINE_SCHEMA
    failures: dict[str, tuple[KnownFailure, ...]] = {}

    def replace_check(self, check: str, known: Iterable[KnownFailure]) -> Baseline:
        """The same with other failures for one check, none where it has none."""
        failures = {**self.failures, check: tuple(sorted(known))}
        return Baseline(failures={name: failures[name] for name in sorted(failures) if failures[name]})


class BaselineDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What is new, what is fixed, and what fails in the same submodule in another way (before and after).

    `unasked` is what is known of parts that were not scanned, or not whole.
    """

    new: tuple[KnownFailure, ...] = ()
    fixed: tuple[KnownFailure, ...] = ()
    changed: tuple[tuple[KnownFailure, KnownFailure], ...] = ()
    same: tuple[KnownFailure, ...] = ()
    unasked: tuple[KnownFailure, ...] = ()

    @property
    def broken(self) -> tuple[KnownFailure, ...]:
        """What fails and is not known so."""
        return self.new + tuple(after for _, after in self.changed)

    def knows(self, finding: Finding) -> bool:
        """Whether the finding is in the baseline as it is."""
        return _identity(known_failure(finding)) in map(_identity, self.same)


def known_failure(finding: Finding) -> KnownFailure:
    """A finding as a baseline keeps it: no line number and no folder, which change without it."""
    place = (finding.file or "").replace("\\", "/").rpartition("/")[2]
    return KnownFailure(
        part=finding.part,
        module=finding.module,
        signature=finding.signature,
        kind=str(finding.kind),
        place=f"{finding.function} ({place})" if finding.function else place,
        source=(finding.source or "").strip(),
        error=finding.exception.type.rpartition(".")[2],
    )


def compare_with_baseline(
    known: Iterable[KnownFailure], report: Report, *, of_some_parts: bool = False
) -> BaselineDifference:
    """The difference; of a part that was not scanned whole nothing is said to be fixed.

    A part that the report does not have is there no more, unless the report is `of_some_parts`.
    """
    failures = {_identity(one): one for one in map(known_failure, report.findings)}
    old = {_identity(one): one for one in known}
    whole = {part.name for part in report.parts if part.complete and not part.only}
    names = {part.name for part in report.parts}
    new = [one for key, one in failures.items() if key not in old]
    absent = [one for key, one in old.items() if key not in failures]
    changed = []
    for before in list(absent):
        after = next((one for one in new if (one.part, one.module) == (before.part, before.module)), None)
        if after is not None:
            new.remove(after)
            absent.remove(before)
            changed.append((before, after))
    fixed = [one for one in absent if one.part in whole or (one.part not in names and not of_some_parts)]
    return BaselineDifference(
        new=tuple(new),
        fixed=tuple(fixed),
        changed=tuple(changed),
        same=tuple(one for key, one in old.items() if key in failures),
        unasked=tuple(one for one in absent if one not in fixed),
    )


def _identity(failure: KnownFailure) -> tuple[str, str, str]:
    return failure.part, failure.module, failure.signature
