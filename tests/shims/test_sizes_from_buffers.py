"""Lengths computed with buffers of one element: what a program does with them is what eager does, or it refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find, order_shims
from exportdoctor.shims.rules.numbers.ratios import Ratio, compute, truncate

SHIM = find("sizes-from-buffers")


class Convolution(nn.Module):
    """Its geometry is in buffers; `use` computes something with it."""

    def __init__(self, use: Callable[[Any, Tensor], Any], kernel: int = 7, stride: int = 4) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.tensor(kernel), persistent=False)
        self.register_buffer("stride", torch.tensor(stride), persistent=False)
        self.register_buffer("padding", torch.tensor(kernel - stride))
        self.register_buffer("groups", torch.tensor([2], dtype=torch.int32))
        self.use = use

    def forward(self, x: Tensor) -> Any:
        return self.use(self, x)


def frames(self: Any, x: Tensor) -> Tensor:
    return torch.ceil((x.shape[-1] - self.kernel + self.padding) / self.stride + 1).to(torch.int64) - 1


def extra(self: Any, x: Tensor) -> Tensor:
    return frames(self, x) * self.stride + self.kernel - self.padding - x.shape[-1]


def pads(self: Any, x: Tensor) -> Tensor:
    right = self.padding // 2
    left, right = self.padding - right, right + extra(self, x)
    if x.shape[-1] <= max(left, right):
        return x
    return F.pad(x, (left, right), "reflect").unfold(-1, int(self.kernel), int(self.stride)).sum(-1)


def counts(self: Any, x: Tensor) -> Tensor:
    return x.new_zeros(int(frames(self, x)) + 1, (x.shape[-1] % self.groups).item() + 2)


def crops(self: Any, x: Tensor) -> Tensor:
    half = torch.div(x.shape[-1], self.groups[0], rounding_mode="floor")
    low = torch.clamp(half - self.stride, min=0)
    return x[..., low : torch.maximum(half, self.kernel)] + int((x.shape[-1] / self.stride).float())


def compares(self: Any, x: Tensor) -> Tensor:
    half = x.shape[-1] / self.stride
    return x * 2 if half * 0.5 > 2.25 and (abs(-half) - half == 0) else -x


def asks(self: Any, x: Tensor) -> Tensor:
    if extra(self, x) * self.kernel:
        return F.pad(input=x, pad=(0, torch.clamp(extra(self, x), 0)))  # type: ignore[arg-type]
    return x


USES = (asks, pads, counts, crops, compares)


def call_of(module: nn.Module, length: int = 37) -> ExportCall:
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    return ExportCall(module=module.eval(), args=(torch.randn(3, length),), dynamic_shapes=shapes)


@cache
def program_of(module: nn.Module) -> Any:
    with apply_shims([SHIM], call_of(module)) as call:
        return export_program(call).module()


def answer(run: Any, x: Tensor) -> Any:
    """What it gives; None where it refuses."""
    try:
        return run(x)
    except (RuntimeError, AssertionError):
        return None


@pytest.mark.slow
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_a_program_computes_what_eager_does_at_other_lengths_and_batches(use: Any) -> None:
    module = Convolution(use)
    program = program_of(module)
    for batch, length in ((2, 35), (5, 38), (3, 39), (4, 101)):
        x = torch.randn(batch, length)
        torch.testing.assert_close(program(x), module(x), rtol=0, atol=0)
    assert module.get_buffer("stride").item() == 4


MODULES = {
    shape: Convolution(use, *shape) for use, shape in zip(USES, ((8, 6), (7, 2), (5, 3), (9, 8), (4, 1)), strict=True)
}


@pytest.mark.long
@pytest.mark.slow
@given(st.sampled_from(sorted(MODULES)), st.integers(2, 5), st.integers(2, 400))
@settings(max_examples=60, deadline=None)
def test_a_program_answers_as_eager_or_refuses(shape: tuple[int, int], batch: int, length: int) -> None:
    module, x = MODULES[shape], torch.randn(batch, length)
    found, expected = answer(program_of(module), x), answer(module, x)
    if found is not None:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def rest(self: Any, x: Tensor) -> Tensor:
    return x.new_zeros(int(extra(self, x)) + 9)


LONG = {stride: Convolution(rest, stride + 3, stride) for stride in (2, 3, 7, 320)}


@pytest.mark.slow
@given(st.sampled_from(sorted(LONG)), st.integers(2**21, 2**27))
@example(3, 2**24 + 2)
@example(3, 2**26 - 1)
@settings(max_examples=150, deadline=None)
def test_a_program_never_answers_where_float_arithmetic_rounds_otherwise(stride: int, length: int) -> None:
    module, x = LONG[stride], torch.zeros(1).expand(2, length)
    found, expected = answer(program_of(module), x), answer(module, x)
    if found is None:
        assert 2 * length + stride >= 2**24, "a length below the bound is refused"
    else:
        assert expected is not None
        assert found.shape == expected.shape


def test_a_length_that_float_arithmetic_rounds_is_refused_and_the_condition_says_so() -> None:
    program, module = program_of(LONG[3]), LONG[3]
    refused = [
        length for length in range(2**25, 2**25 + 9) if answer(program, torch.zeros(1).expand(2, length)) is None
    ]
    assert refused
    assert answer(module, torch.zeros(1).expand(2, refused[0])) is not None
    assert "rounds" in SHIM.precondition


NUMBERS = st.integers(-(2**20), 2**20)
STEPS = st.sampled_from(
    ("add", "sub", "mul", "div", "__rsub__", "floor_divide", "remainder", "maximum", "minimum", "clamp",
     "ceil", "floor", "trunc", "neg", "abs", "long", "float")
)  # fmt: skip
EXACT = 2**22


@pytest.mark.slow
@given(NUMBERS, st.lists(st.tuples(STEPS, st.integers(-9, 9)), max_size=6))
@settings(max_examples=400, deadline=None)
def test_exact_arithmetic_of_whole_results_is_torchs(start: int, steps: list[tuple[str, int]]) -> None:
    tensor, ratio = torch.tensor(start, dtype=torch.int64), Ratio(start)
    wide = tensor  # float64 in place of float32, so that rounding is no difference here
    for name, other in steps:
        if name in {"long", "float"}:
            wide, made = (wide.long(), truncate(ratio)) if name == "long" else (wide.double(), ratio)
        else:
            given = () if name in {"ceil", "floor", "trunc", "neg", "abs"} else (other,)
            made = compute(name, (ratio, *given), {})
            if made is None:
                assert other == 0
                assert name in {"div", "floor_divide", "remainder"}
                return
            operand = torch.tensor(
                other, dtype=torch.float64 if wide.is_floating_point() or name == "div" else torch.int64
            )
            method = getattr(torch.Tensor if name.startswith("__") else torch, name)
            wide = method(wide.double() if name == "div" else wide, *(operand for _ in given))
        ratio = made
        if ratio.bottom > 1 or abs(ratio.top) > EXACT:
            return
    assert wide.item() == ratio.top


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ceil", "floor", "trunc"])
@given(a=st.integers(0, 2**24 - 1), b=st.integers(1, 2**12))
@example(a=2**24 - 1, b=3)
@settings(max_examples=400, deadline=None)
def test_a_rounded_quotient_below_two_to_the_24th_is_exact(name: str, a: int, b: int) -> None:
    exact = compute(name, (compute("div", (Ratio(a), b), {}),), {})
    assert getattr(torch, name)(torch.tensor(a) / torch.tensor(b)).item() == exact.top


def test_a_program_whose_buffers_are_changed_refuses_its_inputs() -> None:
    program = program_of(Convolution(counts))
    program(torch.randn(2, 37))
    program.get_buffer("stride").add_(1)
    with pytest.raises(RuntimeError, match=r"follows from .*stride.* is not that at the export"):
        program(torch.randn(2, 37))


def reads_a_buffer_alone(self: Any, x: Tensor) -> Tensor:
    return x * 2 if self.stride > self.groups else x


def reads_data(self: Any, x: Tensor) -> Tensor:
    return x if (x.sum() * self.stride + x.shape[-1]) > 0 else -x


def takes_a_root(self: Any, x: Tensor) -> Tensor:
    return x if torch.sqrt(x.shape[-1] / self.stride) > 2 else -x


def changes_its_state(self: Any, x: Tensor) -> Tensor:
    half = bool(x.shape[-1] / self.stride > 3)
    self.stride.add_(1)
    return x if half else -x


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (reads_a_buffer_alone, "no number"),
        (reads_data, "no number"),
        (takes_a_root, "no number"),
        (changes_its_state, "changes stride"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_has_other_sources_or_is_not_known_exactly_is_left_as_it_is(use: Any, told: str) -> None:
    module = Convolution(use)
    before = {name: one.clone() for name, one in module.named_buffers()}
    with pytest.raises(NotApplicable, match=told), apply_shims([SHIM], call_of(module)):
        pass
    torch.testing.assert_close(dict(module.named_buffers()), before)


def test_with_state_as_constants_each_answers_what_it_knows() -> None:
    def both(self: Any, x: Tensor) -> Tensor:
        return counts(self, x) if self.groups[0] < 5 else x

    module = Convolution(both)
    with apply_shims(order_shims([find("state-as-constants"), SHIM]), call_of(module)) as call:
        program = export_program(call).module()
    x = torch.randn(2, 90)
    assert program(x).shape == module(x).shape
