"""Programs that take and return objects: with all that an object holds, or the shim does not apply."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import exportdoctor.shims as sh
from drawn_objects import DRAWN, Drawn, Uses, agree, eager
from exportdoctor.shims import ExportCall, NotApplicable
from shim_cases import Store, after_prompt, sliding_mistral

_FREE = {0: torch.export.Dim.DYNAMIC}
OBJECTS, FIXED_OBJECTS = "register-dataclass-pytree", "register-dataclass-pytree-fixed"
CACHES, FIXED_CACHES = "register-cache-pytree", "register-cache-pytree-fixed"


def _applied(shim: str, call: ExportCall) -> Any:
    return sh.apply_shims([sh.find(shim)], call)


@dataclass
class Centred:
    """Its mean is a field that is no argument, its spread no field, its shift a class's attribute."""

    rows: Tensor
    mean: Tensor = field(init=False)

    shift = 0.5

    def __post_init__(self) -> None:
        self.mean = self.rows.mean(0)
        self.spread = self.rows.std(0)
        self.shift = self.rows.max()  # type: ignore[assignment]


class TakesCentred(nn.Module):
    def forward(self, rows: Centred) -> Centred:
        return Centred((rows.rows - rows.mean) / rows.spread + rows.shift)


def test_what_post_init_computed_goes_in_and_out() -> None:
    torch.manual_seed(0)
    example, other = Centred(torch.randn(5, 3)), Centred(torch.randn(8, 3) * 4)
    shapes = {"rows": [_FREE, None, None, None]}
    with _applied(OBJECTS, ExportCall(module=TakesCentred(), args=(example,), dynamic_shapes=shapes)) as given:
        program = sh.export_program(given).module()
        for rows in (example, other):
            found, wanted = program(rows), TakesCentred()(rows)
            assert vars(found).keys() == vars(wanted).keys()
            assert all(torch.allclose(vars(found)[name], vars(wanted)[name]) for name in vars(wanted))


@dataclass
class Scaled:
    rows: Tensor
    scale: float = 2.0


class TakesScaled(nn.Module):
    def forward(self, rows: Scaled) -> Tensor:
        return rows.rows * rows.scale


def test_an_object_with_a_number_is_specialised_and_another_number_refused() -> None:
    call = ExportCall(module=TakesScaled(), args=(Scaled(torch.ones(3)),))
    with pytest.raises(NotApplicable, match="number"), _applied(OBJECTS, call):
        pass
    with _applied(FIXED_OBJECTS, call) as given:
        program = sh.export_program(given).module()
        assert torch.equal(program(Scaled(torch.ones(3))), torch.full((3,), 2.0))
        with pytest.raises((ValueError, RuntimeError, AssertionError)):
            program(Scaled(torch.ones(3), 3.0))


class TakesTwo(nn.Module):
    def forward(self, one: Store, other: Store) -> Tensor:
        return one.rows + other.rows * getattr(other, "weight", 1)


def test_two_objects_of_one_class_keep_their_own_attributes() -> None:
    def stores() -> tuple[Store, Store]:
        one, other = Store(torch.ones(3), 1), Store(torch.ones(3), 1)
        other.weight = torch.full((3,), 5.0)  # type: ignore[attr-defined]
        return one, other

    with _applied(FIXED_OBJECTS, ExportCall(module=TakesTwo(), args=stores())) as given:
        program = sh.export_program(given).module()
        assert torch.equal(program(*stores()), torch.full((3,), 6.0))
        with pytest.raises((ValueError, RuntimeError, AssertionError)):
            program(*reversed(stores()))


class Keeps(nn.Module):
    """Adds to the store that it is given, and returns something else."""

    def forward(self, x: Tensor, store: Any) -> Tensor:
        store.rows = torch.cat([store.rows, x])
        return store.rows.sum(0)


@dataclass
class Rows:
    rows: Tensor


def test_an_object_that_is_changed_and_not_returned_is_refused() -> None:
    call = ExportCall(module=Keeps(), args=(torch.randn(1, 3), Rows(torch.randn(2, 3))))
    with pytest.raises(NotApplicable, match="does not return"), _applied(OBJECTS, call):
        pass


class TallyCache:
    """It says how many rows it has, as caches of one's own do."""

    def __init__(self, rows: Tensor, length: int) -> None:
        self.rows, self.length = rows, length

    def update(self, rows: Tensor) -> None:
        self.rows = torch.cat([self.rows, rows])
        self.length += len(rows)


class Tallies(nn.Module):
    def forward(self, x: Tensor, cache: TallyCache) -> Any:
        cache.update(x)
        return x + cache.length, cache


