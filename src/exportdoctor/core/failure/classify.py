"""Gives a failure its kind. Torch-free and pure."""

from __future__ import annotations

import re
from functools import lru_cache

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.evidence import Evidence, evidence_of
from exportdoctor.core.failure.kinds import (
    KIND_OF_OUR_EXCEPTION,
    KIND_OF_STAGE,
    KIND_OF_STATUS,
    LYING_KERNEL,
    RULES,
    TRANSLATION,
    FailureKind,
    Rule,
)
from exportdoctor.core.records.outcome import Failure, Outcome

# torch.onnx wraps a failure of the export that it starts with
_WRAPPERS = frozenset({"TorchExportError"})


def kind_of(outcome: Outcome, *, exporter: str) -> FailureKind:
    """The kind of the failure that `outcome` shows. Never raises, whatever the texts hold.

    `custom_ops` of the failure, the operators from outside torch that were traced before, count: without one, nobody's
    kernel is accused.
    """
    if outcome.status in KIND_OF_STATUS:
        return KIND_OF_STATUS[outcome.status]
    failure = outcome.failure or Failure(stage="export", exceptions=())
    ours = next((fact.type for fact in failure.exceptions if fact.type in KIND_OF_OUR_EXCEPTION), None)
    if ours is not None:
        return KIND_OF_OUR_EXCEPTION[ours]
    if failure.stage in KIND_OF_STAGE and not any(fact.name in _WRAPPERS for fact in failure.exceptions):
        return KIND_OF_STAGE[failure.stage]
    torchscript = exporter in EXPORTERS and not EXPORTERS[exporter].makes_program
    return _kind_of_export(failure, torchscript=torchscript)


@lru_cache(maxsize=512)  # a finding is made again whenever more is known of it
def _kind_of_export(failure: Failure, *, torchscript: bool) -> FailureKind:
    evidence, op = evidence_of(failure.exceptions, failure.frames), failure.op.name if failure.op else None
    rules: list[Rule] = [*RULES]
    if torchscript:
        rules.append(TRANSLATION)
    elif failure.custom_ops:
        rules.append(LYING_KERNEL)
    made_by = failure.value_origin.source if failure.value_origin else ""
    found = next(
        (rule.kind for rule in rules if fits(rule, evidence, op=op, made_by=made_by, unbacked=failure.unbacked)), None
    )
    if found is None and failure.wrong_fake is not None:
        return FailureKind.WRONG_FAKE_KERNEL
    return found or (FailureKind.TORCHSCRIPT_TRACE if torchscript else FailureKind.PYTHON_ERROR)


def fits(
    rule: Rule, evidence: Evidence, *, op: str | None = None, made_by: str = "", unbacked: int | None = None
) -> bool:
    """Whether everything that `rule` asks for is there."""
    return (
        (not rule.frames or any(re.search(rule.frames, line) for line in evidence.inner or evidence.lines))
        and (not rule.around or any(re.search(rule.around, line) for line in evidence.lines))
        and (not rule.culprit or re.search(rule.culprit, evidence.culprit) is not None)
        and (not rule.op or (op is not None and re.search(rule.op, op) is not None))
        and (not rule.only_sizes or unbacked == 0)
        and (not rule.some_number or any(number < (unbacked or 0) for number in evidence.symbol_numbers))
        and (not rule.made_by or re.search(rule.made_by, made_by) is not None)
        and evidence.has_exception(names=rule.types, pattern=rule.message)
    )
