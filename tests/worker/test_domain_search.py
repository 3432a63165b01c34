"""What `domain` says of random programs and random relations between sizes, beside trying every size."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from exportdoctor.core.records.size_domain import SizeAxis, SizeDomain
from exportdoctor.report.wording.size_domains import axis_rows, sizes_in_words
from exportdoctor.shims import call_for_part, export_program
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.built import Inputs
from exportdoctor.worker.describe.guard_origin import record_guards
from exportdoctor.worker.domain.linked_axes import join_linked
from exportdoctor.worker.domain.part_search import make_search
from exportdoctor.worker.domain.size_axes import Axis, sizes_of_axes
from exportdoctor.worker.domain.size_rules import describe_sizes, ends_by_runs, takes
from exportdoctor.worker.domain.size_trials import DomainSearch
from exportdoctor.worker.domain.sized_inputs import Place
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.masked_positions import ignores_zeros

pytestmark = pytest.mark.slow

_EVERY = 60


def _size_of(kind: str, one: int, other: int, factor: int, more: int, sizes: list[int]) -> int:
    if kind == "linear":
        return factor * sizes[one] + more
    return sizes[one] + sizes[other] if kind == "sum" else sizes[one] * sizes[other]


def _holds(make: Callable[[list[int]], int], place: int, sizes: list[int]) -> bool:
    return sizes[place] == make(sizes)


# --- relations between sizes, without a program


Ties = dict[str, tuple[frozenset[int], Callable[[list[int]], bool]]]
"""Relations by name: the sizes that each is about, and whether all sizes hold it."""


@st.composite
def relations(draw: st.DrawFn) -> tuple[list[int], Ties]:
    """Sizes of an example, and what ties each one after the first to earlier ones, up to third powers of the first."""
    sizes, degrees = [draw(st.integers(2, 6))], [1]
    found: Ties = {}
    for place in range(1, draw(st.integers(2, 5))):
        kind = draw(st.sampled_from(["linear", "sum", "product"] if place > 1 else ["linear"]))
        one, other = draw(st.integers(0, place - 1)), draw(st.integers(0, place - 1))
        factor, more = draw(st.integers(1, 3)), draw(st.integers(0, 3))
        if kind == "product" and (sizes[one] * sizes[other] > 60 or degrees[one] + degrees[other] > 3):
            kind = "sum"
        made = partial(_size_of, kind, one, other, factor, more)
        sizes.append(made(sizes))
        degrees.append(degrees[one] + degrees[other] if kind == "product" else max(degrees[one], degrees[other]))
        about = {one, place} if kind == "linear" else {one, other, place}
        found[f"{kind} {place}"] = frozenset(about), partial(_holds, made, place)
    return sizes, found


@pytest.mark.long
@given(relations())
@settings(max_examples=150, deadline=None)
def test_of_sizes_that_must_change_together_one_leads_and_the_others_follow_at_every_size(
    drawn: tuple[list[int], Ties],
) -> None:
    example, ties = drawn

    def find_violated(sizes: Mapping[Place, int]) -> dict[str, frozenset[Place]]:
        all_sizes = [sizes.get((place, 0), size) for place, size in enumerate(example)]
        return {
            text: frozenset((place, 0) for place in about) for text, (about, holds) in ties.items()
            if not holds(all_sizes)
        }  # fmt: skip

    def fact_of(axis: Axis) -> SizeAxis:
        taken = [size for size in range(_EVERY) if not find_violated(sizes_of_axes({axis.name: size}, axes))]
        return describe_sizes(SizeAxis(name=axis.name, example=axis.example, until=_EVERY), taken, None)

    axes = [
        Axis(name=f"n{place}", example=size, rules={(place, 0): lambda size: size})
        for place, size in enumerate(example)
    ]
    facts = [fact_of(axis) for axis in axes]
    join_linked(axes, facts, find_violated, fact_of)
    assert [axis.name for axis in axes] == [fact.name for fact in facts]
    for axis, fact in zip(axes, facts, strict=True):
        assert fact == fact_of(axis)
        assert fact.only != (fact.example,), f"{axis.name} is still at the example's size only"
    assert {place for axis in axes for place in axis.rules} == {(place, 0) for place in range(len(example))}


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 200), st.integers(1, 4))
def test_ends_that_only_runs_show_are_where_they_are(lowest: int, steps: int, more: int, step: int) -> None:
    example, highest = lowest + step * steps, lowest + step * (steps + more)
    fact = SizeAxis(name="n", example=example, lowest=lowest % step, step=step, until=130)
    found = ends_by_runs(fact, lambda size: "answers" if lowest <= size <= highest else "refuses")
    assert (found.lowest, found.highest) == (lowest, highest)
    assert sizes_in_words(found).endswith("more)")


# --- programs


def _rows(take: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, *_: take(x)


def _pad_to(x: torch.Tensor, unit: int) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % unit))


_TABLE = torch.randn(23, 4)
_STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "x[:-2]": _rows(lambda x: x[:-2]),
    "x[-5:]": _rows(lambda x: x[-5:]),
    "x[1::2]": _rows(lambda x: x[1::2]),
    "half": _rows(lambda x: x[: x.shape[0] // 2]),
    "halves": _rows(lambda x: x[: x.shape[0] // 2] + x[-(x.shape[0] // 2) :]),
    "pad": _rows(lambda x: _pad_to(x, 4)),
    "windows": _rows(lambda x: _pad_to(x, 3).view(-1, 3, 4).mean(1)),
    "pairs": _rows(lambda x: x.view(-1, 2, 4).sum(1)),
    "unfold": _rows(lambda x: x.unfold(0, 3, 2).sum(-1)),
    "chunks": _rows(lambda x: torch.cat([one * at for at, one in enumerate(x.chunk(3))])),
    "split": _rows(lambda x: x.split([x.shape[0] - 2, 2])[0]),
    "lookup": _rows(lambda x: x + torch.nn.functional.embedding(torch.arange(x.shape[0]), _TABLE)),
    "table": _rows(lambda x: x + _TABLE[: x.shape[0]]),
    "mean": _rows(lambda x: x - x.sum(0) / x.shape[0]),
    "last": _rows(lambda x: x + x[-1]),
    "most": _rows(lambda x: x[: min(x.shape[0], 9)]),
    "branch": _rows(lambda x: x * 2 if x.shape[0] > 3 else x + 1),
    "even": _rows(lambda x: x * 2 if x.shape[0] % 2 == 0 else x + 1),
    "roll": _rows(lambda x: x.roll(x.shape[0] // 3, 0)),
    "positive": _rows(lambda x: x[torch.nonzero(x[:, 0] > 0)[:, 0]].sum(0) + x),
    "x + y": lambda x, y, g: x + y if x.shape == y.shape else torch.cat([x, y]),
    "cat": lambda x, y, g: torch.cat([x, y]),
    "x * sum": lambda x, y, g: x * y.sum(0),
    "y rows": lambda x, y, g: x[: y.shape[0]] + y,
    "grid": lambda x, y, g: x.view(g.shape[0], -1, 4).sum(1),
    "grid of 2": lambda x, y, g: x.view(g.shape[0], 2, 4).sum(1) + g,
    "twice g": lambda x, y, g: x + g.repeat(2, 1),
}


class Steps(torch.nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, x: torch.Tensor, y: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = _STEPS[name](x, y, g)
        return x


def _searched(names: list[str], sizes: tuple[int, int, int]) -> tuple[DomainSearch, SizeDomain] | None:
    """The domain of a program of these steps; None if eager or torch.export refuses the example."""
    args = tuple(torch.randn(size, 4) for size in sizes)
    module = Steps(names)
    shapes = tuple({0: torch.export.Dim.AUTO} for _ in args)
    part = BuiltPart(
        name="default", title="", module=module, prefix="", args=args, kwargs={}, dynamic_shapes=shapes,
    )  # fmt: skip
    call = call_for_part(part)
    with record_guards() as log:
        try:
            module(*args)
            program = export_program(call)
        except Exception:
            return None
    search = make_search(part, call, program, log)
    search.plan()
    search.ask_eager(InputSet(title="", kind="example", calls=(), results=()))
    return search, search.finish()


class Attends(nn.Module):
    """Rows by what of them is seen. Those of which nothing is seen get what another kernel may give otherwise."""

    def __init__(self, unseen: float) -> None:
        super().__init__()
        self.unseen = unseen

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen = mask[..., None].to(x.dtype)
        mean = (x * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
        return x + torch.where(mask.any(1)[:, None, None], mean, self.unseen)


def test_a_size_at_which_everything_is_masked_is_not_called_right() -> None:
    """Nothing is compared there: one row with its flags exchanged."""
    rows = {0: torch.export.Dim("rows")}
    args = (torch.randn(3, 5, 2), torch.ones(3, 5, dtype=torch.bool))
    part = BuiltPart(
        name="default",
        title="",
        module=Attends(0.0),
        prefix="",
        args=args,
        kwargs={},
        dynamic_shapes=(rows, rows),
        axes={"rows": ("x[0]", "mask[0]")},
    )
    call = call_for_part(part)
    assert ignores_zeros(part.module, (args, {}), "[0][1]")
    search = make_search(part, call, export_program(call), None)
    search.eager = Attends(1.0)
    search.plan()
    search.ask_eager(InputSet(title="", kind="example", calls=(), results=(), mask_path="[0][1]"))
    domain = search.finish()
    assert {trial.inputs for trial in domain.trials} >= {"rows 1", "rows 4"}
    assert not any("exchanged" in trial.inputs for trial in domain.trials)
    assert any("rows 1, zeros and ones exchanged: outputs at masked positions" in note for note in domain.notes)


def _answer(run: Callable[[Inputs], Any], inputs: Inputs) -> torch.Tensor | None:
    try:
        made: torch.Tensor = run(inputs)
    except Exception:
        return None
    return made


def _false_statements(search: DomainSearch, domain: SizeDomain) -> list[str]:
    """What a run at each size up to 60 contradicts."""
    found = []
    eager = search.eager
    assert eager is not None
    for axis, fact in zip(search.axes, domain.axes, strict=True):
        for size in range(_EVERY) if not axis.fixed else ():
            inputs = search.inputs.resize(sizes_of_axes({axis.name: size}, search.axes))
            program = _answer(search.stages[0].run, inputs)
            expected = _answer(lambda given: eager(*given[0], **given[1]), inputs)
            said = takes(fact, size) and size not in fact.refused
            if said != (program is not None):
                found.append(f"{axis.name} {size}: said {said}, {axis_rows(domain)}")
            if program is not None and expected is not None and size not in fact.wrong:
                same = program.shape == expected.shape and torch.allclose(program, expected, 1e-4, 1e-5, equal_nan=True)
                found += [] if same else [f"{axis.name} {size}: other numbers, which is not said"]
    return found


def _search(seed: int) -> bool:
    """Whether a program was drawn; asserts that nothing false is said of it."""
    chance = random.Random(seed)
    names = chance.choices([*_STEPS], k=chance.randint(1, 4))
    sizes = (chance.randint(4, 14), chance.randint(2, 9), chance.randint(2, 5))
    torch.manual_seed(seed)
    with torch.no_grad():
        made = _searched(names, sizes)
        if made is not None:
            assert _false_statements(*made) == [], (names, sizes)
    return made is not None


@pytest.mark.long
def test_nothing_false_is_said_of_programs_that_are_drawn() -> None:
    assert sum(_search(seed) for seed in range(14)) >= 4


@pytest.mark.night
@pytest.mark.parametrize("first", range(100, 1300, 100))
def test_nothing_false_is_said_of_many_programs_that_are_drawn(first: int) -> None:
    assert sum(_search(seed) for seed in range(first, first + 100)) >= 30
