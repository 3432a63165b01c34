"""Sentences about the ladder of numbers, and the ladder as text and Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from exportdoctor.core.exception_text import summary
from exportdoctor.core.protocol.numbers_ladder import LadderCause, LadderResult, LadderStage, LadderValue
from exportdoctor.report.wording.formatting import beside_limit, count, under_shims, weights_text

LOWER_DTYPE = "the file computes in a lower dtype than eager, and is held to what that allows"
_FINITE = 1e300
_MOST_TIES = 3

_VERDICTS = {
    "agrees": "All stages give eager's numbers.",
    "agrees_but_ties": "All stages give eager's numbers, but for the choice among equal values.",
    "differs": "The numbers are not eager's.",
    "stops": "The stages up to the failure give eager's numbers.",
}
_RIGHT = {
    "reference": "{before} is right: float64 agrees with it",
    "candidate": "{name} is right: float64 agrees with it, and not with {before}",
    "neither": "float64 is as far from one as from the other",
    "unknown": "",
}
_KINDS = {
    "value": "the first value that is wrong although its inputs are right",
    "input": "the first value whose inputs are not those of {before}",
    "absent": "the first thing that {before} runs and {name} has nothing of",
    "raises": "the first step that fails",
    "state": "what changes the state that {name} leaves otherwise",
    "weight": "a parameter or buffer with other values",
}
_UNTOLD = frozenset({"", "rounding", "unwritten"})
_OWN_ERRORS = frozenset({"", "rounding"})
"""What a step adds by itself; other values that differ are another choice, or say nothing."""
_EXCUSES = {
    "tie": "another choice among equal values",
    "duplicates": "an index is written twice, and another of the values stays",
    "rounding": "differs by rounding: float64 is about as far from either side",
    "random": "a random number; the reference's was taken",
    "unwritten": "memory that nobody has written; what it holds says nothing",
}


def value_differs(name: str, absolute: float, allowed: float, trouble: str) -> str:
    """What is wrong with a value of floating-point numbers, or of another shape or dtype."""
    return f"{name} {trouble}" if trouble else f"{name} differs by {allowed_in_words(absolute, allowed)}"


def allowed_in_words(absolute: float, allowed: float) -> str:
    """A difference that is too large, with what is allowed."""
    texts = f"{absolute:.2g}", f"{allowed:.2g}"
    texts = beside_limit(absolute, allowed, of_limit=1) if texts[0] == texts[1] else texts
    return "{}, where {} is allowed".format(*texts)


def elements_differ(name: str, number: int) -> str:
    """What is wrong with a value of whole numbers."""
    return f"{name} differs in {count(number, 'element')}"


def finite_on_one_side(name: str, number: int) -> str:
    """What is wrong with a value that holds infinities or NaN."""
    return f"{name} is finite on one side only in {count(number, 'element')}"


def otherwise_not_finite(name: str, number: int) -> str:
    """What is wrong with a value that holds other infinities or NaN than the reference's."""
    return f"{name} differs in {count(number, 'element')} where neither side is finite"


def not_finite(name: str) -> str:
    """A value that left the numbers."""
    return f"{name} is infinite or NaN where the other side is a number"


def absent_module(name: str) -> str:
    """A submodule that the file has nothing of."""
    return f"eager calls {name} on these inputs, and the file has nothing that came of it"


def goes_on_after(name: str, made_by: str) -> str:
    """A stage whose output is a value after which the reference goes on; what computes the reference's output."""
    last = f": its output is that of {made_by}" if made_by else ""
    return f"the output is {name}, after which the stage before goes on{last}"


def other_input(name: str, trouble: str, made_by: str) -> str:
    """A step that is given another value than the reference's: how it differs in kind, and what computes the
    reference's, where these are known."""
    what = f"what it takes {trouble}" if trouble else "takes another value than in eager"
    by = f"; eager computes that one by {made_by}, and no value here is it" if made_by else ""
    return f"{name} differs, and {what}{by}"


def unseen_error(cause: LadderCause) -> str:
    """A wrong value that changes no output."""
    at = f" at {cause.file}:{cause.line}" if cause.file else ""
    return f"{cause.message}{at}; no output shows it"


def not_seen_by_values(title: str) -> str:
    """That the outputs differ and no value is named."""
    return (
        f"on {title} it gives other numbers only where it runs as a whole: run value by value it agrees with the stage "
        "before, so no value is named"
    )


def walk_ended(why: str) -> str:
    """Why values after some point were not compared."""
    return f"Values were compared one by one up to here only: {why}"


def otherwise_decomposed(error: Exception) -> str:
    """Why the decomposed program is not the one that the file was made of."""
    return (
        f"torch.onnx cannot translate the program ({summary(error)}), so it was decomposed by torch.export alone, and "
        "its values may have other names than the file's"
    )


def plain_file_skipped(error: Exception) -> str:
    """Why there is no stage of the file before torch.onnx's optimizer."""
    return f"The file as it is before torch.onnx optimises it was left out: {summary(error)}"


def matched_by_numbers(pairs: int) -> str:
    """How the values of a file without torch's names were found."""
    found = f"{count(pairs, 'value')} were matched" if pairs else "none was matched"
    return f"its values have no names of torch's: {found}, by the parameters that they take and by their numbers"


