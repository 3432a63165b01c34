"""Gives a failure its kind. Torch-free and pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.evidence import Evidence, ExceptionLike, FrameLike, evidence_of
from exportdoctor.core.failure.kinds import (
    KIND_OF_STAGE,
    KIND_OF_STATUS,
    LYING_KERNEL,
    MEMORY,
    NUMBERS_DIFFER,
    RULES,
    TRANSLATION,
    FailureKind,
    Rule,
)
from exportdoctor.core.outcome import OutcomeStatus

# torch.onnx wraps a failure of the export that it starts with
_WRAPPERS = frozenset({"TorchExportError"})


def classify(
    *,
    stage: str,
    exporter: str,
    exceptions: Sequence[ExceptionLike],
    frames: Sequence[FrameLike] = (),
    signal: str | None = None,
    status: OutcomeStatus | None = None,
    op: str | None = None,
    custom_ops: Sequence[str] | None = None,
) -> FailureKind:
    """The kind of a failure. Never raises, whatever the texts hold.

    `exceptions` run outermost first, each with its causes after it; `frames` outermost first. `status` is that of an
    attempt that left no exception (it crashed, timed out or ran out of memory). `op` is the last operator dispatched;
    where a leaked constant is the failure, the one that writes into it, if any does. `custom_ops` are the operators
    from outside torch that were traced before; None = not known.
    """
    if status in KIND_OF_STATUS:
        return KIND_OF_STATUS[status]
    if signal is not None:
        return FailureKind.CRASH
    if any(one.type == NUMBERS_DIFFER for one in exceptions):
        return FailureKind.NUMBERS
    exported = stage not in KIND_OF_STAGE or any(one.type.rpartition(".")[2] in _WRAPPERS for one in exceptions)
    if not exported:
        return KIND_OF_STAGE[stage]
    return _of_the_export(evidence_of(exceptions, frames), exporter=exporter, op=op, custom_ops=custom_ops)


def _of_the_export(
    evidence: Evidence, *, exporter: str, op: str | None, custom_ops: Sequence[str] | None
) -> FailureKind:
    legacy = exporter in EXPORTERS and not EXPORTERS[exporter].makes_program
    rules: list[Rule] = [*MEMORY, *RULES]
    if legacy:
        rules.append(TRANSLATION)
    elif custom_ops is None or custom_ops:
        rules.append(LYING_KERNEL)
    found = next((rule.kind for rule in rules if fits(rule, evidence, op=op)), None)
    return found or (FailureKind.TORCHSCRIPT_TRACE if legacy else FailureKind.PYTHON_ERROR)


def fits(rule: Rule, evidence: Evidence, *, op: str | None = None) -> bool:
    """Whether everything that `rule` asks for is there."""
    return (
        (not rule.frames or any(re.search(rule.frames, line) for line in evidence.inner or evidence.lines))
        and (not rule.culprit or re.search(rule.culprit, evidence.culprit) is not None)
        and (not rule.op or (op is not None and re.search(rule.op, op) is not None))
        and evidence.has_message(names=rule.types, pattern=rule.message)
    )
