"""check-as-assertion is exact: the program refuses what eager refuses, or the shim does not apply."""

from __future__ import annotations

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
