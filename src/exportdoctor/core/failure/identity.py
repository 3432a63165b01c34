"""Whether two failures are the same, in three granularities. Pure.

- exact: equal signatures (signature.py). Names a failure in reports and finds it again in a later run.
- same line: the same line of the user's code is to blame. Groups the failures of one scan: in a parent, or with fewer
  dynamic dimensions, the same comparison is about other symbols, so messages are not compared.
- independent of names: what stays when a script is reduced, which changes files, lines and names.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from exportdoctor.core.failure.classify import kind_of
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import KIND_OF_STATUS, NUMBERS_DIFFER, FailureKind
from exportdoctor.core.failure.messages import (
    fixes_size,
    normalise,
    with_one_violation,
    without_arithmetic,
    without_names,
)
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.protocol.export import StageFailure
from exportdoctor.core.records.outcome import Failure, Outcome, OutcomeStatus, SymbolOrigin

CONDITION = "condition"
"""The operation of an expression that is true or false."""

# What a line may call to make symbols; others, such as int(), are what asks for the value at once
_MAKES_SYMBOLS = re.compile(r"\.(tolist|item|nonzero|argwhere|unique\w*|masked_select|bincount|repeat_interleave)\b")

# The operators behind every line that reads one number: which of the methods above it calls says more
_READS_A_NUMBER = ("item", "_local_scalar_dense")
_SIZE_LIKE = re.compile(r"\(Size-like symbols: (?!none\))")

_REFUSED_INPUT = re.compile(
    r"Unsupported input type <class '([^']+)'>|one of the inputs with type `<class '([^']+)'>|"
    r"received an input of unsupported type: (\w+)|^Unfamiliar meta val: (.+)"
)


# --- exact


class BlamedCode(NamedTuple):
    """A line of the user's code: its file, the number of the line, the function that it is in, and its text."""

    file: str
    line: int
    function: str
    source: str


def code_of(finding: Finding) -> BlamedCode:
    """The line that a finding is about: the one that failed, or else the one that made the guard which a declared
    dimension violates. Empty where neither is known."""
    if finding.file is None and finding.guard is not None:
        frame = finding.guard
        return BlamedCode(frame.file, frame.line, frame.function, frame.source.strip())
    return BlamedCode(finding.file or "", finding.line or 0, finding.function or "", (finding.source or "").strip())


def identify_across_runs(findings: Iterable[Finding]) -> dict[tuple[object, ...], Finding]:
    """What identifies each finding in another run of the same target, where lines may have moved: once for each module
    that fails in this way, and for equal ones with their number."""
    found: dict[tuple[object, ...], Finding] = {}
    count = Counter[tuple[object, ...]]()
    for finding in findings:
        code = code_of(finding)
        for module in dict.fromkeys((finding.module, *finding.modules)):
            name = (finding.part, module, finding.signature, code.function, code.source)
            found[(*name, count[name])] = finding
            count[name] += 1
    return found


def across_parts(finding: Finding) -> tuple[object, ...]:
    """What identifies a finding in another part of the same run. Violated dimensions have one for each guard."""
    guard = (finding.guard.file, finding.guard.line) if finding.guard is not None else None
    return finding.module, finding.signature, finding.line, guard


# --- same line


def line_identity(outcome: Outcome) -> tuple[str, ...]:
    """What identifies the line of the user's code that a failure is blamed on; empty where there is no such line.

    The line is the one that failed, or the one that made the guard that torch found violated after tracing. The stack
    of a process that died is not reliable, so that it is identified by how it died. Whether one that exceeds its time
    is told as a hang depends on how busy the machine is, so that this does not count.
    """
    if outcome.status.ended_the_process:
        return outcome.status, "" if outcome.status is OutcomeStatus.TIMED_OUT else outcome.signal or ""
    failure = outcome.failure
    if failure is None:
        return ()
    types = tuple(fact.type for fact in failure.exceptions)
    if failure.culprit is not None:
        frame = failure.culprit
        return *types, frame.file, str(frame.line), frame.function, frame.expression or ""
    return (*types, failure.guard.file, str(failure.guard.line)) if failure.guard is not None else ()


