"""check-as-assertion is exact: the program refuses what eager refuses, or the shim does not apply."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import exportdoctor.shims as sh
from caught_checks import CAUGHT, LEFT
from exportdoctor.shims import ExportCall, NotApplicable

ROWS = torch.arange(6.0).reshape(2, 3)


def _program(module: torch.nn.Module) -> Any:
    with sh.apply_shims([sh.find("check-as-assertion")], ExportCall(module=module.eval(), args=(ROWS,))) as call:
        return sh.export_program(call).module()


def _answer(module: Any, x: torch.Tensor) -> torch.Tensor | None:
    try:
        with torch.no_grad():  # a program that raises does not restore the mode that it changes
            return module(x)
    except (ValueError, RuntimeError, IndexError):
        return None


_PROGRAMS: dict[str, Any] = {}


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(sorted(LEFT)), low=st.integers(-3, 3), place=st.integers(0, 5))
def test_where_the_exception_leaves_the_model_the_program_refuses_the_same(name: str, low: int, place: int) -> None:
    rows = ROWS.clone()
    rows.view(-1)[place] = low
    program = _PROGRAMS.setdefault(name, None) or _program(LEFT[name]())
    _PROGRAMS[name] = program
    found, wanted = _answer(program, rows), _answer(LEFT[name](), rows)
    assert (found is None) == (wanted is None)
    assert found is None or torch.allclose(found, wanted)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUGHT)
def test_where_somebody_catches_it_there_is_no_program(name: str) -> None:
    unseen = name in ("iterating", "asking")  # their checks stay, and fail as they did
    refused: Any = pytest.raises(Exception, match=r"a check of sizes|data-dependent")
    with refused if unseen else pytest.raises(NotApplicable, match="may be caught"):
        _program(CAUGHT[name]())


_OFFSET = torch.zeros(())


def _remember(x: torch.Tensor) -> None:
    global _OFFSET
    _OFFSET = x.mean()


class Remembers(torch.nn.Module):
    """A function beside the class changes a global that the method with the check reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.min() < -9:
            raise ValueError("too low")
        _remember(x)
        return x + _OFFSET


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(-5, 5, width=32), min_size=6, max_size=6))
def test_globals_that_change_during_the_call_are_seen(values: list[float]) -> None:
    global _OFFSET
    program = _PROGRAMS.setdefault("globals", None) or _program(Remembers())
    _PROGRAMS["globals"] = program
    rows = torch.tensor(values).reshape(2, 3)
    torch.testing.assert_close(_answer(program, rows), rows + rows.mean())
    _OFFSET = torch.zeros(())


class Wide(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1)


class Checked(Wide):
    """A method that asks its base class, and so has a closure."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.max() > 9:
            raise ValueError("too high")
        return super().forward(x)


@pytest.mark.slow
def test_the_check_of_a_method_that_calls_its_base_class_is_asserted() -> None:
    program = _program(Checked())
    assert torch.equal(program(ROWS), ROWS.sum(1))
    with pytest.raises(RuntimeError, match="check of the inputs failed"):
        program(ROWS + 9)


class Compares(torch.nn.Module):
    """Refuses a number that is known at run time alone, by its comparison with another."""

    def __init__(self, sign: str, other: float) -> None:
        super().__init__()
        self.sign, self.other = sign, other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.to(torch.int64).sum().item()
        if self.sign == "==":
            if count == self.other * x.numel():
                raise ValueError("equal")
        elif self.sign == "<":
            if self.other * x.numel() < count:
                raise ValueError("more")
        elif count <= self.other * x.numel():
            raise ValueError("no more")
        return x + 1


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["==", "<", "<="])
@pytest.mark.parametrize("other", [0, 1, 0.25, 0.5, 2.0, -1.25])
def test_a_number_is_compared_as_in_eager_or_not_at_all(sign: str, other: float) -> None:
    """Beside a whole number as in eager; beside a float, whatever its value, the comparison stays and cannot export."""
    if isinstance(other, float):
        with pytest.raises(Exception, match="data-dependent"):
            _program(Compares(sign, other))
        return
    program, refused = _program(Compares(sign, other)), set()
    for low in range(-9, 14):
        rows = torch.zeros(2, 3)
        rows[0, 0] = low
        refused.add(_answer(Compares(sign, other), rows) is None)
        assert (_answer(program, rows) is None) == (_answer(Compares(sign, other), rows) is None)
    assert refused == {False, True}


def _require_finite(x: torch.Tensor) -> None:
    assert not (x.isnan() | x.isinf()).any(), "not finite"


class Ways(torch.nn.Module):
    """Checks as people write them; each way refuses its own rows."""

    low: torch.Tensor

    def __init__(self, way: str, strict: bool) -> None:
        super().__init__()
        self.way, self.strict = way, strict
        self.register_buffer("low", torch.tensor(-2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check = getattr(self, f"_{self.way}", None) or globals()[self.way]
        check(x)
        return x * 2

    def _negated(self, x: torch.Tensor) -> None:
        if not (x > -2).all():
            raise ValueError("low")

    def _of_a_name(self, x: torch.Tensor) -> None:
        bad = (x < -2).any()
        if bad:
            raise ValueError("low")

    def _asked_where_strict(self, x: torch.Tensor) -> None:
        if self.strict and (x < self.low).any():
            raise ValueError("low")

    def _either(self, x: torch.Tensor) -> None:
        if (x < self.low).any() or (x > 2).any() or self.way == "":
            raise ValueError("low or high")

    def _both(self, x: torch.Tensor) -> None:
        if (x < -1).any() and not (x > 1).any():
            raise ValueError("low, and nothing high")

    def _where_strict(self, x: torch.Tensor) -> None:
        if (x < -1).any() and self.strict:
            raise ValueError("low")

    def _unless_strict(self, x: torch.Tensor) -> None:
        if (x < -1).any() or self.strict:
            raise ValueError("low, or strict")

    def _asserted(self, x: torch.Tensor) -> None:
        assert (x > -2).all() and x.sum() < 4  # noqa: PT018

    def _asserted_in_the_graph(self, x: torch.Tensor) -> None:
        torch._assert((x > -2).all(), "low")


class Sides(torch.nn.Module):
    """Asks for one of the sides of `and` and `or`, and for what a function makes of `not`."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        if self.way == "sum":
            if (total and 3) + x[0, 0] > 4:
                raise ValueError("high")
        elif self.way == "bits":
            if ((total > 0) and x[0, 1]).to(torch.int64) & 1:
                raise ValueError("odd")
        elif isinstance(not total, bool) and x[0, 1] > 2:
            raise ValueError("high")
        return x


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sum", "bits", "kind"])
def test_what_is_more_than_a_truth_is_left_as_it_is(way: str) -> None:
    with pytest.raises(Exception, match="data-dependent"):
        _program(Sides(way))


