"""Other failures that candidates showed during a reduction: each a script of its own, verified like the bug itself.

Of what is kept, eager runs, the export fails, and it is neither the bug that was being reduced nor another finding of
the same run. None of it is a finding of the model: it was a candidate script that failed so, and perhaps the model
never does.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import NameFreeSignature, name_free_signature
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import OF_SIZE_ONE, first_line, summary_line
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.reduce import source_size
from exportdoctor.report import wording
from exportdoctor.repro.candidates.candidate_judge import CandidateJudge
from exportdoctor.repro.candidates.reduction import slice_by_stack, tidy_script
from exportdoctor.repro.candidates.verdict_log import VerdictLog
from exportdoctor.repro.script import Header, code_lines, with_header
from exportdoctor.repro.verify import verify
from exportdoctor.store.runs import StoredRun

_KEPT = 2
_EXAMINED = 5
_RERUN = 12  # scripts of an earlier, interrupted reduction that are run again
_BESIDE = 2
_OF_THE_CALL = frozenset({FailureKind.PYTHON_ERROR, FailureKind.INVALID_DYNAMIC_SHAPES})
_REFUSES_SHAPES = frozenset({"UserError", "ConstraintViolationError"})
"""Exceptions by which torch says that dynamic_shapes do not fit."""


@dataclass(frozen=True, kw_only=True)
class IncidentalFailure:
    """A script that fails in another way. `culprit` is the line of it that does, `text` the script with its header."""

    signature: NameFreeSignature
    exception: str
    message: str
    culprit: str
    source: str
    text: str = ""

    def summary(self) -> str:
        """It in one line."""
        at = f" at {self.culprit}" if self.culprit else ""
        what = ": ".join(filter(None, (self.exception, first_line(self.message, 120))))
        return f"{self.signature.kind}{at}: {what}, {code_lines(self.source)} lines"


@dataclass
class FailureCollector:
    """Collects them during a reduction: scripts of each, ever smaller, and how often it was seen. Thread-safe."""

    wanted: NameFreeSignature
    exporter: str
    log: VerdictLog
    _scripts: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    _times: dict[tuple[str, ...], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, source: str, outcome: Outcome) -> None:
        """Collect how `source` ended, if that is another failure of an export."""
        signature = name_free_signature(outcome, exporter=self.exporter)
        if signature is None or not _is_of_export(outcome, signature) or signature.raised == self.wanted.raised:
            return
        key = signature.raised
        with self._lock:
            self._times[key] = self._times.get(key, 0) + 1
            scripts = self._scripts.setdefault(key, [])
            if not scripts or source_size(source) < source_size(scripts[-1]):
                scripts.append(source)
                self.log.keep(source)

    def scripts(self) -> tuple[tuple[str, ...], ...]:
        """Of each failure the smallest, a middling and the first, which runs in eager most likely.

        Failures of another kind come first, then those that were seen most often.
        """
        with self._lock:
            keys = sorted(self._scripts, key=lambda key: (key[0] == self.wanted.kind, -self._times[key]))
            of_each = [self._scripts[key] for key in keys]
        return tuple(tuple(dict.fromkeys((one[-1], one[len(one) // 2], one[0]))) for one in of_each)


def _is_of_export(outcome: Outcome, signature: NameFreeSignature) -> bool:
    """Whether it is the export that failed, and not a script that calls it wrongly.

    A reduction also makes `dynamic_shapes` that torch does not take, or that the sizes of the inputs do not satisfy:
    torch says so at the call, before any code has made a guard. It fixes sizes of one, too.
    """
    failure = outcome.failure
    if signature.kind.depends_on_load or (failure is not None and failure.stage != "export"):
        return False
    if signature.message.endswith(OF_SIZE_ONE):
        return False
    if failure is None or (failure.culprit is not None and failure.culprit.function != "<module>"):
        return signature.kind is not FailureKind.INVALID_DYNAMIC_SHAPES
    refuses_shapes = any(fact.name in _REFUSES_SHAPES for fact in failure.exceptions) and failure.guard is None
    return signature.kind not in _OF_THE_CALL and not (refuses_shapes and not failure.guarded_by)


def find_incidental_failures(
    judge: CandidateJudge, collector: FailureCollector, header: Header, finding: Finding, run: StoredRun
) -> tuple[IncidentalFailure, ...]:
    """At most two, the most telling first, each seen to fail so in a fresh process where eager runs.

    `header` is that of the script of `finding`; what is another finding of `run` is left out.
    """
    for source in collector.log.kept[-_RERUN:]:
        collector.add(source, judge.runner.run(source, eager=True))
    found: dict[tuple[str, ...], IncidentalFailure] = {}
    for scripts in collector.scripts()[:_EXAMINED]:
        seen = next(filter(None, (_reduce_script(judge, source) for source in scripts)), None)
        if seen is not None and _is_new(seen.signature, collector.wanted, run):
            found.setdefault(seen.signature.raised, seen)
        if len(found) == _KEPT:
            break
    origin = wording.incidental_origin(finding.id)
    with ThreadPoolExecutor(_BESIDE) as threads:
        verified = threads.map(lambda one: verify(one.source, one.signature).verified, found.values())
        return tuple(
            _with_header(one, replace(header, origin=origin, remarks=()))
            for one, same in zip(found.values(), verified)
            if same
        )


def _is_new(signature: NameFreeSignature, wanted: NameFreeSignature, run: StoredRun) -> bool:
    known = any(signature.is_of_finding(finding) for finding in run.state.findings.values())
    return not known and signature.raised != wanted.raised


def _with_header(failure: IncidentalFailure, header: Header) -> IncidentalFailure:
    expected = ": ".join(filter(None, (failure.exception, summary_line(failure.message, 240))))
    return replace(failure, text=with_header(failure.source, replace(header, expected=expected)))


def _reduce_script(judge: CandidateJudge, source: str) -> IncidentalFailure | None:
    """What `source` shows where eager runs, with the script cut by data flow; None where eager does not run."""
    outcome = judge.runner.run(source, eager=True)
    signature = name_free_signature(outcome, exporter=judge.exporter)
    if signature is None or not _is_of_export(outcome, signature):
        return None
    own = CandidateJudge(
        runner=judge.runner, wanted=signature, exporter=judge.exporter, log=VerdictLog(None), eager=True
    )
    source = tidy_script(own, slice_by_stack(own, source, lambda text: None))
    failure = outcome.failure
    fact = failure.exceptions[0] if failure and failure.exceptions else None
    culprit = failure.culprit.source.strip() if failure and failure.culprit and failure.culprit.source else ""
    return IncidentalFailure(
        signature=signature, exception=fact.name if fact else outcome.signal or outcome.status,
        message=fact.message if fact else "", culprit=culprit, source=source,
    )  # fmt: skip