def refused_input(outcome: Outcome) -> str | None:
    """The class of an input that torch refused before it traced anything; None for any other failure.

    That is the same failure in every module that is given such an object.
    """
    failure = outcome.failure
    if failure is None or failure.culprit is not None:
        return None
    found = (_REFUSED_INPUT.search(fact.message) for fact in failure.exceptions)
    return next((next(filter(None, match.groups())) for match in found if match), None)


def same_line(one: Outcome, other: Outcome) -> bool:
    """Whether both fail, and the same line is to blame; where none is known, whether their signatures are equal, and
    the same operation asked for the guards that they violate."""
    if one.passed or other.passed:
        return False
    lines = line_identity(one), line_identity(other)
    if not all(lines) or _is_of_one_statement(*lines):
        return signature_of(one) == signature_of(other) and _asker(one) == _asker(other)
    return lines[0] == lines[1]


def _asker(outcome: Outcome) -> str:
    """What asked for the guard that a failure violates; empty where it violates none."""
    return outcome.failure.guarded_by if outcome.failure is not None else ""


def each_violation(outcome: Outcome) -> tuple[Outcome, ...]:
    """Of a failure that violates several dimensions one for each, with the guard of that dimension; else none."""
    failure = outcome.failure
    if failure is None:
        return ()
    return tuple(
        msgspec.structs.replace(
            outcome,
            failure=msgspec.structs.replace(
                failure,
                exceptions=tuple(
                    msgspec.structs.replace(fact, message=with_one_violation(fact.message, one.entry))
                    for fact in failure.exceptions
                ),
                guard=one.guard,
                guarded_by=one.guarded_by,
                fixed_by=one.fixed_by,
                guard_module=one.guard_module,
                violations=(),
            ),
        )
        for one in failure.violations
    )