def ladder_headline(result: LadderResult) -> str:
    """Target, part, shims and versions."""
    packages = [f"{name} {result.environment[name]}" for name in ("torch", "onnxruntime") if name in result.environment]
    weights, shims = weights_text(result.weights), under_shims(result.shims)
    return " · ".join(filter(None, (result.target, result.part, weights, result.dtype, shims, *packages)))


LADDER_HEADER = ("", "stage", "max |Δ|", "sets", "values", "local", "inherited")


def ladder_cells(result: LadderResult) -> list[tuple[str, ...]]:
    """A row for each stage, under LADDER_HEADER."""
    rows: list[tuple[str, ...]] = []
    for one in result.stages:
        if one.failure is not None:
            rows.append(("✗", one.name, "not made", "", "", "", ""))
            continue
        asked = [row for row in one.rows if not row.refused]
        right = sum(row.holds or row.inputs in one.excused for row in asked)
        rows.append(
            (
                "✓" if one.holds else "✗",
                one.name,
                _number(max((row.max_abs for row in asked), default=0.0)),
                f"{right} of {len(asked)} agree",
                f"{len(one.values)}{f' of {len(one.values) + one.unmatched}' if one.unmatched else ''}",
                _number(max((value.local for value in one.values if value.excuse in _OWN_ERRORS), default=0.0)),
                _number(max((value.inherited for value in one.values), default=0.0)),
            )
        )
    return rows


def _number(value: float) -> str:
    return "not finite" if value > _FINITE else f"{value:.1e}" if value else "0"


LADDER_LEGEND = ("local: what a value adds by itself", "the same, too much", "inherited: with all before it")
ALLOWED = "the most that is allowed of one"


def stage_picture(stage: LadderStage) -> tuple[str, str, list[str]]:
    """A picture's title, what its columns are, and the text of each."""
    texts = [f"{one.name} ({one.op}){_place(one)}: local {_number(one.local)}" for one in stage.values]
    return f"{stage.name} beside {stage.before}", f"values of {stage.name}, in the order of {stage.before} →", texts


def ladder_details(result: LadderResult) -> Iterator[str]:
    """What is said below the table: the cause first."""
    if (found := result.cause) is not None:
        yield from cause_lines(*found)
    told: set[str] = set()
    for stage in result.stages:
        if stage.failure is not None:
            at = f" at {stage.failure.file}:{stage.failure.line}" if stage.failure.file else ""
            yield f"{stage.name}: {stage.failure.exception.rpartition('.')[2]}: {stage.failure.message}{at}"
        yield from (f"{stage.name}, {line}" for line in _row_lines(stage, told))
        unexplained = result.cause is None and not stage.holds
        for value in [one for one in stage.values if _is_told(one, unexplained)][:_MOST_TIES]:
            yield f"{stage.name}, {value.name} ({value.op}){_place(value)}: {_EXCUSES[value.excuse]}"
        yield from (f"{stage.name}: {note}" for note in stage.notes)
    yield from result.notes
    if result.cause is None:
        made = any(stage.failure is None for stage in result.stages)
        yield _VERDICTS[result.verdict] if made else "No stage could be made, so nothing was compared."


def _is_told(value: LadderValue, unexplained: bool) -> bool:
    """Rounding is told where a stage has other numbers and nothing else explains them."""
    return value.excuse not in _UNTOLD or (unexplained and value.excuse == "rounding")


def _row_lines(stage: LadderStage, told: set[str]) -> Iterator[str]:
    """What is wrong on which sets, without the sets that were told of an earlier stage."""
    found: dict[str, list[str]] = {}
    for row in stage.rows:
        if not row.holds and not row.refused and row.inputs not in told and row.inputs not in stage.excused:
            found.setdefault(row.trouble or "other numbers", []).append(row.inputs)
    for what, sets in found.items():
        told.update(sets)
        more = f" and {count(len(sets) - 1, 'other set')}" if len(sets) > 1 else ""
        yield f"{sets[0]}{more}: {what}"


def _place(value: LadderValue) -> str:
    return f" at {value.file}:{value.line}" if value.file else ""


def cause_lines(stage: LadderStage, cause: LadderCause) -> Iterator[str]:
    """The cause in words: what, where, which side is right."""
    yield f"{stage.name} differs from {stage.before}: {cause.message}"
    what = _KINDS[cause.kind].format(name=stage.name, before=stage.before)
    kind = f" ({cause.module_class})" if cause.module_class else ""
    op = f" ({cause.op})" if cause.op and cause.op != cause.node else ""
    yield f"  {what}: {cause.node}{op}, in {cause.module or 'the part itself'}{kind}"
    if cause.steps > 1:
        yield f"  the error may come from any of the {cause.steps} nodes that lead here from values with a counterpart"
    if cause.file:
        yield f"  {cause.file}:{cause.line}"
        yield f"      {cause.expression or cause.source}"
    if right := _RIGHT[cause.right].format(name=stage.name, before=stage.before):
        yield f"  {right}"
    yield f"  on inputs: {cause.inputs}"
    wrong = sum(value.inherited > value.allowed and not value.excuse for value in stage.values)
    if wrong and cause.kind != "state":  # a state shows in later calls, and the values are of one
        differ = f"{count(wrong, 'value')} of {stage.name} {'differs' if wrong == 1 else 'differ'}"
        yield f"  {differ}: this one{'' if wrong == 1 else ' and what follows'}"
