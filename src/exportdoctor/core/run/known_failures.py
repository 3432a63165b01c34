"""A baseline: the failures that are known, by identity, so that a check is red for a new one only. Pure.

Failures are compared for each module in which they occur: one of two layers may be fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import code_of
from exportdoctor.core.run.report import Report
from exportdoctor.core.scan_options import OPTIONS, ScanOptions

BASELINE_SCHEMA = "exportdoctor.baseline/1"


class KnownFailure(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A finding as a baseline keeps it; part, modules, signature and place identify it, the rest is for the reader.

    `module` is the first of `modules`. These are empty in files of earlier versions, which kept the first one alone.
    `masked`: another failure hides it, so that only a search for shims meets it.
    """

    part: str
    module: str
    signature: str
    kind: str = ""
    place: str = ""
    source: str = ""
    error: str = ""
    modules: tuple[str, ...] = ()
    masked: bool = False


_Pair = tuple[KnownFailure, KnownFailure]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The known failures of each check: a target, or a test; and what the scan looked for that found them."""

    schema: str = BASELINE_SCHEMA
    failures: dict[str, tuple[KnownFailure, ...]] = {}
    looked_for: dict[str, tuple[str, ...]] = {}

    def replace_check(self, check: str, known: Iterable[KnownFailure], looked_for: Iterable[str]) -> Baseline:
        """The same with other failures for one check, none where it has none."""
        failures = {**self.failures, check: tuple(sorted(known))}
        looks = {**self.looked_for, check: tuple(looked_for)}
        names = [name for name in sorted(failures) if failures[name]]
        return Baseline(
            failures={name: failures[name] for name in names},
            looked_for={name: looks[name] for name in names if name in looks},
        )

    def of_check(self, check: str) -> tuple[tuple[KnownFailure, ...], tuple[str, ...]]:
        """What is known of a check, and what was looked for; files of earlier versions do not say it."""
        return self.failures.get(check, ()), self.looked_for.get(check, looks_of(ScanOptions()))


class BaselineDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What is new, what is fixed, and what fails in the same submodule in another way (before and after), each with the
    modules of which this holds.

    `unasked` is what is known of parts that were not scanned, or not whole, or that this scan did not look for.
    `newly_looked_for` is what this scan looked for, and the one that wrote the baseline did not.
    """

    new: tuple[KnownFailure, ...] = ()
    fixed: tuple[KnownFailure, ...] = ()
    changed: tuple[tuple[KnownFailure, KnownFailure], ...] = ()
    same: tuple[KnownFailure, ...] = ()
    unasked: tuple[KnownFailure, ...] = ()
    newly_looked_for: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[KnownFailure, ...]:
        """What fails and is not known so."""
        return self.new + tuple(after for _, after in self.changed)

    def knows(self, finding: Finding) -> bool:
        """Whether the finding is in the baseline as it is."""
        return not self.breaks(finding) and not _names(self.same).isdisjoint(_names([known_failure(finding)]))

    def breaks(self, finding: Finding) -> bool:
        """Whether the finding is not in the baseline, or not for each of its modules."""
        return not _names(self.broken).isdisjoint(_names([known_failure(finding)]))

    def before(self, finding: Finding) -> KnownFailure | None:
        """What the baseline has in its place, where that is another failure."""
        own = _names([known_failure(finding)])
        return next((before for before, after in self.changed if not own.isdisjoint(_names([after]))), None)


SEARCH, CURE = "a search for smaller submodules", "a search for shims"
"""What a scan looks for by default, in words; the rest are the options that ask for it."""


def looks_of(options: ScanOptions) -> tuple[str, ...]:
    """What a scan with these options looks for, in words: one that looks for less, or by another exporter, does not
    find what another scan found, and nothing is fixed by that."""
    stages = OPTIONS["to"].choices
    reached = stages[: stages.index(options.to) + 1] if options.to in stages else (options.to,)
    steps = {
        SEARCH: options.search,
        CURE: options.cure,
        "--exhaustive": options.exhaustive,
        "--slow": options.slow is not None,
        "--heavy": options.heavy is not None,
    }
    return (
        f"--exporter {options.exporter}",
        *(f"--to {stage}" for stage in reached),
        *(name for name, looked in steps.items() if looked),
    )


def is_missed(looked_for: Collection[str], looks: Collection[str], *, masked: bool) -> bool:
    """Whether a failure that the first scan found may be there though the second did not find it, for what that looked
    for. Without a search for shims only those that another one masks are."""
    missed = set(looked_for) - set(looks)
    return bool(missed) and (missed != {CURE} or masked)