def _is_of_one_statement(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two line identities are of one line, and the expression of one holds the other's: code that a shim has
    rewritten knows the statement only."""
    (*place, inner), (*same, outer) = sorted((one, other), key=lambda found: len(found[-1]))
    are_lines = outer.isdigit()  # of guards
    return place == same and bool(inner) and inner != outer and inner in outer and not are_lines


def same_failure(one: Outcome, other: Outcome, *, exporter: str) -> bool:
    """Whether both fail at the same line with the same kind, though other shims or dynamic dimensions were asked.

    Of one line each operator that has no translation is a failure of its own, and so is a bound of a size that it no
    longer fixes.
    """
    kinds = kind_of(one, exporter=exporter), kind_of(other, exporter=exporter)
    alike = kinds[0] is kinds[1] and not of_other_operators(one, other) and _fixes_size(one) is _fixes_size(other)
    return alike and same_line(one, other)


def _fixes_size(outcome: Outcome) -> bool:
    failure = outcome.failure
    return failure is not None and any(fixes_size(fact.message) for fact in failure.exceptions)


def of_other_operators(one: Outcome, other: Outcome) -> bool:
    """Whether the two fail behind the export, at two operators that are known."""
    names = [
        outcome.failure.op.name if outcome.failure.op is not None and outcome.failure.op.raised else None
        for outcome in (one, other)
        if outcome.failure is not None and outcome.failure.stage != "export"
    ]
    return len(names) == 2 and None not in names and names[0] != names[1]


# --- independent of names


class NameFreeSignature(msgspec.Struct, frozen=True):
    """What two sightings of one failure have in common, whatever script they come from.

    `raised_in` is the function of torch that raised. `asked_by` is the operation that asked for the value of a symbol,
    or for the guard that a declared dimension violates: a branch on a size must not become a slice of a short table.
    For a symbol without a value, `born_by` is what made the symbols, and `size_like` whether torch takes one of them
    for a size: `int(grid.tolist()[0])` must not become `int(grid)`, nor `len(row) == 0` become `row[0] == 0`, because
    what helps with the one does not help with the other. `in_operator` is whether an operator was running that asks by
    itself: `one_hot(rows, longest)` with a tensor as its number must not become `one_hot(rows)`.
    """

    kind: FailureKind
    exceptions: tuple[str, ...]
    message: str
    raised_in: str = ""
    asked_by: str = ""
    born_by: tuple[str, ...] = ()
    size_like: bool = False
    in_operator: bool = False

    @property
    def raised(self) -> tuple[str, ...]:
        """What was raised, without how it came to that."""
        return self.kind, *self.exceptions, self.message

    def is_of_finding(self, finding: Finding) -> bool:
        """Whether the finding shows the same failure, as far as its record goes."""
        if finding.kind is not self.kind:
            return False
        match self.kind:
            case FailureKind.CRASH:  # its exception's type is the signal, its message what that means
                return self.exceptions == (finding.exception.type,)
            case FailureKind.TIMEOUT | FailureKind.OUT_OF_MEMORY | FailureKind.NUMBERS:
                return True
            case _:
                return self.message == without_arithmetic(without_names(finding.exception.message))


def name_free_signature(outcome: Outcome, *, exporter: str) -> NameFreeSignature | None:
    """The name-free signature of what `outcome` shows; None where it passed."""
    if outcome.passed:
        return None
    if outcome.status in KIND_OF_STATUS:
        signal = (outcome.signal or "",) if outcome.status == OutcomeStatus.CRASHED else ()
        return NameFreeSignature(KIND_OF_STATUS[outcome.status], signal, "")
    failure = outcome.failure or Failure(stage="export", exceptions=())
    kind = kind_of(outcome, exporter=exporter)
    if kind is FailureKind.NUMBERS:
        return NameFreeSignature(kind, (NUMBERS_DIFFER,), "")
    return NameFreeSignature(
        kind,
        tuple(fact.type for fact in failure.exceptions),
        without_arithmetic(without_names(failure.exceptions[0].message)) if failure.exceptions else "",
        _raised_in(failure),
        *(_symbols(failure) if kind.is_data_dependent else (failure.guarded_by,)),
    )


def _raised_in(failure: Failure) -> str:
    """The innermost function of torch, where the stack ends in torch; dynamo shortens its stacks as it likes."""
    if not failure.frames or any(fact.is_of_dynamo for fact in failure.exceptions):
        return ""
    last = failure.frames[-1]
    return "" if last.user else last.function.rpartition(".")[2]


def _symbols(failure: Failure) -> tuple[str, tuple[str, ...], bool, bool]:
    """What asked for the value of a symbol, what made the symbols, whether one of them is like a size, and whether an
    operator was running."""
    culprit = failure.culprit
    made = {name for origin in failure.origins for name in _made_by(origin)}
    size_like = any(_SIZE_LIKE.search(fact.message) for fact in failure.exceptions)
    in_operator = failure.op is not None and failure.op.raised
    return outermost_operation(culprit.expression) if culprit else "", tuple(sorted(made)), size_like, in_operator


def _made_by(origin: SymbolOrigin) -> list[str]:
    """The operator that made a symbol; where it is not known, or reads any number, what the user's line calls."""
    names = (origin.op or "").split(".")
    if len(names) > 1 and names[1] not in _READS_A_NUMBER:
        return [names[1]]
    return _MAKES_SYMBOLS.findall(origin.frame.source) if origin.frame else []


def outermost_operation(expression: str | None) -> str:
    """The outermost operation of an expression: the name of what it calls, or what kind of expression it is."""
    try:
        tree = ast.parse((expression or "").strip(), mode="eval").body
    except SyntaxError:
        return ""
    match tree:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.IfExp():
            return CONDITION
        case ast.BinOp() | ast.Subscript():
            return type(tree).__name__
    return ""


def same_stage_failure(one: StageFailure, other: StageFailure) -> bool:
    """Whether two failures of a stage after the export are the same, though their nodes have other names."""
    return _raised_by_stage(one) == _raised_by_stage(other)


def _raised_by_stage(found: StageFailure) -> tuple[str, str, str, str]:
    message = re.sub(r"'[^']*'|\([\w.:/-]*\)", "<name>", re.sub(r"Load model from \S+ failed:", "", found.message))
    message = message.replace(found.node or "\0", "<name>")
    return found.stage, found.exception, found.op, normalise(message)
