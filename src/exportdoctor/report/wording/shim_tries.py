"""Sentences about shims that were tried, searches that found none, and probes that could not be made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from exportdoctor.core.failure.finding import ShimTry
from exportdoctor.core.failure.messages import VIOLATED, first_line, summary_line, without_hints
from exportdoctor.core.records.outcome import Agreement, Outcome, OutcomeStatus
from exportdoctor.report.wording.formatting import beside_limit, count

PART_ITSELF = "the part itself"
ON_SMALL_MODEL = "a small model with random weights"
STRUCTURE_ALONE = "structure only, no values"
OF_SMALL_MODEL = " (compared on a small model)"

MET_BEFORE = "a failure seen before"
NONE_CURES = "none of the shims tried makes it export"
NONE_CURES_LATER = "it exports, and none of the shims tried gets the program further"
NONE_CURES_NUMBERS = "it exports, and with none of the shims tried the program does the same as eager"
NONE_CURES_FILE = "it exports, and with none of the shims tried its ONNX file gives what eager gives"
NONE_GETS_FURTHER = "it exports with shims, and its program does not get through the later stages that were asked for"
NONE_FITS = "no known shim applies to this failure"
NOTHING_TO_COMPARE = "exports, nothing to compare"
NOT_TRIED = "could not be tried"
REFUSES_SOME = "exports, but refuses what eager takes"
NOT_PROVED = "not proved: compared on the known input sets only"
NOT_AT_FULL_SIZE = "the shims that work on the small model do not work at full size"
NOT_COMPARED_ON_SMALL_MODEL = "the outputs could not be compared with eager on the small model"
CURE_WITHOUT_VALUES = "it exports with shims, but there are no values to compare its outputs with eager"

CURE_WITHOUT_PROGRAM = (
    "it exports with shims, but the TorchScript exporter's traces are not compared with eager: other sizes may be wrong"
)

NO_OPAQUE_OPERATOR = "own code not tested: the TorchScript exporter does not support opaque operators"
NEVER_RAN = "own code not tested: the export ends in the same way before any of it runs"


def try_note(outcome: Outcome) -> str:
    """A remark on a try; empty if there is none."""
    if outcome.status == OutcomeStatus.NOT_APPLICABLE:
        return outcome.note.partition(": ")[2] or outcome.note  # it begins with the shim's own name
    if outcome.status.says_nothing:
        return ": ".join(filter(None, (NOT_TRIED, outcome.note)))
    if outcome.note or outcome.signal:
        return outcome.note or (outcome.signal or "")
    wrong = next((row for row in outcome.numbers if not row.holds), None)
    refused = next((row for row in outcome.numbers if row.refused and not row.holds), None)
    if refused is not None and outcome.agrees_but_for_layout(may_refuse=True):
        return f"{REFUSES_SOME}: inputs {refused.inputs}: {refused.trouble}"
    if wrong is not None:
        if wrong.says_nothing:
            return f"{NOTHING_TO_COMPARE}: {wrong.trouble}"
        numbers = beside_limit(wrong.max_abs, wrong.tolerance)
        what = wrong.trouble or "differs from eager by {} (tolerance {})".format(*numbers)
        return f"exports, but on inputs {wrong.inputs}: {what}"
    if outcome.status.ended_the_process:
        return outcome.status.replace("_", " ")
    return ""


def exports_unproved(shims: Sequence[str], outcome: Outcome) -> str:
    """Said of a part that exports with these shims, whose program was not seen to be right."""
    silent = next((row.trouble for row in outcome.numbers if row.says_nothing), "")
    why = f"and there is nothing to compare: {silent}" if silent else f"and the program {_how_it_differs(outcome)}"
    return f"it exports with {' + '.join(shims)}, {why}"


def none_attempted(why: str) -> str:
    """That nothing is known of any shim, because no attempt with one could be made."""
    return f"no shim could be tried: {why}" if why else "no shim could be tried"


def not_tried_at_full_size(why: str) -> str:
    """That shims work on the small model, and no attempt with them could be made on the part itself."""
    return "shims work on the small model, and could not be tried at full size" + (f": {why}" if why else "")


def raised_note(outcome: Outcome) -> str:
    """What a try raised, in a line."""
    facts = outcome.failure.exceptions if outcome.failure is not None else ()
    return f"raises {facts[0].name}: {first_line(facts[0].message, 120)}".rstrip(": ") if facts else ""


def next_failure_note(outcome: Outcome) -> str:
    """The failure that a try ended in and that no finding tells, in a line."""
    failure = outcome.failure
    if failure is None or not failure.exceptions:
        return ""
    first, frame = failure.exceptions[0], failure.culprit or failure.guard
    where = f" at {frame.file.rpartition('/')[2]}:{frame.line}" if frame is not None else ""
    text = without_hints(summary_line(first.message, 130))
    return f"{first.name}{where}: {text}" if text else f"{first.name}{where}"


def rest_note(before: Outcome, after: Outcome) -> str:
    """What is left of a failure that a try got past in part, and the dimensions that it is about no longer."""
    left = violated_dims(after)
    gone = [name for name in violated_dims(before) if name not in left]
    passed = f"no longer of {' and '.join(f'`{name}`' for name in gone)}, " if gone and left else ""
    return f"the rest of it: {passed}{next_failure_note(after)}"


def violated_dims(outcome: Outcome) -> tuple[str, ...]:
    """The dimensions that a constraint violation names; none for any other failure."""
    facts = outcome.failure.exceptions if outcome.failure is not None else ()
    return next((names for fact in facts if (names := dims_in(fact.message))), ())


def dims_in(message: str) -> tuple[str, ...]:
    """The dimensions that the message of a constraint violation names."""
    found = VIOLATED.search(message)
    return tuple(name.strip() for name in found[1].split(", ") if name.strip()) if found else ()


def shim_results(tries: Sequence[ShimTry]) -> str:
    """The shims, each with what it did in parentheses; where none helps, why not too. What is refused by a program that
    is right on all else is told in any case."""
    helped = any(tried.result in ("cured", "moved") for tried in tries)
    return ", ".join(f"{tried.shim} ({shim_effect(tried)}{_reason(tried, helped=helped)})" for tried in tries)


def _reason(tried: ShimTry, *, helped: bool) -> str:
    """Why a shim that could be tried does not work, where that is known and another did not help."""
    if tried.result == "error" and tried.note.startswith(REFUSES_SOME):
        return first_line(tried.note.removeprefix(REFUSES_SOME), 240).rstrip(".")
    told = tried.note.removeprefix("raises ") if not helped else ""
    known = tried.result == "error" and told and not tried.note.startswith((NOTHING_TO_COMPARE, NOT_TRIED))
    return ": " + first_line(told, 240).rstrip(".") if known else ""


def shim_effect(tried: ShimTry) -> str:
    """What a shim, or a set of them, did."""
    following = f"; next failure {tried.next}" if tried.next else f", then {tried.note or 'another failure'}"
    return {
        "cured": "works",
        "moved": f"gets past this{following}",
        "same": "no effect",
        "error": next(filter(tried.note.startswith, (NOTHING_TO_COMPARE, NOT_TRIED, REFUSES_SOME)), "does not work"),
        "not_applicable": "not applicable",
    }[tried.result]


_ONE_LAYOUT = "valid only if the inputs have the memory layout of the example's, which the program does not check"


def layout_condition(row: Agreement) -> str:
    """The condition under which a program holds that is wrong on inputs in another memory layout."""
    what = row.trouble or f"its outputs differ from eager's by {row.max_abs:.1e}"
    return f"{_ONE_LAYOUT} (on inputs {row.inputs}: {what})"


def is_layout_condition(note: str) -> bool:
    """Whether a note of a proof says that."""
    return note.startswith(_ONE_LAYOUT)


_GOALS = {"decompose": "decomposed to core ATen", "translate": "translated to ONNX"}
"""By the stage that fails."""


def _how_it_differs(outcome: Outcome) -> str:
    """What an exported program does otherwise than eager."""
    if not outcome.agrees_but_for_layout(may_refuse=True):
        wrong = next((row for row in outcome.numbers if not (row.holds or row.refused or row.says_nothing)), None)
        return f"does not do the same as eager{f' {_wrong_row(wrong)}' if wrong is not None else ''}"
    again = any(row.refused and row.kind == "called_again" for row in outcome.numbers)
    refuses = "refuses the same inputs when it is called again" if again else "refuses other sizes or values"
    others = [refuses] if not outcome.agrees_but_for_layout(may_refuse=False) else []
    layout = ["is wrong on inputs in another memory layout"] if outcome.wrong_layout is not None else []
    return " and ".join((*others, *layout))


def _wrong_row(row: Agreement) -> str:
    """On which inputs a program is wrong, and how."""
    numbers = beside_limit(row.max_abs, row.tolerance)
    what = row.trouble or "an output differs from eager's by {}, {} is allowed".format(*numbers)
    return f"(on inputs {row.inputs}: {'; '.join(filter(None, (what, row.note)))})"


def outcome_line(outcome: Outcome) -> str:
    """How an attempt ended, in a line."""
    if outcome.stages.get("export") == "pass":
        if outcome.passed:
            return "exports"
        if outcome.failure is not None and (goal := _GOALS.get(outcome.failure.stage)):
            return f"exports, but is not {goal}: {_first_error(outcome)}"
        return f"exports, but {_how_it_differs(outcome)}"
    if outcome.note:
        return f"{outcome.status.replace('_', ' ')}: {outcome.note}"
    failure = outcome.failure
    if failure is None or not failure.exceptions:
        return _first_error(outcome)
    culprit = failure.culprit
    where = f" at {culprit.file.rpartition('/')[2]}:{culprit.line} in {culprit.function}" if culprit else ""
    return f"fails{where}: {_first_error(outcome)}"


def _first_error(outcome: Outcome) -> str:
    if outcome.failure is None or not outcome.failure.exceptions:
        return outcome.status.replace("_", " ") + (f" ({outcome.signal})" if outcome.signal else "")
    first = outcome.failure.exceptions[0]
    return f"{first.name}: {first_line(first.message, 200)}"


def not_chosen_note(
    shims: Sequence[str],
    best: Sequence[str],
    *,
    less_sound: bool,
    more: Sequence[str] = (),
    fewer: Sequence[str] = (),
    file: bool = True,
    conditions: bool = False,
) -> str:
    """Why a set of shims that works as well as `best` was not chosen; the sizes that it fixes beyond those that `best`
    fixes, and those that it does not. Without `file` none of its program can be written. `conditions`: each of the two
    has one."""
    if not file:
        return "no file of its program can be written"
    if less_sound:
        return "less sound"
    if more:
        return f"also fixes {_in_quotes(more)}"
    if fewer:
        return f"leaves {_in_quotes(fewer)} dynamic"
    sound = "with a condition of its own" if conditions else "equally sound"
    return f"{sound}, but needs {len(shims)} shims" if len(shims) > len(best) else sound


def _in_quotes(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def no_opaque_note(outcome: Outcome) -> str:
    """Why a module's own code could not be exported without its submodules."""
    return f"own code not tested: an opaque operator cannot replace its children ({outcome.note})"


