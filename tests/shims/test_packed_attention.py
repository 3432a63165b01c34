"""block-diagonal-attention is exact: for all boundaries that eager takes, or it does not apply."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import exportdoctor.shims as sh
from exportdoctor.shims import ExportCall, NotApplicable
from packed_attention import KEPT, REFUSED, Segmented

_FREE = {0: torch.export.Dim.DYNAMIC}


def _row(boundaries: tuple[int, ...], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(length, 4, generator=generator) * 3, torch.tensor(boundaries)


@cache
def _module(name: str) -> Segmented:
    torch.manual_seed(0)
    return Segmented({**KEPT, **REFUSED}[name]).eval()


@cache
def _program(name: str, boundaries: tuple[int, ...] = (0, 3, 8, 10)) -> Any:
    """The cured program."""
    call = ExportCall(module=_module(name), args=_row(boundaries, boundaries[-1]), dynamic_shapes=(_FREE, _FREE))
    with sh.apply_shims([sh.find("block-diagonal-attention")], call) as given_call, torch.no_grad():
        return sh.export_program(given_call).module()


def _run(module: Any, inputs: Any) -> torch.Tensor | None:
    """What it answers; None where it refuses."""
    try:
        with torch.no_grad():
            return module(*inputs)
    except Exception:
        return None


def _check(name: str, boundaries: tuple[int, ...], length: int) -> None:
    inputs = _row(boundaries, length)
    wanted, found = _run(_module(name), inputs), _run(_program(name), inputs)
    if wanted is None:
        assert found is None or (boundaries[-1] - boundaries[0], min(boundaries)) == (length, boundaries[0])
        return
    if found is None:  # a value of a size that torch takes for two or more: refused, not wrong
        assert len(boundaries) <= 2
        assert name == "longest"
        return
    assert torch.allclose(found, wanted, atol=1e-5), (found - wanted).abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize(
    ("boundaries", "length"),
    [((0, 12, 12), 12), ((0, 0, 5), 5), ((2, 5, 12), 10), ((0, 7), 7), ((0, 1, 2, 3), 3), ((0, 5), 9), ((0, 9), 5),
     ((0, 6, 3, 8), 8)],
)  # fmt: skip
def test_any_boundaries_that_eager_takes_give_its_numbers(name: str, boundaries: Any, length: int) -> None:
    _check(name, boundaries, length)


class Distinct(torch.nn.Module):
    """Boundaries whose number only a run knows, as transformers 4 makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Segmented(KEPT["each"])

    def forward(self, rows: torch.Tensor, boundaries: torch.Tensor) -> Any:
        return self.attention(rows, torch.unique_consecutive(boundaries))


@pytest.mark.slow
def test_the_number_of_boundaries_may_be_known_to_a_run_only() -> None:
    module = Distinct().eval()
    call = ExportCall(module=module, args=_row((0, 3, 3, 8, 10), 10), dynamic_shapes=(_FREE, _FREE))
    with sh.apply_shims([sh.find("block-diagonal-attention")], call) as given_call, torch.no_grad():
        program = sh.export_program(given_call).module()
    for boundaries, length in [((0, 3, 8), 8), ((0, 7), 7), ((0, 0, 4, 5, 5, 9), 9)]:
        inputs = _row(boundaries, length)
        assert torch.allclose(program(*inputs), module(*inputs), atol=1e-5)
    assert _run(program, _row((0, 6, 3, 8), 8)) is None


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(KEPT)),
    first=st.integers(0, 4),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    more=st.sampled_from([0, 0, 0, 1, -1]),
)
def test_drawn_boundaries_give_the_numbers_of_eager(name: str, first: int, lengths: list[int], more: int) -> None:
    if sum(lengths) + more > 0:
        _check(name, tuple(accumulate(lengths, initial=first)), sum(lengths) + more)


@pytest.mark.slow
@pytest.mark.parametrize("boundaries", [(0, 3, 8, 10), (0, 10)], ids=["three segments", "one"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_could_differ_between_segments_is_refused(name: str, boundaries: tuple[int, ...]) -> None:
    with pytest.raises(NotApplicable):
        _program(name, boundaries)
