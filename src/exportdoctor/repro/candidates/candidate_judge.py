"""Judges candidate scripts of one bug: each runs in a process of its own, and only the same bug is interesting."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from exportdoctor.core.failure.identity import NameFreeSignature, name_free_signature
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.reduce import Verdict
from exportdoctor.repro.candidates.candidate_runner import CandidateRunner
from exportdoctor.repro.candidates.dynamic_inputs import makes_one_static
from exportdoctor.repro.candidates.verdict_log import VerdictLog

JUDGED_BY = "rules 2"
"""Verdicts that were kept hold for the rules by which they were made: since 2, no candidate may fail without export."""


def ignore_failure(source: str, outcome: Outcome) -> None:
    """An `on_other_failure` that does nothing."""


@dataclass(frozen=True, kw_only=True)
class CandidateJudge:
    """Compares what a candidate shows with `wanted`. Any thread may ask.

    With `eager` a candidate must also run without export, as the user's model does; none may fail there in the same
    way. `on_other_failure` is called with each candidate that fails in another way, and how it ended. The inputs
    `violated` stay dynamic, and what is `kept` stays in the script as it is: how near numbers have to be, and how they
    are drawn.
    """

    runner: CandidateRunner
    wanted: NameFreeSignature
    exporter: str
    log: VerdictLog
    eager: bool = False
    violated: frozenset[str] = frozenset()
    kept: tuple[str, ...] = ()
    on_other_failure: Callable[[str, Outcome], None] = ignore_failure

    def with_eager(self, eager: bool) -> CandidateJudge:
        """The same, with or without the condition that a candidate runs in eager mode."""
        return replace(self, eager=eager)

    def __call__(self, source: str) -> Verdict:
        """The verdict of one candidate; from the log where it has one."""
        if makes_one_static(source, self.violated) or not all(text in source for text in self.kept):
            return Verdict.UNKNOWN
        key = f"{self.eager} {source}"
        found = self.log.verdict_of(key)
        if found is None:
            found = self.rerun(source)
            self.log.note(key, found)
        return found

    def rerun(self, source: str) -> Verdict:
        """The verdict of one run of a candidate, whatever the log has."""
        outcome = self.runner.run(source, eager=self.eager)
        found = judge_outcome(self.wanted, outcome, exporter=self.exporter)
        if found is Verdict.UNKNOWN:
            self.on_other_failure(source, outcome)
        return Verdict.UNKNOWN if found is Verdict.YES and self._fails_without_export(source) else found

    def _fails_without_export(self, source: str) -> bool:
        """Whether eager raises the exception, too, of code that raises it itself: then the export is not what fails.

        Asked of an exception of Python or torch alone: what else an export raises, eager does not.
        """
        if self.eager or self.wanted.kind is not FailureKind.PYTHON_ERROR:
            return False
        outcome = self.runner.run(source, eager=True)
        if outcome.failure is None or outcome.failure.stage != "capture":
            return False
        seen = name_free_signature(outcome, exporter=self.exporter)
        return seen is not None and (seen.exceptions, _without_sizes(seen.message)) == (
            self.wanted.exceptions,
            _without_sizes(self.wanted.message),
        )


def _without_sizes(message: str) -> str:
    """A name-free message with one sign for each row of numbers and symbols: eager has numbers where an export has
    symbols."""
    return re.sub(r"<(?:symbol|n)>(?:[-+*/%, ]+<(?:symbol|n)>)*", "#", message)


def judge_outcome(wanted: NameFreeSignature, outcome: Outcome, *, exporter: str) -> Verdict:
    """Yes for the same failure, no only for a pass: another failure is unknown."""
    if outcome.passed:
        return Verdict.NO
    if outcome.failure is not None and outcome.failure.stage == "capture":
        return Verdict.UNKNOWN
    return Verdict.YES if name_free_signature(outcome, exporter=exporter) == wanted else Verdict.UNKNOWN