def kept_submodules_note(outcome: Outcome) -> str:
    """Which submodules ran as they are while their parent's own code was exported."""
    return f"own code tested without replacing {'; '.join(outcome.kept_children)}"


def agreement_line(row: Agreement) -> str:
    """How the exported program compares with eager on one set of inputs."""
    result = row.trouble or "max |Δ| {}, tolerance {}".format(*beside_limit(row.max_abs, row.tolerance))
    verb = "refuses" if row.refused else "matches eager on" if row.holds else "differs from eager on"
    return f"{verb} {row.inputs}: {result}"


_KINDS = {
    "called_again": "three calls in a row",
    "others_between": "calls with others in between",
    "sizes": "other sizes",
    "size_one_or_zero": "sizes of zero or one",
    "values": "other values",
    "layout": "another memory layout",
    "extreme_values": "extreme values",
    "rows": "permuted or repeated rows",
    "whole_numbers": "other whole numbers",
    "segments": "other segments",
    "padding": "padding",
    "branches": "other branches",
}


def set_kinds(kinds: Mapping[str, int]) -> str:
    """The input sets of a proof by what they differ in from the example: `the example, 3 with other sizes`."""
    words = ["the example"] if "example" in kinds else []
    words += [f"{kinds[kind]} with {text}" for kind, text in _KINDS.items() if kind in kinds]
    return ", ".join(words)


