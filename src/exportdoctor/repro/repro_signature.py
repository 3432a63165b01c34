"""What makes a script show the same bug: kind, exceptions, message, and where in torch it was raised.

File, line and names are left out, because a reduction changes them; whatever else failed is another bug.
"""

from __future__ import annotations

import ast
import re

import msgspec

from exportdoctor.core.failure.classify import classify
from exportdoctor.core.failure.kinds import KIND_OF_STATUS, FailureKind
from exportdoctor.core.failure.messages import normalise
from exportdoctor.core.outcome import Failure, Outcome, OutcomeStatus
from exportdoctor.reduce import Verdict

_NAMES = (
    (re.compile(r"<class '[^']*'>"), "<class>"),
    (re.compile(r"<function .*?(?:>|$)"), "<function>"),
    (re.compile(r"\b(?!aten\b|prim\b)\w+::\w+"), "<op>"),
    (re.compile(r"\b(?!aten\b|prim\b)\w+\.\w+\.default\b"), "<op>"),
    (re.compile(r"[\w*+ ]+ = <input>"), " <dim> = <input>"),
)
# What a line may call to make symbols; others, such as int(), are what asks for the value at once
_MAKERS = re.compile(r"\.(tolist|item|nonzero|argwhere|unique\w*|masked_select|bincount|repeat_interleave)\b")


class Trait(msgspec.Struct, frozen=True):
    """What two sightings of one bug have in common, whatever script they come from."""

    kind: FailureKind
    exceptions: tuple[str, ...]
    message: str
    raised_in: str = ""
    asked_by: str = ""
    born_by: tuple[str, ...] = ()


def trait_of(outcome: Outcome, *, exporter: str) -> Trait | None:
    """The trait of what `outcome` shows; None where it passed."""
    if outcome.passed:
        return None
    if outcome.status in KIND_OF_STATUS:
        died_of = (outcome.signal or "",) if outcome.status == OutcomeStatus.CRASHED else ()
        return Trait(KIND_OF_STATUS[outcome.status], died_of, "")
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
        *_of_symbols(kind, failure),
    )


def _of_symbols(kind: FailureKind, failure: Failure) -> tuple[str, tuple[str, ...]]:
    """For a symbol without a value: what asked for the value, and what made the symbols.

    `int(grid.tolist()[0])` must not become `int(grid)`: the cure of the one is not that of the other.
    """
    if not kind.is_data_dependent:
        return "", ()
    culprit = failure.culprit
    born = {word for birth in failure.origins if birth.frame for word in _MAKERS.findall(birth.frame.source)}
    return operation(culprit.expression) if culprit else "", tuple(sorted(born))


def operation(expression: str | None) -> str:
    """The outermost operation of an expression: the name of what it calls, or what kind of expression it is."""
    try:
        tree = ast.parse((expression or "").strip(), mode="eval").body
    except SyntaxError:
        return ""
    match tree:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.IfExp():
            return "condition"
        case ast.BinOp() | ast.Subscript():
            return type(tree).__name__
    return ""


def anonymous(message: str) -> str:
    """A message without what depends on how the user names things.

    Dynamo's messages have a headline, and then an explanation that quotes the user's code: of that the first name
    of a construct is kept.
    """
    headline, _, explanation = normalise(message).partition(" Explanation: ")
    text = " ".join([headline, *re.findall(r"`(\w+)`", explanation)[:1]])
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
    if outcome.failure is not None and outcome.failure.stage == "capture":
        return Verdict.UNKNOWN
    return Verdict.YES if trait_of(outcome, exporter=exporter) == wanted else Verdict.UNKNOWN
