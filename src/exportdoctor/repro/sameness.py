"""What makes a script show the same bug: kind, exceptions, message, and where in torch it was raised.

File, line and names are left out, because a reduction changes them; whatever else failed is another bug.
"""

from __future__ import annotations

import re

import msgspec

from exportdoctor.core.kinds import classify
from exportdoctor.core.outcome import Failure, Outcome
from exportdoctor.core.signature import normalise
from exportdoctor.reduce import Verdict

_NAMES = (
    (re.compile(r"<class '[^']*'>"), "<class>"),
    (re.compile(r"<function .*?(?:>|$)"), "<function>"),
    (re.compile(r"\b(?!aten\b|prim\b)\w+::\w+"), "<op>"),
    (re.compile(r"\b(?!aten\b|prim\b)\w+\.\w+\.default\b"), "<op>"),
    (re.compile(r"\bsize of tensor \w"), "size of tensor"),
)
_DEAD = ("crashed", "timed_out", "out_of_memory")


class Trait(msgspec.Struct, frozen=True):
    """What two sightings of one bug have in common, whatever script they come from."""

    kind: str
    exceptions: tuple[str, ...]
    message: str
    raised_in: str = ""


def trait_of(outcome: Outcome, *, exporter: str) -> Trait | None:
    """The trait of what `outcome` shows; None where it passed."""
    if outcome.passed:
        return None
    if outcome.status in _DEAD:
        return Trait(outcome.status, (outcome.signal or "",) if outcome.status == "crashed" else (), "")
    failure = outcome.failure or Failure(stage="export", exceptions=())
    kind = classify(
        stage=failure.stage,
        exporter=exporter,
        exceptions=failure.exceptions,
        frames=failure.frames,
        status=outcome.status,
        op=failure.op.name if failure.op else None,
        custom_ops=failure.custom_ops,
    )
    return Trait(
        kind,
        tuple(fact.type for fact in failure.exceptions),
        anonymous(failure.exceptions[0].message) if failure.exceptions else "",
        _raised_in(failure),
    )


def anonymous(message: str) -> str:
    """A message without what depends on how the user names things."""
    text = normalise(message)
    for pattern, replacement in _NAMES:
        text = pattern.sub(replacement, text)
    return text


def _raised_in(failure: Failure) -> str:
    """The innermost function of torch, where the stack ends in torch; dynamo shortens its stacks as it likes."""
    if not failure.frames or any(fact.type.startswith("torch._dynamo") for fact in failure.exceptions):
        return ""
    last = failure.frames[-1]
    return "" if last.user else last.function.rpartition(".")[2]


def verdict(wanted: Trait, outcome: Outcome, *, exporter: str) -> Verdict:
    """Yes for the same bug, no only for a pass: another failure is unknown."""
    if outcome.passed:
        return Verdict.NO
    return Verdict.YES if trait_of(outcome, exporter=exporter) == wanted else Verdict.UNKNOWN
