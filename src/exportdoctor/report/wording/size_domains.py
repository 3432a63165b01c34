"""Sentences about the sizes at which a program is right, and the domain as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from exportdoctor.core.protocol.domain import DomainResult
from exportdoctor.core.records.size_domain import SizeAxis, SizeCondition, SizeDomain, SizeTrial, StageAnswer
from exportdoctor.report.wording.formatting import count, short_path, under_shims

EXAMPLE = "the example"
NO_EAGER = "There is no eager beside a file alone: whether its answers are right was not asked."
IGNORED = ", which eager ignores, differ and were not compared"
"""Said of outputs at masked positions."""
_MOST_SIZES, _MOST_UNTRIED = 6, 4
_FINITE = 1e300

_OUTCOMES = {"right": "right", "refuses": "refuses", "wrong": "other numbers", "alone": "answers", "answers": "answers"}
_KINDS = {
    "declared": "as declared",
    "fixed": "the program has this size as a constant",
    "guard": "a guard of the export",
    "assertion": "an assertion in the program",
    "branch": "nothing checks it",
}


def at_size(axis: str, size: int) -> str:
    """A trial's title."""
    return f"{axis} {size}"


MARKS_KEPT, FLAGS_TURNED = "as many places marked", "zeros and ones exchanged"
"""What other whole numbers of a trial's sizes are like."""


def numbers_all(number: int) -> str:
    """Whole numbers that are all the same."""
    return f"whole numbers all {number}"


def with_numbers(title: str, which: str) -> str:
    """A trial's title, where eager refuses the example's whole numbers at its sizes."""
    return f"{title}, {which}"


def apart(axis: str, size: int, other: str, unchanged: int | str) -> str:
    """A trial's title, where of two sizes that go together one is changed."""
    return f"{axis} {size}, {other} {unchanged}"


def at_described_size(axis: str, size: int, by: str, numbers: list[int] | list[list[int]]) -> str:
    """A trial's title, where whole numbers say the size: the last row of them, and how many come before."""
    last = numbers[-1]
    row = " x ".join(map(str, last)) if isinstance(last, list) else str(last)
    return f"{axis} {size}, {by} {'..., ' if len(numbers) > 1 else ''}{row}"


UNCHANGED = "unchanged"
_BY_CHANCE = "eager's own answer depends on chance, on memory that is not its own or that nobody wrote"
DIVIDES_BY_ZERO = "a guard divides by zero"
OTHER_WAY = "eager goes another way here than on the example, and the program does not"


def sizes_not_made(titles: Sequence[str]) -> str:
    """Sizes for which inputs cannot be cut or repeated from the example."""
    return f"not tried, since the example has no elements there to repeat: {', '.join(dict.fromkeys(titles))}"


def only_nan(titles: Sequence[str]) -> str:
    """Sizes at which there is nothing to compare with."""
    return f"{_some_inputs(titles)}: nothing can be compared, eager gives nothing but NaN"


def masked_at(titles: Sequence[str]) -> str:
    """Inputs for which not all positions were compared."""
    return f"{_some_inputs(list(dict.fromkeys(titles)))}: outputs at masked positions{IGNORED}"


def drawn_sets(tried: int, told: int) -> str:
    """How many other input sets were run."""
    rest = "all of them right" if not told else f"{told} of them not right in every stage; each way is listed above"
    return f"{count(tried, 'other input set')} that eager takes: {rest}"


def sizes_in_words(axis: SizeAxis) -> str:
    """The sizes that a program takes: `multiples of 2 from 6 to 98`, and at which of them it raises or is wrong."""
    beyond = [text for end, text in ((axis.lowest, "less"), (axis.highest, "more")) if end in axis.ends_by_runs]
    notes = [_declaration(axis), f"an operation refuses {' and '.join(beyond)}" if beyond else ""]
    said = "; ".join(filter(None, notes))
    apart_from = f" ({said})" if said else ""
    refused = ", ".join(map(str, axis.refused))
    if refused:
        apart_from += f"; refused where tried: {refused}" if axis.partly else f"; an operation refuses {refused}"
    apart_from += f"; wrong at {', '.join(map(str, axis.wrong))}" if axis.wrong else ""
    apart_from += "".join(f"; {text}" for text in _seen_by_values(axis))
    if axis.partly and not axis.fixed:
        shown = ", ".join(map(str, axis.right[:_MOST_SIZES]))
        more = f" and {len(axis.right) - _MOST_SIZES} more" if len(axis.right) > _MOST_SIZES else ""
        return f"{_rule_in_words(axis)} by itself; right where tried: {shown or 'nowhere'}{more}{apart_from}"
    return f"{_rule_in_words(axis)}{apart_from}"


