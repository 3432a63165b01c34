"""block-diagonal-attention is exact: for all boundaries that eager takes, or it does not apply."""

from __future__ import annotations

import math
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
@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(KEPT)),
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
    row=st.integers(0, 9),
    column=st.integers(0, 3),
)
def test_what_is_not_finite_may_spread_as_the_condition_says_and_changes_no_number(
    name: str, value: float, row: int, column: int
) -> None:
    assert "finite" in sh.find("block-diagonal-attention").precondition
    rows, boundaries = _row((0, 3, 8, 10), 10)
    rows[row, column] = value
    with torch.no_grad():
        wanted, found = _module(name)(rows, boundaries), _program(name)(rows, boundaries)
    spread = found.isnan() & ~wanted.isnan()
    assert torch.allclose(found[~spread], wanted[~spread], atol=1e-5, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("boundaries", [(0, 3, 8, 10), (0, 10)], ids=["three segments", "one"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_could_differ_between_segments_is_refused(name: str, boundaries: tuple[int, ...]) -> None:
    with pytest.raises(NotApplicable):
        _program(name, boundaries)


class Own(torch.nn.Module):
    """A vision attention whose attention function is the user's."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.qkv, self.function = torch.nn.Linear(8, 24), function

    def forward(self, rows: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        states = self.qkv(rows).reshape(-1, 3, 2, 4).permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        lengths = cu_seqlens[1:] - cu_seqlens[:-1]
        splits = [torch.split(state, lengths.tolist(), dim=2) for state in states]
        parts = [eager_attention_forward(self, q, k, v, attention_mask=None)[0] for q, k, v in zip(*splits)]
        return torch.cat(parts, dim=1).flatten(2)


def eager_attention_forward(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **kwargs: Any
) -> Any:
    return module.function(query, key, value, attention_mask)


def _repeat(states: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, rows, width = states.shape
    states = states[:, :, None, :, :].expand(batch, heads, times, rows, width)
    return states.reshape(batch, heads * times, rows, width)


def copied(query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
    """As transformers' models have it."""
    key, value = _repeat(key, 1), _repeat(value, 1)
    weights = torch.matmul(query, key.transpose(2, 3)) * 0.5
    if attention_mask is not None:
        causal_mask = attention_mask[:, :, :, : key.shape[-2]]
        weights = weights + causal_mask
    weights = torch.nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = torch.nn.functional.dropout(weights, p=0.1, training=False)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def in_place(query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
    scores = torch.tanh(query @ key.mT / query.shape[-1] ** 0.5) * 20
    if attention_mask is not None:
        scores += attention_mask
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def fused(query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
    made = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=0.3)
    return made.transpose(1, 2), None


def local(query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
    """Sees 64 rows each way in a segment that is longer."""
    if attention_mask is None and query.shape[-2] > 64:
        places = torch.arange(query.shape[-2])
        attention_mask = torch.where((places[:, None] - places).abs() > 64, float("-inf"), 0.0)
    return copied(query, key, value, attention_mask)


def scaled(query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
    """Scales by the length of a segment that is longer than most."""
    return copied(query * math.log(max(key.shape[-2], 8)), key, value, attention_mask)


def first_keys(query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
    mask = None if attention_mask is None else attention_mask[..., :64]
    return in_place(query, key[:, :, :64], value[:, :, :64], mask)


def by_count(query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
    return in_place(query * 2 if query.numel() > 4000 else query, key, value, attention_mask)


def deaf_by_place(query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
    """Without a mask, near rows count more."""
    if attention_mask is None:
        places = torch.arange(query.shape[-2])
        attention_mask = -((places[:, None] - places).abs() - 8).clamp(min=0) * 1.0
    return copied(query, key, value, attention_mask)


def own_softmax(query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
    """A large score turns the attention off, which no drawn number shows."""
    scores = query @ key.mT if attention_mask is None else query @ key.mT + attention_mask
    return (torch.where(scores.amax() > 1e6, scores * 0, scores).softmax(-1) @ value).transpose(1, 2), None


def _own_call(function: Any) -> ExportCall:
    torch.manual_seed(0)
    args = (torch.randn(7, 8), torch.tensor([0, 3, 7]))
    return ExportCall(module=Own(function).eval(), args=args, dynamic_shapes=(_FREE, _FREE))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("function", [copied, in_place, fused])
def test_an_attention_function_of_the_user_that_does_the_same_for_any_number_of_rows_is_kept(function: Any) -> None:
    call = _own_call(function)
    with sh.apply_shims([sh.find("block-diagonal-attention")], call) as given_call, torch.no_grad():
        program = sh.export_program(given_call).module()
        for boundaries in [(0, 3, 7), (0, 100, 101, 120), (0, 0, 5)]:
            inputs = torch.randn(boundaries[-1], 8), torch.tensor(boundaries)
            assert torch.allclose(program(*inputs), call.module(*inputs), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("function", [local, scaled, first_keys, by_count, deaf_by_place, own_softmax])
def test_an_attention_function_that_could_tell_long_segments_from_short_ones_is_refused(function: Any) -> None:
    with (
        pytest.raises(NotApplicable),
        sh.apply_shims([sh.find("block-diagonal-attention")], _own_call(function)) as call,
    ):
        sh.export_program(call)
