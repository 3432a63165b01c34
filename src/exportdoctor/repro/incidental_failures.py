"""The other failures that were met while a bug was reduced: each a script of its own, verified like the bug itself.

The only place that decides which of them are worth keeping. Law: of what is kept, eager runs, the export fails, and
it is neither the bug that was being reduced nor another finding of the same run. None of it is a finding of the
model: it was a candidate script that failed so, and perhaps the model never does.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.finding import Finding
from exportdoctor.core.outcome import Outcome
from exportdoctor.reduce import source_size
from exportdoctor.repro.repro_signature import Trait, trait_of
from exportdoctor.repro.script import Header, code_lines, with_header
from exportdoctor.repro.verdict_log import VerdictLog
from exportdoctor.repro.verify import verify

if TYPE_CHECKING:
    from exportdoctor.repro.reduction import Reducer

_KEPT = 2
_LOOKED_AT = 5
_AGAIN = 12  # scripts of an earlier, interrupted reduction that are run again
_BESIDE = 2


@dataclass(frozen=True, kw_only=True)
class Other:
    """A script that fails in another way. `culprit` is the line of it that does, `text` the script with its header."""

    kind: FailureKind
    exception: str
    message: str
    culprit: str
    source: str
    text: str = ""

    def told(self) -> str:
        """It in one line."""
        at = f" at {self.culprit}" if self.culprit else ""
        first = first_line(self.message, 120)
        return f"{self.kind}{at}: {': '.join(filter(None, (self.exception, first)))}, {code_lines(self.source)} lines"


@dataclass
class Met:
    """Collects them while a reduction goes on: scripts of each, ever smaller, and how often it was met. Thread-safe."""

    wanted: Trait
    exporter: str
    log: VerdictLog
    _scripts: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    _times: dict[tuple[str, ...], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, source: str, outcome: Outcome) -> None:
        """What `source` did, if it is another failure of an export."""
        trait = trait_of(outcome, exporter=self.exporter)
        if trait is None or not _is_of_export(outcome, trait) or identity(trait) == identity(self.wanted):
            return
        key = identity(trait)
        with self._lock:
            self._times[key] = self._times.get(key, 0) + 1
            scripts = self._scripts.setdefault(key, [])
            if not scripts or source_size(source) < source_size(scripts[-1]):
                scripts.append(source)
                self.log.keep(source)

    def scripts(self) -> tuple[tuple[str, ...], ...]:
        """Of each failure the smallest, a middling and the first, which runs in eager most likely.

        Failures of another kind come first, then those that were met most often.
        """
        with self._lock:
            keys = sorted(self._scripts, key=lambda key: (key[0] == self.wanted.kind, -self._times[key]))
            of_each = [self._scripts[key] for key in keys]
        return tuple(tuple(dict.fromkeys((one[-1], one[len(one) // 2], one[0]))) for one in of_each)


def identity(trait: Trait) -> tuple[str, ...]:
    """What tells two failures apart here: what asked for a symbol's value, and what made it, does not."""
    return trait.raised


def _is_of_export(outcome: Outcome, trait: Trait) -> bool:
    """Whether it is the export that failed, and not a script that calls it wrongly."""
    failure = outcome.failure
    if trait.kind.depends_on_load or (failure is not None and failure.stage != "export"):
        return False
    at_call = failure is not None and (failure.culprit is None or failure.culprit.function == "<module>")
    return not (at_call and trait.kind is FailureKind.PYTHON_ERROR)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What their headers tell. `findings` are the run's: what is one of these is nothing new."""

    finding: Finding
    findings: Collection[Finding]
    environment: dict[str, str]
    made_by: str


def others_of(reducer: Reducer, met: Met, told: Circumstances) -> tuple[Other, ...]:
    """At most two, the most telling first, each seen to fail so in a fresh process where eager runs."""
    for source in met.log.kept[-_AGAIN:]:
        met.note(source, reducer.bench.run(source, eager=True))
    found: dict[tuple[str, ...], tuple[Other, Trait]] = {}
    for scripts in met.scripts()[:_LOOKED_AT]:
        seen = next(filter(None, (_looked_at(reducer, source) for source in scripts)), None)
        if seen is not None and not _is_known(seen[1], told.findings) and identity(seen[1]) != identity(met.wanted):
            found.setdefault(identity(seen[1]), seen)
        if len(found) == _KEPT:
            break
    with ThreadPoolExecutor(_BESIDE) as threads:
        proved = threads.map(lambda one: _proved(one[0], one[1], told), found.values())
        return tuple(one for one in proved if one is not None)


def _looked_at(reducer: Reducer, source: str) -> tuple[Other, Trait] | None:
    """What `source` shows where eager runs, with the script cut by data flow; None where eager does not run."""
    outcome = reducer.bench.run(source, eager=True)
    trait = trait_of(outcome, exporter=reducer.exporter)
    if trait is None or not _is_of_export(outcome, trait):
        return None
    own = replace(reducer, wanted=trait, log=VerdictLog(None), eager=True, tell=_silent, met=None)
    source = own.tidy(own.slice(source))
    failure = outcome.failure
    fact = failure.exceptions[0] if failure and failure.exceptions else None
    culprit = failure.culprit.source.strip() if failure and failure.culprit and failure.culprit.source else ""
    return Other(
        kind=trait.kind, exception=fact.name if fact else outcome.signal or outcome.status,
        message=fact.message if fact else "", culprit=culprit, source=source,
    ), trait  # fmt: skip


def _is_known(trait: Trait, findings: Collection[Finding]) -> bool:
    return any(trait.is_of_finding(finding) for finding in findings)


def _proved(other: Other, trait: Trait, told: Circumstances) -> Other | None:
    if not verify(other.source, trait).verified:
        return None
    first = first_line(other.message, 200)
    header = Header(
        origin=f"met while {told.finding.id} was reduced: another failure, which the model itself may never show",
        expected=": ".join(filter(None, (other.exception, first))),
        environment=told.environment,
        made_by=told.made_by,
    )
    return replace(other, text=with_header(other.source, header))


def _silent(text: str) -> None:
    """Nobody is told of what is only looked at."""