def _seen_by_values(axis: SizeAxis) -> Iterator[str]:
    """At which sizes everything is refused for its values, and from which on answers were compared with eager's."""
    if axis.by_values:
        sizes = ", ".join(map(str, axis.by_values[:_MOST_SIZES]))
        yield f"at {sizes} all that was tried is refused by assertions on values"
    if axis.compared is None or axis.fixed or axis.partly:
        return
    least = min(axis.only, default=axis.lowest)
    if axis.compared < 0:
        yield "compared with eager at no size"
    elif axis.compared > least and axis.highest != -1:
        yield f"compared with eager from {axis.compared} on"


def _declaration(axis: SizeAxis) -> str:
    """What the declared shapes say of the size; empty where they bound it nowhere, or fix it."""
    lower, upper = axis.declared
    if axis.fixed or (lower is None and upper is None):
        return ""
    same = axis.until and not axis.only and (lower or 0) == axis.lowest and upper == axis.highest
    if same:
        return "as declared"
    rule = f"≤ {upper}" if lower is None else f"≥ {lower}" if upper is None else f"{lower} to {upper}"
    return f"declared: {rule}"


def _rule_in_words(axis: SizeAxis) -> str:
    if axis.fixed:
        return f"{axis.example} only, not dynamic"
    if axis.only:
        return f"{_some_sizes(axis.only)}{_end_of_list(axis) or ' only'}"
    if not axis.until:
        return "not derived, since the program's inputs are made of the part's"
    if axis.highest is not None and axis.highest < axis.lowest:
        return "none"
    if axis.step > 1:
        start = "multiples" if axis.lowest % axis.step == 0 else f"{axis.lowest % axis.step} more than multiples"
        text = f"{start} of {axis.step} from {axis.lowest}"
        text += f" to {axis.highest}" if axis.highest is not None else ""
    elif axis.highest is not None:
        text = f"{axis.lowest} to {axis.highest}"
    else:
        text = f"≥ {axis.lowest}"
    text += f", but no multiples of {axis.cycle}" if axis.skipped == (0,) else ""
    if axis.skipped and axis.skipped != (0,):
        text += f", but none that is {_rests_in_words(axis)} more than a multiple of {axis.cycle}"
    text += f"{' and' if axis.skipped else ', but'} not {_some_sizes(axis.but)}{_end_of_list(axis)}" if axis.but else ""
    return text


def _some_sizes(sizes: tuple[int, ...]) -> str:
    """The first of them, with how many more there are."""
    more = f" and {len(sizes) - _MOST_SIZES} more" if len(sizes) > _MOST_SIZES else ""
    return f"{', '.join(map(str, sizes[:_MOST_SIZES]))}{more}"


def _end_of_list(axis: SizeAxis) -> str:
    """Up to where a list goes that has no end there."""
    return f" up to {axis.until} (not every size above was evaluated)" if axis.cut else ""


def _rests_in_words(axis: SizeAxis) -> str:
    """`0, 3 or 8 to 15`: the rests of the sizes that are skipped, those in a row together."""
    rows: list[list[int]] = []
    for rest in axis.skipped:
        if rows and rest == rows[-1][-1] + axis.step:
            rows[-1].append(rest)
        else:
            rows.append([rest])
    words = [" or ".join(map(str, row)) if len(row) < 3 else f"{row[0]} to {row[-1]}" for row in rows]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def domain_headline(result: DomainResult) -> str:
    """Target, part, shims and versions."""
    packages = [f"{name} {result.environment[name]}" for name in ("torch", "onnxruntime") if name in result.environment]
    return " · ".join(filter(None, (result.target, result.part, under_shims(result.shims), *packages)))


AXIS_HEADER = ("size", "which the program takes, others as in the example")


def domain_failure(result: DomainResult) -> Iterator[str]:
    """The stages that could not be made."""
    for one in filter(None, (result.failure, result.later_failure)):
        at = f" at {short_path(one.file)}:{one.line}" if one.file else ""
        what = "as declared, the part does not export" if one.stage == "export" else f"{one.stage} fails"
        yield f"{what}: {one.exception.rpartition('.')[2]}: {one.message}{at}"
        if one.stage == "export" and result.domain.axes:
            yield "what follows is of an export in which torch may fix sizes"


def axis_rows(domain: SizeDomain) -> list[tuple[str, str]]:
    """Each axis with the sizes that the program takes."""
    rows = []
    for axis in domain.axes:
        rest = [f"{len(axis.same) - _MOST_SIZES} more"] if len(axis.same) > _MOST_SIZES else []
        name = " = ".join((axis.name, *axis.same[:_MOST_SIZES], *rest))
        more = f" and {len(axis.follows) - _MOST_SIZES} more" if len(axis.follows) > _MOST_SIZES else ""
        verb = "follows" if len(axis.follows) == 1 else "follow"
        follows = f"; {', '.join(axis.follows[:_MOST_SIZES])}{more} {verb}" if axis.follows else ""
        rows.append((name, f"{sizes_in_words(axis)}{_beyond(domain, axis)}{follows}"))
    return rows