_WAYS = sorted(name.removeprefix("_") for name in vars(Ways) if name.startswith("_") and name != "__init__")


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    way=st.sampled_from([name for name in _WAYS if not name.startswith("_")] + ["_require_finite"]),
    strict=st.booleans(),
    values=st.lists(st.sampled_from([-3.0, -2.0, -1.5, 0.0, 1.0, 1.5, 3.0, float("nan")]), min_size=6, max_size=6),
)
def test_a_check_refuses_the_same_however_it_is_written(way: str, strict: bool, values: list[float]) -> None:
    if (way, strict) == ("unless_strict", True):  # it refuses the example
        return
    rows, name = torch.tensor(values).reshape(2, 3), f"{way} {strict}"
    plain = strict is False and way == "asked_where_strict"
    if name not in _PROGRAMS:
        _PROGRAMS[name] = _program(Ways(way, strict)) if not plain else torch.export.export(Ways(way, strict), (ROWS,))
    program = _PROGRAMS[name].module() if plain else _PROGRAMS[name]
    found, wanted = _checked_answer(program, rows), _checked_answer(Ways(way, strict), rows)
    assert (found is None) == (wanted is None)
    assert found is None or torch.equal(found, wanted) or found.isnan().any()  # type: ignore[arg-type]


def _checked_answer(module: Any, x: torch.Tensor) -> torch.Tensor | None:
    with contextlib.suppress(AssertionError):
        return _answer(module, x)
    return None


class Guarded(torch.nn.Module):
    """The right side is for rows that the left one lets through: eager does not compute it for others."""

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        if (places < 3).all() and x[:, places].min() < 0:
            raise ValueError("negative")
        return x + places.sum()


@pytest.mark.slow
def test_a_right_side_that_may_refuse_values_is_not_computed_unasked() -> None:
    call = ExportCall(module=Guarded(), args=(ROWS, torch.tensor([0, 1])))
    Guarded()(ROWS, torch.tensor([7]))
    with (
        pytest.raises(Exception, match="data-dependent"),
        sh.apply_shims([sh.find("check-as-assertion")], call) as treated,
    ):
        sh.export_program(treated)


class Mixture(torch.nn.Module):
    """Parameters and values that torch.distributions checks."""

    def forward(self, mean: torch.Tensor, log_scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        which = torch.distributions.Categorical(logits=mean)
        each = torch.distributions.Normal(mean, log_scale.exp())
        return torch.distributions.MixtureSameFamily(which, each).log_prob(x)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3))
def test_what_distributions_refuse_the_program_refuses(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # dynamo turns it off for good
    generator = torch.Generator().manual_seed(0)
    sizes = [{0: torch.export.Dim.DYNAMIC}] * 3

    def rows(count: int) -> list[torch.Tensor]:
        return [torch.randn(*shape, generator=generator) for shape in ((count, 4), (count, 4), (count,))]

    call = ExportCall(module=Mixture(), args=tuple(rows(3)), dynamic_shapes=tuple(sizes))
    with sh.apply_shims([sh.find("check-as-assertion")], call) as treated:
        program = sh.export_program(treated).module()
    given = rows(5)
    torch.testing.assert_close(program(*given), Mixture()(*given))
    given[place][0] = float("nan")
    with pytest.raises(ValueError, match=r"invalid values|within the support"):
        Mixture()(*given)
    with pytest.raises(RuntimeError, match="check of the inputs failed"):
        program(*given)


@pytest.mark.slow
def test_what_distributions_check_is_theirs_again_afterwards() -> None:
    before = torch.distributions.Distribution.__init__.__code__
    with sh.apply_shims([sh.find("check-as-assertion")], ExportCall(module=Mixture(), args=(ROWS, ROWS, ROWS[0]))):
        assert torch.distributions.Distribution.__init__.__code__ is not before
    assert torch.distributions.Distribution.__init__.__code__ is before