def combined_rows(numbers: Sequence[Agreement]) -> Iterator[Agreement]:
    """The comparisons, of the drawn sets of a kind that agree the one that differs most, titled by their number.

    Of those that do not agree the first of each kind is given; those that are refused are told in a line of their own.
    """
    drawn: dict[str, list[Agreement]] = {}
    wrong: set[str] = set()
    for row in numbers:
        if row.made_up and row.holds:
            drawn.setdefault(row.kind, []).extend([] if row.refused else [row])
        elif not row.made_up or row.kind not in wrong:
            wrong.update([row.kind] if row.made_up else [])
            yield row
    for kind, rows in drawn.items():
        if rows:
            worst = max(rows, key=lambda row: row.max_abs / (row.tolerance or 1))
            yield msgspec.structs.replace(
                worst, inputs=f"{count(len(rows), 'drawn set')} with {_KINDS.get(kind, kind)}"
            )


def refused_sets(titles: Sequence[str], reasons: Sequence[tuple[str, str]]) -> str:
    """Said where a program refuses what eager takes; `reasons` are what it raises, each after a set for which it
    does."""
    those = "an input set that eager takes" if len(titles) == 1 else f"{len(titles)} input sets that eager takes"
    shown = [f"inputs {inputs} ({why})" for inputs, why in reasons] or [f"inputs {titles[0]}"]
    among = " among them" if len(titles) > len(shown) else ""
    return f"The program refuses {those}: {'; '.join(shown)}{among}"


_MOST_REASONS = 4


def reasons_of_refusals(rows: Iterable[Agreement]) -> tuple[tuple[str, str], ...]:
    """What a program raises for sets that it refuses, each after one of them: the last with sizes above one, as sets
    that were drawn to be refused come last, and each has one other size than the example. What it raises for those
    comes first, then the most frequent; no more than four."""
    found: dict[str, list[Agreement]] = {}
    for row in rows:
        if row.trouble:
            found.setdefault(_NODE.sub("", first_line(row.trouble, 200)), []).append(row)
    reasons = [(min(reversed(those), key=_is_below_two), why, len(those)) for why, those in found.items()]
    reasons.sort(key=lambda one: (_is_below_two(one[0]), -one[2]))
    return tuple((row.inputs, why) for row, why, _ in reasons[:_MOST_REASONS])


_NODE = re.compile(r" on node '\w+'$")
"""What torch adds to what an assertion asks; it names nothing of the user's."""


def _is_below_two(row: Agreement) -> bool:
    return row.kind == "size_one_or_zero"
