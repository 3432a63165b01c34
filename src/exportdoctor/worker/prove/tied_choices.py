"""Whether a program differs from eager in nothing but its choice among equal values: no program can be held to that.

Eager runs again and chooses as the program may have: of the values that eager itself has, and only such as equal those
that it chose. What it gives then the program must give throughout, in every call of a set. So a wrong index is never
excused, however its choices were guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import torch

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.report.wording.export import CHOOSES_AMONG_EQUALS
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import CallResult
from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.prove.compare_outputs import same_outputs, tensors_in
from exportdoctor.worker.prove.input_set import InputSet, run_in_eager

_CHOOSING = frozenset(
    {"topk", "sort", "argmax", "argmin", "max", "min", "kthvalue", "median", "nanmedian", "mode"}
)  # argsort and msort are made of sort
_SEVERAL = ("topk", "sort")
"""They choose several elements of a row, each once; the others one."""

_IN_ORDER = frozenset(
    {"view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "detach", "alias", "clone", "_to_copy", "to"}
)
"""Operators that give the elements of what they take, in the same order."""

Rule = Literal["eager", "lowest", "highest"]
"""Which of equal values is chosen: as eager does, the one of the lowest index (as ONNX says), or of the highest."""

Compare = Callable[[InputSet], Agreement]
"""Runs the program on a set, and compares it with the set's results."""

Answers = Callable[[InputSet], Sequence[CallResult]]
"""What the program gives for the calls of a set."""


def excuse_ties(
    module: torch.nn.Module,
    sets: Sequence[InputSet],
    rows: Sequence[Agreement],
    compare: Compare,
    answers: Answers | None = None,
) -> list[Agreement]:
    """The rows; one that differs in nothing but the choice among equal values has a note, and agrees: it has the
    differences from what eager gives with the same choice. Call it while no shim is active.

    `answers`: the indices among what the program gives are its choices, too.
    """

    def excuse(one: InputSet, row: Agreement) -> Agreement:
        if row.holds or row.refused or row.says_nothing or one.with_gradients:
            return row
        found = _tensors_by_call(one, answers) if answers is not None else None
        chosen = choose_as(module, one.calls, one.results, lambda results: _agreement(compare, one, results), found)
        if chosen is None:
            return row
        note = "; ".join(filter(None, (chosen.note, CHOOSES_AMONG_EQUALS)))
        return msgspec.structs.replace(chosen, inputs=row.inputs, call=row.call, note=note)

    return [excuse(one, row) for one, row in zip(sets, rows, strict=True)]


def is_tied(row: Agreement) -> bool:
    """Whether a row agrees but for the choice among equal values."""
    return row.holds and CHOOSES_AMONG_EQUALS in row.note


def _tensors_by_call(one: InputSet, answers: Answers) -> list[list[torch.Tensor]] | None:
    try:
        return [tensors_in(answer.output) for answer in answers(one)]
    except Exception:
        return None


def _agreement(compare: Compare, one: InputSet, results: tuple[CallResult, ...]) -> Agreement:
    pairs = zip(results, one.results, strict=True)
    kept = tuple(replace(result, numbers=before.numbers) for result, before in pairs)
    return compare(replace(one, results=kept))


def choose_as(
    module: torch.nn.Module,
    calls: Sequence[Inputs],
    wanted: Sequence[CallResult],
    compare: Callable[[tuple[CallResult, ...]], Agreement],
    found: Sequence[Sequence[torch.Tensor]] | None = None,
) -> Agreement | None:
    """How a program agrees with what eager gives if it chooses otherwise among equal values; None where it does not,
    or eager has no such choice. `wanted` is what eager gives by itself, `found` are the program's outputs, by call.
    """
    first = _Run(())
    plain = first.answer(module, calls)
    if plain is None or not first.has_ties or not all(map(same_outputs, plain, wanted)):
        return None
    told = first.choices_in(found) if found is not None else ()
    rules: tuple[Rule, ...] = ("lowest", "eager", "highest")
    tries = [(told, rule) for rule in rules] if any(one is not None for one in told) else []
    tries += [((), rule) for rule in rules if rule != "eager"]
    for choices, rule in tries:
        run = _Run(choices, rule)
        results = run.answer(module, calls) if run is not first else None
        if results is None or not run.chose_otherwise:
            continue
        row = compare(results)
        if row.holds and not row.refused and not row.says_nothing:
            return row
    return None


def chooses_as_eager_may(
    module: torch.nn.Module,
    inputs: Inputs,
    output: Any,
    answers: Sequence[torch.Tensor],
    compare: Callable[[Any], Agreement],
) -> bool:
    """Whether a program's `answers` to one call are what eager gives with another choice among equal values; `compare`
    compares them with an output of eager's, and `output` is the one that eager gives by itself."""
    wanted = CallResult(output=output, after=inputs, buffers={})
    found = choose_as(module, [inputs], [wanted], lambda results: compare(results[0].output), [answers])
    return found is not None


