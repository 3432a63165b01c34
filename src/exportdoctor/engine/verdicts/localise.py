"""From failing modules to findings: each disease once, at the deepest submodule whose own code shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exportdoctor.core.failure.explanations import explain
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.finding import ExceptionRecord, Finding
from exportdoctor.core.outcome import Failure, Frame, OutcomeStatus
from exportdoctor.engine.part.call_tree import depth
from exportdoctor.engine.verdicts.culprit import culprit_of
from exportdoctor.engine.verdicts.diagnosis import kind_of, known_of, op_of
from exportdoctor.engine.verdicts.judge import Verdict


@dataclass
class Case:
    """The failures that are one disease."""

    key: tuple[str, ...]
    verdicts: list[Verdict] = field(default_factory=list)

    def leading(self) -> Verdict:
        """The verdict that tells most: of a module that fails in its own code, deepest first, then first in order."""
        own = [verdict for verdict in self.verdicts if verdict.blamed() == verdict.fqn] or self.verdicts
        return max(enumerate(own), key=lambda pair: (depth(pair[1].fqn), -pair[0]))[1]

    def modules(self) -> tuple[str, ...]:
        """The modules whose own code shows it."""
        return tuple(dict.fromkeys(verdict.fqn for verdict in self.verdicts if verdict.blamed() == verdict.fqn))


def cases(verdicts: list[Verdict], classes: Mapping[str, str]) -> list[Case]:
    """Group failing verdicts, given in tree order, by disease."""
    found: dict[tuple[str, ...], Case] = {}
    for verdict in verdicts:
        key = _identity(verdict, classes)
        found.setdefault(key, Case(key)).verdicts.append(verdict)
    return list(found.values())


def _identity(verdict: Verdict, classes: Mapping[str, str]) -> tuple[str, ...]:
    """A culprit in the user's code is the same disease wherever it is met from; else the whole signature counts.

    The message is left out where a frame is blamed: in a parent the same comparison is about other symbols. What
    was raised after tracing, about a guard, is the same disease where the same line made the guard.
    """
    failure = verdict.outcome.failure
    culprit = failure.culprit if failure else None
    if verdict.outcome.status != OutcomeStatus.FAILED:
        return (verdict.outcome.status, verdict.outcome.signal or "", classes.get(verdict.blamed(), ""))
    if failure is not None and culprit is not None:
        kinds = tuple(fact.type for fact in failure.exceptions)
        return (*kinds, culprit.file, str(culprit.line), culprit.function, culprit.expression or "")
    if failure is not None and failure.guard is not None:
        return (*(fact.type for fact in failure.exceptions), failure.guard.file, str(failure.guard.line))
    signature = signature_of(verdict.outcome)
    assert signature is not None
    return (signature.key, classes.get(verdict.blamed(), ""))


def finding_of(
    case: Case,
    *,
    name: str,
    part: str,
    exporter: str,
    classes: Mapping[str, str],
    passing: set[str],
    dynamic: bool,
    versions: Mapping[str, str],
) -> Finding:
    """The finding that a case is. `passing` are the modules that export alone."""
    verdict = case.leading()
    outcome = verdict.outcome
    failure = outcome.failure or Failure(stage="export", exceptions=())
    module = verdict.blamed()
    culprit = failure.culprit
    signature = signature_of(outcome)
    kind = kind_of(outcome, exporter=exporter)
    outer = failure.exceptions[0] if failure.exceptions else None
    return Finding(
        id=name,
        part=part,
        module=module,
        module_class=classes.get(module, ""),
        own_code=True,
        function=culprit.function if culprit else None,
        file=culprit.file if culprit else None,
        line=culprit.line if culprit else None,
        source=culprit.source if culprit else None,
        kind=kind,
        op=op_of(failure),
        expression=culprit.expression if culprit else None,
        signature=signature.key if signature else "",
        exception=ExceptionRecord(
            type=outer.type if outer else outcome.status,
            message=outer.message if outer else (outcome.signal or ""),
            causes=tuple(fact.type for fact in failure.exceptions[1:]),
        ),
        stack=_told(failure.frames),
        explanation=explain(kind).paragraph,
        known_issues=known_of(outcome, exporter=exporter, dynamic=dynamic, versions=versions),
        origins=failure.origins,
        last_op=failure.op,
        modules=case.modules() or (module,),
        only_inside=verdict.fqn if module != verdict.fqn and module in passing else None,
        log=outcome.log,
        stage=failure.stage,
        guard=failure.guard,
        culprit=culprit_of(failure, kind=kind, status=outcome.status),
        slice=failure.slice,
        slice_note=failure.slice_note,
    )


def _told(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The stack from the first frame of the user's code or of a submodule; the tracer's own entry is cut."""
    start = next((i for i, frame in enumerate(frames) if frame.user or frame.module is not None), 0)
    return frames[start:]
