"""The fixed vocabulary of failure kinds, and the one function that gives a failure its kind. Torch-free and pure.

A kind says what the tracer was asked and could not answer, whichever exporter was asking: the same disease in
non-strict, strict and TorchScript has one kind wherever their messages allow it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.evidence import Evidence, ExceptionLike, FrameLike, evidence_of
from exportdoctor.core.failure.kind_rules import LYING_KERNEL, MEMORY, RULES, TRANSLATION, Rule

Kind = Literal[
    "data_dependent_value",
    "data_dependent_guard",
    "dynamic_dim_specialised",
    "dims_related",
    "unregistered_pytree",
    "missing_fake_kernel",
    "wrong_fake_kernel",
    "vmap",
    "unsupported_python",
    "attribute_mutation",
    "input_mutation",
    "autograd_state",
    "torchscript_trace",
    "python_error",
    "crash",
    "timeout",
    "out_of_memory",
    "translate",
    "load",
    "run",
    "numbers",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_STATUSES: dict[str, Kind] = {"crashed": "crash", "timed_out": "timeout", "out_of_memory": "out_of_memory"}
_LATER: dict[str, Kind] = {"translate": "translate", "load": "load", "run": "run", "numbers": "numbers"}
# torch.onnx wraps a failure of the export that it starts with
_WRAPPERS = frozenset({"TorchExportError"})


def classify(
    *,
    stage: str,
    exporter: str,
    exceptions: Sequence[ExceptionLike],
    frames: Sequence[FrameLike] = (),
    signal: str | None = None,
    status: str | None = None,
    op: str | None = None,
    custom_ops: Sequence[str] | None = None,
) -> Kind:
    """The kind of a failure. Never raises, whatever the texts hold.

    `exceptions` run outermost first, each with its causes after it; `frames` outermost first. `status` is that of an
    attempt that left no exception (`crashed`, `timed_out`, `out_of_memory`). `op` is the last operator dispatched;
    where a leaked constant is the failure, the one that writes into it, if any does. `custom_ops` are the operators
    from outside torch that were traced before; None = not known.
    """
    ended = _STATUSES.get(status or "") or (_STATUSES.get(exceptions[0].type) if exceptions else None)
    if ended is not None or signal is not None:
        return ended or "crash"
    if any(one.type.endswith("AccuracyMismatch") for one in exceptions):
        return "numbers"
    exported = stage not in _LATER or any(one.type.rpartition(".")[2] in _WRAPPERS for one in exceptions)
    if not exported:
        return _LATER[stage]
    return _of_the_export(evidence_of(exceptions, frames), exporter=exporter, op=op, custom_ops=custom_ops)


def _of_the_export(evidence: Evidence, *, exporter: str, op: str | None, custom_ops: Sequence[str] | None) -> Kind:
    legacy = exporter in EXPORTERS and not EXPORTERS[exporter].makes_program
    rules: list[Rule] = [*MEMORY, *RULES]
    if legacy:
        rules.append(TRANSLATION)
    elif custom_ops is None or custom_ops:
        rules.append(LYING_KERNEL)
    found = next((rule.kind for rule in rules if fits(rule, evidence, op=op)), None)
    return found or ("torchscript_trace" if legacy else "python_error")


def fits(rule: Rule, evidence: Evidence, *, op: str | None = None) -> bool:
    """Whether everything that `rule` asks for is there."""
    return (
        (not rule.frames or any(re.search(rule.frames, line) for line in evidence.inner or evidence.lines))
        and (not rule.culprit or re.search(rule.culprit, evidence.culprit) is not None)
        and (not rule.op or (op is not None and re.search(rule.op, op) is not None))
        and evidence.says(names=rule.types, pattern=rule.message)
    )