def known_failure(finding: Finding) -> KnownFailure:
    """A finding as a baseline keeps it: no line number and no folder, which change without it."""
    code = code_of(finding)
    file = code.file.replace("\\", "/").rpartition("/")[2]
    return KnownFailure(
        part=finding.part,
        module=finding.module,
        signature=finding.signature,
        kind=str(finding.kind),
        place=f"{code.function} ({file})" if code.function else file,
        source=code.source,
        error=finding.exception.type.rpartition(".")[2],
        modules=tuple(dict.fromkeys((finding.module, *finding.modules))),
        masked=finding.behind is not None,
    )


def compare_with_baseline(
    baseline: tuple[Iterable[KnownFailure], Collection[str]],
    report: Report,
    looks: Collection[str],
    *,
    of_some_parts: bool = False,
) -> BaselineDifference:
    """The difference of a baseline's check (Baseline.of_check) and a report whose scan looked for `looks`.

    Of a part that was not scanned whole nothing is said to be fixed, nor where the scan did not look for all that the
    other one did. A part that the report does not have is there no more, unless the report is `of_some_parts`.
    """
    known, looked_for = baseline
    found = [*map(known_failure, report.findings)]
    failures = _of_each_module(found)
    old = _of_each_module(_with_modules(one, found) for one in known)
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
    fixed = [
        one
        for one in absent
        if (one.part in whole or (one.part not in names and not of_some_parts))
        and not is_missed(looked_for, looks, masked=one.masked)
    ]
    return BaselineDifference(
        new=_together(new),
        fixed=_together(fixed),
        changed=_pairs_together(changed),
        same=_together(one for key, one in old.items() if key in failures),
        unasked=_together(one for one in absent if one not in fixed),
        newly_looked_for=tuple(one for one in looks if one not in looked_for),
    )


def without_fixed(known: Iterable[KnownFailure], fixed: Iterable[KnownFailure]) -> tuple[KnownFailure, ...]:
    """What is left of a baseline when these are taken out, of each the modules that it names."""
    gone = _of_each_module(fixed)
    return _together(one for key, one in _of_each_module(known).items() if key not in gone)


def _with_modules(failure: KnownFailure, found: Collection[KnownFailure]) -> KnownFailure:
    """One of an earlier version's file, where it is still found, with the modules and the place that it stands for."""
    if failure.modules:
        return failure
    same = (one for one in found if (one.part, one.signature) == (failure.part, failure.signature))
    return next((one for one in same if failure.module in one.modules), failure)


def _of_each_module(failures: Iterable[KnownFailure]) -> dict[tuple[str | int, ...], KnownFailure]:
    """The failures by what identifies them, once for each module; of equal ones each has its number."""
    found: dict[tuple[str | int, ...], KnownFailure] = {}
    count = Counter[tuple[str, ...]]()
    for failure in failures:
        for module in failure.modules or (failure.module,):
            name = (module, *_identity(failure))
            found[(*name, count[name])] = msgspec.structs.replace(failure, module=module, modules=(module,))
            count[name] += 1
    return found


def _together(failures: Iterable[KnownFailure]) -> tuple[KnownFailure, ...]:
    """Those of one failure in several modules as one; equal ones stay apart."""
    return tuple(same[0] for same in _groups((one,) for one in failures))


def _pairs_together(pairs: Iterable[_Pair]) -> tuple[_Pair, ...]:
    return tuple((before, after) for before, after in _groups(pairs))


def _groups(rows: Iterable[tuple[KnownFailure, ...]]) -> Iterator[tuple[KnownFailure, ...]]:
    """Rows of failures that differ in their module alone, as one row with all the modules."""
    groups: dict[tuple[object, ...], list[tuple[KnownFailure, ...]]] = {}
    count = Counter[tuple[object, ...]]()
    for row in rows:
        name = tuple(map(_identity, row))
        single = (name, *(one.module for one in row))
        groups.setdefault((name, count[single]), []).append(row)
        count[single] += 1
    for same in groups.values():
        yield tuple(
            msgspec.structs.replace(column[0], modules=tuple(one.module for one in column))
            for column in zip(*same, strict=True)
        )


def _names(failures: Iterable[KnownFailure]) -> set[tuple[str | int, ...]]:
    """What identifies them in each of their modules, without the numbers of equal ones."""
    return {key[:-1] for key in _of_each_module(failures)}


def _identity(failure: KnownFailure) -> tuple[str, ...]:
    """What identifies a failure, whatever its modules."""
    return failure.part, failure.signature, failure.place, failure.source