class _Run:
    """One run of eager with the given choices, by number, or by a rule where there is none."""

    def __init__(self, choices: Sequence[torch.Tensor | None], rule: Rule = "eager") -> None:
        self._choices = choices
        self._rule = rule
        self._places: list[dict[int, int]] = []
        self.made: list[torch.Tensor] = []
        self.has_ties = self.chose_otherwise = False

    def answer(self, module: torch.nn.Module, calls: Sequence[Inputs]) -> tuple[CallResult, ...] | None:
        """What eager gives; None if it fails so."""

        def call(given: Inputs) -> Any:
            with _Choosing(self) as mode:
                output = module(*given[0], **given[1])
            leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
            self._places.append(
                {place: number for place, leaf in enumerate(leaves) if (number := mode.number_of(leaf)) is not None}
            )
            return output

        return run_in_eager(module, calls, how=call)

    def choose(self, choice: Choice) -> torch.Tensor:
        """The indices that this run takes, in the shape of eager's."""
        lowest, highest = (choice.among_equals(choice.by_rule(highest=last)) for last in (False, True))
        self.has_ties = self.has_ties or not torch.equal(lowest, highest)
        number = len(self.made)
        given = self._choices[number] if number < len(self._choices) else None
        chosen = {"eager": choice.indices, "lowest": lowest, "highest": highest}[self._rule]
        if given is not None and given.numel() == choice.indices.numel():
            chosen = choice.among_equals(given.reshape(choice.indices.shape).to(choice.indices))
        self.chose_otherwise = self.chose_otherwise or not torch.equal(chosen, choice.indices)
        self.made.append(chosen)
        return chosen

    def choices_in(self, outputs: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor | None]:
        """The program's choices, by number, where its outputs show them."""
        found: list[torch.Tensor | None] = [None] * len(self.made)
        for places, tensors in zip(self._places, outputs, strict=False):
            for place, number in places.items():
                if place < len(tensors) and not tensors[place].is_floating_point():
                    found[number] = tensors[place]
        return found


class _Choosing(dispatch_mode_class()):  # type: ignore[misc]
    """Asks a run for the indices of each operator that chooses some."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run
        self._numbers: dict[int, tuple[int, torch.Tensor]] = {}

    def number_of(self, value: torch.Tensor) -> int | None:
        """Which of the choices has its elements, in order."""
        known = self._numbers.get(id(value))
        return known[0] if known is not None and known[1] is value else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        choice = choice_of(func, args, kwargs or {}, result)
        if choice is None:
            if func.__name__.partition(".")[0] in _IN_ORDER and isinstance(result, torch.Tensor) and args:
                known = self._numbers.get(id(args[0]))
                if known is not None and known[1] is args[0] and result.numel() == args[0].numel():
                    self._numbers[id(result)] = known[0], result
            return result
        number = len(self._run.made)
        chosen = choice.as_given(self._run.choose(choice))
        self._numbers[id(chosen)] = number, chosen
        return chosen if isinstance(result, torch.Tensor) else type(result)((*result[:-1], chosen))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What an operator chose along a dimension: `indices` have as many dimensions as `source`, and `shape` is theirs in
    the operator's result. `several`: it chooses several elements in an order, the largest first if it `descends`."""

    source: torch.Tensor
    dim: int
    indices: torch.Tensor
    shape: torch.Size
    several: bool
    descends: bool

    def as_given(self, chosen: torch.Tensor) -> torch.Tensor:
        """Indices as the operator gives them."""
        return chosen.reshape(self.shape)

    def by_rule(self, *, highest: bool) -> torch.Tensor:
        """The lowest, or the highest, indices of equal values, in the operator's order; not for each row a choice."""
        length = self.source.shape[self.dim]
        source = self.source.flip(self.dim) if highest else self.source
        if self.several:
            order = source.sort(dim=self.dim, descending=self.descends, stable=True).indices
            chosen = order.narrow(self.dim, 0, self.indices.shape[self.dim])
        else:
            values = self.source.gather(self.dim, self.indices)
            chosen = _equal(source, values).to(torch.uint8).argmax(self.dim, keepdim=True)
        return length - 1 - chosen if highest else chosen

    def allows(self, found: torch.Tensor) -> bool:
        """Whether other indices, in the shape of the operator's result, are a choice among equal values throughout."""
        if found.shape != self.shape or found.is_floating_point():
            return False
        chosen = found.to(self.indices).reshape(self.indices.shape)
        return torch.equal(self.among_equals(chosen), chosen)

    def among_equals(self, chosen: torch.Tensor) -> torch.Tensor:
        """The chosen indices in the rows where each chooses what equals eager's choice, and none is there twice;
        eager's in the others."""
        kept = chosen.clamp(0, self.source.shape[self.dim] - 1)
        mine, eager = self.source.gather(self.dim, kept), self.source.gather(self.dim, self.indices)
        right = ((kept == chosen) & _equal(mine, eager)).all(self.dim, keepdim=True)
        if self.several:
            right &= (kept.sort(self.dim).values.diff(dim=self.dim) != 0).all(self.dim, keepdim=True)
        return torch.where(right, chosen, self.indices)


def _equal(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | ((one != one) & (other != other))  # NaN


def choice_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Choice | None:
    """The choice that an operator has made; None of one that makes none, or whose order is asked for (`stable`)."""
    name = func.__name__.partition(".")[0]
    if name not in _CHOOSING or func._schema.is_mutable:
        return None
    indices = result if name in ("argmax", "argmin") else result[-1] if isinstance(result, tuple) else None
    given = {one.name: one.default_value for one in func._schema.arguments if one.has_default_value()}
    given.update(zip((one.name for one in func._schema.arguments), args))
    given.update(kwargs)
    source, dim = given.get("self"), given.get("dim")
    if not isinstance(indices, torch.Tensor) or not isinstance(source, torch.Tensor) or given.get("stable"):
        return None
    if source.layout != torch.strided or source.is_meta or not source.dim() or not indices.numel():
        return None
    source, shape = source.detach(), indices.shape
    if dim is None:
        source, dim = source.reshape(-1), 0
    dim %= source.dim()
    return Choice(
        source=source,
        dim=dim,
        indices=indices if indices.dim() == source.dim() else indices.reshape(_with_one(source.shape, dim)),
        shape=shape,
        several=name in _SEVERAL,
        descends=bool(given.get("largest", given.get("descending", False))),
    )


def _with_one(shape: Sequence[int], dim: int) -> list[int]:
    return [1 if place == dim else size for place, size in enumerate(shape)]