class Looks(nn.Module):
    def forward(self, x: Tensor, cache: TallyCache) -> Any:
        return x + cache.length


@pytest.mark.parametrize("kind", [Tallies, Looks])
def test_a_number_in_a_cache_of_ones_own_is_not_fixed_by_an_exact_shim(kind: Callable[[], nn.Module]) -> None:
    call = ExportCall(module=kind(), args=(torch.ones(3, 2), TallyCache(torch.ones(2, 2), 2)))
    with pytest.raises(NotApplicable, match="number of the TallyCache"), _applied("hf.cache-pytrees", call):
        pass
    with _applied(FIXED_OBJECTS, call) as changed:
        sh.export_program(changed)


class Continues(nn.Module):
    def __init__(self, *, returns: bool) -> None:
        super().__init__()
        self.model = sliding_mistral()
        self.returns = returns

    def forward(self, input_ids: Tensor, past_key_values: Any) -> Any:
        found = self.model(input_ids, past_key_values=past_key_values)
        return (found.logits, found.past_key_values) if self.returns else found.logits


@pytest.mark.slow
def test_a_cache_that_is_changed_and_not_returned_is_refused() -> None:
    cache, word = copy.deepcopy(after_prompt(5))
    for returns in (False, True):
        call = ExportCall(module=Continues(returns=returns).eval(), args=(word, cache))
        if returns:
            with _applied(FIXED_CACHES, call):
                continue
        with pytest.raises(NotApplicable, match="does not return"), _applied(FIXED_CACHES, call):
            pass


def test_a_count_in_a_cache_of_transformers_is_not_fixed_by_an_exact_shim() -> None:
    cache, word = copy.deepcopy(after_prompt(5))
    call = ExportCall(module=Continues(returns=True).eval(), args=(word, cache))
    with pytest.raises(NotApplicable, match="number of the"), _applied("hf.cache-pytrees", call):
        pass


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("length", [7, *(pytest.param(length, marks=pytest.mark.night) for length in (4, 8, 12, 30))])
def test_a_sliding_window_knows_where_it_is(length: int) -> None:
    """Windows of 8: the words chosen are those of eager, within the window and beyond it."""
    model = Continues(returns=True).eval()
    cache, word = copy.deepcopy(after_prompt(length))
    call = ExportCall(module=model, args=(word, cache))
    with pytest.raises(NotApplicable, match="counts"), _applied(CACHES, call):
        pass
    with _applied(FIXED_CACHES, call) as given, torch.no_grad():
        program = sh.export_program(given).module()
        for seed in (0, 1):
            cache, word = copy.deepcopy(after_prompt(length, seed))
            (logits, found), (wanted, kept) = program(word, copy.deepcopy(cache)), model(word, cache)
            assert torch.allclose(logits, wanted, atol=1e-5)
            assert logits.argmax() == wanted.argmax()
            for mine, its in zip(found.layers, kept.layers, strict=True):
                assert type(mine) is type(its)
                assert (mine.cumulative_length, mine.sliding_window) == (its.cumulative_length, its.sliding_window)
                assert torch.allclose(mine.keys, its.keys, atol=1e-5)
            follow = torch.tensor([[3]])
            assert torch.allclose(model(follow, found)[0], model(follow, kept)[0], atol=1e-5)
        other, word = copy.deepcopy(after_prompt(length + 1))
        with pytest.raises((ValueError, RuntimeError, AssertionError)):
            program(word, other)


def _check_drawn(drawn: Drawn) -> None:
    """Exact: eager's answers and, unless the object comes back, eager's changes, for other values of everything.

    Specialised: the same, or a refusal where a number is another.
    """
    for shim in (OBJECTS, FIXED_OBJECTS):
        try:
            with _applied(shim, ExportCall(module=Uses(drawn), args=drawn.inputs(0))) as call:
                program = sh.export_program(call).module()
                for seed, number in ((0, 2), (1, 2), (2, 5)):
                    x, held = drawn.inputs(seed, number=number)
                    wanted, after = eager(drawn, (x, held))
                    try:
                        found = program(x, held)
                    except (ValueError, RuntimeError, AssertionError):
                        assert shim == FIXED_OBJECTS
                        assert number != 2
                        continue
                    assert agree(found, wanted)
                    assert drawn.returned or agree(held, after)
        except NotApplicable:
            continue


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(drawn=DRAWN)
def test_drawn_objects_come_and_go_as_in_eager(drawn: Drawn) -> None:
    _check_drawn(drawn)


@pytest.mark.night
@settings(max_examples=500, deadline=None)
@given(drawn=DRAWN)
def test_many_drawn_objects_come_and_go_as_in_eager(drawn: Drawn) -> None:
    _check_drawn(drawn)