def _beyond(domain: SizeDomain, axis: SizeAxis) -> str:
    """That eager answers sizes which the program refuses, declared bounds apart, with those that were tried.

    Nothing is said where these are zero and one alone: torch.export promises neither.
    """
    if axis.only or axis.fixed or not axis.until or _is_alone(domain):
        return ""
    answered = {*axis.right, *axis.wrong, *axis.by_values}
    refused = [one.inputs.rpartition(" ") for one in domain.trials if _refuses_alone(domain, one)]
    sizes = {int(size) for name, _, size in refused if name == axis.name and size.isdecimal()}
    found = sorted(sizes - answered)
    if all(size < 2 for size in found):
        return ""
    *first, last = map(str, found[:_MOST_SIZES])
    return f"; eager takes others as well, such as {' and '.join(filter(None, (', '.join(first), last)))}"


def _refuses_alone(domain: SizeDomain, trial: SizeTrial) -> bool:
    declared = trial.condition >= 0 and domain.conditions[trial.condition].kind == "declared"
    return not trial.eager and not declared and trial.answers[0].outcome == "refuses"


def condition_line(condition: SizeCondition, alone: bool = False) -> str:
    """What is asked, who asks, and where. `alone`: of a file without eager beside it."""
    at = f", {short_path(condition.file)}:{condition.line}" if condition.file else ""
    who = "the range of this size in the file" if alone and condition.kind == "declared" else _KINDS[condition.kind]
    return f"{condition.text}: {who}{at}"


def trial_header(domain: SizeDomain) -> tuple[str, ...]:
    """The columns of the table of trials."""
    stages = tuple(answer.stage for answer in domain.trials[0].answers) if domain.trials else ()
    eager = () if _is_alone(domain) else ("eager",)
    return ("", "tried", *eager, *stages)


def trial_rows(domain: SizeDomain) -> list[tuple[str, ...]]:
    """A row for each trial, under trial_header."""
    rows = []
    for trial in domain.trials:
        eager = () if _is_alone(domain) else ("refuses" if trial.eager else "answers",)
        cells = tuple(_cell(answer) for answer in trial.answers)
        rows.append(("✓" if trial.holds else "✗", trial.inputs, *eager, *cells))
    return rows


def _cell(answer: StageAnswer) -> str:
    if answer.outcome == "wrong" and not answer.message:
        return "other numbers" if answer.max_abs > _FINITE else f"other numbers ({answer.max_abs:.1e})"
    return _OUTCOMES[answer.outcome]


def _is_alone(domain: SizeDomain) -> bool:
    return any(answer.outcome == "answers" for trial in domain.trials for answer in trial.answers)


def domain_details(domain: SizeDomain) -> Iterator[str]:
    """Why sizes are refused, what later files no longer check, and what was not tried."""
    alone = _is_alone(domain)
    held: dict[tuple[str, str | None, int | None], list[SizeCondition]] = {}
    for number, condition in enumerate(domain.conditions):
        ends: dict[str, list[str]] = {}
        for trial in (one for one in domain.trials if one.condition == number):
            ends.setdefault(_end_of(trial, condition), []).append(trial.inputs)
        for end, sizes in sorted(ends.items()):
            mark = "; " if any(", " in one for one in sizes) else ", "
            more = f" and {len(sizes) - _MOST_SIZES} more" if len(sizes) > _MOST_SIZES else ""
            yield f"{mark.join(sizes[:_MOST_SIZES])}{more}: {end}"
        if not ends:
            held.setdefault((condition.kind, condition.file, condition.line), []).append(condition)
            continue
        yield f"  {condition_line(condition, alone)}"
        if condition.source:
            yield f"      {condition.source}"
        if number in domain.dropped:
            yield f"  {_then(domain, number)}"
    yield from _held_lines(held.values(), alone=alone)
    for trial in domain.trials:
        told = _unexplained_refusals(trial)
        if trial.eager and trial.condition < 0 and trial.answers[0].outcome == "refuses":
            yield f"{trial.inputs}: {_refusal_words(trial)}: {trial.eager}"
        for one in told[:1]:
            yield f"{trial.inputs}: {one.stage} refuses what eager answers: {one.message}"
        for one in trial.answers:
            if one.outcome == "wrong" and one.message:
                yield f"{trial.inputs}: {one.stage}: {one.message}"
    if domain.untried:
        more = f" and {len(domain.untried) - _MOST_UNTRIED} more" if len(domain.untried) > _MOST_UNTRIED else ""
        yield f"not tried, too large or for want of time: {', '.join(domain.untried[:_MOST_UNTRIED])}{more}"
    yield from _unsteady_sizes(domain)
    yield from domain.notes
    yield verdict(domain)


