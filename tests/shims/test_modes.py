"""strict and no-grad are exact: what their programs would drop or decide makes them not applicable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import exportdoctor.shims as sh
from exportdoctor.shims import ExportCall, ExportOptions, NotApplicable
from scanning import scan_file
from shim_cases import Filling
from strict_state import HARMLESS, QUESTIONS, REFUSED, Asking, Counter, Third

ROWS = torch.arange(3.0) + 1
CONSTRUCTS = Path(__file__).parents[2] / "fixtures" / "constructs"


@pytest.mark.slow
@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_strict_refuses_state_and_assertions_that_somebody_catches(build: Callable[[], nn.Module]) -> None:
    call = ExportCall(module=build(), args=(ROWS,))
    with (
        pytest.raises(NotApplicable, match=r"keeps state|may be caught"),
        sh.apply_shims([sh.find("strict")], call) as to,
    ):
        sh.export_program(to)


@pytest.mark.parametrize("build", [Third, Counter], ids=lambda build: build.__name__)
def test_non_strict_refuses_a_module_that_counts(build: Callable[[], nn.Module]) -> None:
    call = ExportCall(module=build(), args=(ROWS,), options=ExportOptions(strict=True))
    with pytest.raises(NotApplicable, match="keeps state"), sh.apply_shims([sh.find("non-strict")], call):
        pass


@pytest.mark.parametrize("build", HARMLESS, ids=lambda build: build.__name__)
def test_strict_takes_what_a_program_keeps(build: Callable[[], nn.Module]) -> None:
    with sh.apply_shims([sh.find("strict")], ExportCall(module=build(), args=(ROWS,))) as call:
        program, eager = sh.export_program(call).module(), build()
    for _ in range(3):
        assert torch.equal(program(ROWS), eager(ROWS))


@pytest.mark.long
@pytest.mark.slow
def test_strict_traces_functions_of_numpy_which_read_the_values_of_a_tensor() -> None:
    (part,) = scan_file(CONSTRUCTS / "inputs_and_state.py", factory="numpy_functions", cure=True).parts
    assert part.prescription is not None
    assert part.prescription.proof is not None
    assert (part.prescription.shims, part.prescription.soundness) == (("strict",), "exact")
    assert part.prescription.proof.inputs_tried > 10


@pytest.mark.parametrize("place", range(len(QUESTIONS)))
def test_no_grad_refuses_a_forward_that_asks_whether_gradients_are_recorded(place: int) -> None:
    call = ExportCall(module=Asking(QUESTIONS[place]), args=(ROWS,))
    with pytest.raises(NotApplicable, match=r"strict_state\.py:"), sh.apply_shims([sh.find("no-grad")], call):
        pass


class Counted(Filling):
    """Keeps a number of its calls; the shim's own run is none of them."""

    count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x)


def test_what_a_shim_runs_leaves_no_trace_in_the_module() -> None:
    module = Counted()
    with sh.apply_shims([sh.find("no-grad")], ExportCall(module=module, args=(torch.randn(3, 4),))):
        assert module.count == 0
