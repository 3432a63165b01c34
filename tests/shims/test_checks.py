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
    except (ValueError, RuntimeError):
        return None


_PROGRAMS: dict[str, Any] = {}


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


@pytest.mark.parametrize("name", CAUGHT)
def test_where_somebody_catches_it_there_is_no_program(name: str) -> None:
    with pytest.raises(NotApplicable, match="checks the sizes" if name in ("iterating", "asking") else "may be caught"):
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


@pytest.mark.parametrize("sign", ["==", "<", "<="])
@pytest.mark.parametrize("other", [0, 1, 0.25, 0.5, 2.0, -1.25])
def test_a_number_is_compared_as_in_eager_or_not_at_all(sign: str, other: float) -> None:
    program: Any = None
    with contextlib.nullcontext() if isinstance(other, int) else contextlib.suppress(Exception):
        program = _program(Compares(sign, other))
    for low in range(-9, 14) if program is not None else ():
        rows = torch.zeros(2, 3)
        rows[0, 0] = low
        assert (_answer(program, rows) is None) == (_answer(Compares(sign, other), rows) is None)