def _held_lines(groups: Iterable[list[SizeCondition]], *, alone: bool) -> Iterator[str]:
    """The conditions that held throughout, those of one line together."""
    for place, group in enumerate(groups):
        if place == 0:
            yield "not violated by what was tried"
        more = f" and {len(group) - _MOST_SIZES} more" if len(group) > _MOST_SIZES else ""
        texts = ", ".join(one.text for one in group[:_MOST_SIZES]) + more
        yield f"  {condition_line(msgspec.structs.replace(group[0], text=texts), alone)}"
        if group[0].source:
            yield f"      {group[0].source}"


def _unexplained_refusals(trial: SizeTrial) -> list[StageAnswer]:
    """The stages that refuse what eager answers, though no condition says so."""
    return [one for one in trial.answers if one.outcome == "refuses" and not trial.eager and trial.condition < 0]


def _unsteady_sizes(domain: SizeDomain) -> Iterator[str]:
    """The inputs at which eager's own answer depends on other memory."""
    if domain.unsteady:
        yield f"{_some_inputs(domain.unsteady)}: nothing can be compared, {_BY_CHANCE}"


def _end_of(trial: SizeTrial, condition: SizeCondition) -> str:
    """What becomes of inputs that violate a condition."""
    if condition.kind == "branch":
        return "wrong, and refused by nothing"
    if trial.answers[0].outcome != "refuses":
        return "not refused"
    return _refusal_words(trial)


def _refusal_words(trial: SizeTrial) -> str:
    """That the program refuses these inputs, and which later stages answer them though eager refuses them, too."""
    if not trial.eager:
        return "refused"
    others = " and ".join(one.stage for one in trial.answers if one.outcome == "alone")
    return f"refused, as by eager, but answered by {others}" if others else "refused, as by eager"


def boundary_lines(domain: SizeDomain) -> Iterator[str]:
    """The sizes at which a stage is wrong, refuses what eager answers, or does not refuse what eager refuses, or eager
    answers by chance."""
    yield from _unsteady_sizes(domain)
    for trial in domain.trials:
        yield from (
            f"{trial.inputs}: {one.stage} refuses what eager answers" for one in _unexplained_refusals(trial)[:1]
        )
        for one in trial.answers:
            if one.outcome in ("wrong", "alone"):
                why = domain.conditions[trial.condition] if trial.condition >= 0 else None
                at = f" ({why.text}, {short_path(why.file)}:{why.line})" if why is not None and why.file else ""
                what = f": {one.message}" if one.outcome == "wrong" and one.message else f" {_ENDS[one.outcome]}"
                yield f"{trial.inputs}: {one.stage}{what}{at}"


def _then(domain: SizeDomain, number: int) -> str:
    """What happens in the stages that do not check a condition; where that is not one thing, at which inputs."""
    found: dict[str, dict[str, list[str]]] = {}
    for trial in (one for one in domain.trials if one.condition == number):
        for one in trial.answers[1:]:
            found.setdefault(one.stage, {}).setdefault(one.outcome, []).append(trial.inputs)
    said = [f"{stage} {_ends_in_words(ends)}" for stage, ends in found.items() if ends.keys() != {"refuses"}]
    return f"a later file does not check it: {'; '.join(said)}"


def _ends_in_words(ends: dict[str, list[str]]) -> str:
    """What a stage does: one thing, or several with their inputs."""
    if len(ends) == 1:
        return _ENDS[next(iter(ends))]
    return ", ".join(f"{_ENDS[one]} at {_some_inputs(ends[one])}" for one in _ENDS if one in ends)


def _some_inputs(titles: Sequence[str]) -> str:
    more = f" and {len(titles) - _MOST_SIZES} more" if len(titles) > _MOST_SIZES else ""
    mark = "; " if any(", " in one for one in titles) else ", "
    return f"{mark.join(titles[:_MOST_SIZES])}{more}"


_ENDS = {
    "right": "gives eager's numbers",
    "wrong": "gives other numbers",
    "alone": "answers what eager refuses",
    "answers": "answers",
    "refuses": "refuses",
}


def verdict(domain: SizeDomain) -> str:
    """Whether a stage was wrong at some size."""
    wrong = [trial.inputs for trial in domain.trials if not trial.holds]
    if wrong:
        more = f" and {len(wrong) - _MOST_SIZES} more" if len(wrong) > _MOST_SIZES else ""
        return f"A stage answers what it should refuse, or wrongly, at {', '.join(wrong[:_MOST_SIZES])}{more}."
    if not domain.trials:
        return "Nothing was tried."
    if _is_alone(domain):
        return NO_EAGER
    return "Every stage above gives eager's numbers or refuses, on both sides of each boundary."
