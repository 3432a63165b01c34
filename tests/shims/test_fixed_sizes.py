"""Shims for single functions: programs with dynamic sizes say nothing false, and stand-ins compute the same."""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.own.float_minus_integers import subtract_promoted
from exportdoctor.shims.own.max_pool_1d import pool_as_2d
from exportdoctor.shims.rules.loops.counted_loops import steps_of
from exportdoctor.shims.rules.numbers.tensor_lengths import length_of


class Windows(nn.Module):
    """Sums over windows, which need not join; `start` and `step` may be sizes as well."""

    def __init__(self, start: int, step: int, width: int) -> None:
        super().__init__()
        self.start, self.step, self.width = start, step, width

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        begin = rows // 3 if self.start < 0 else self.start
        step = rows // -self.step if self.step < 0 else self.step
        sums = [x[first : min(rows, first + self.width)].sum(0) for first in range(begin, rows, step)]
        return torch.stack([x.sum(0), *sums])


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "step"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, -1), (5, -2), (6, -4)])
def test_a_program_with_counted_loops_is_eagers_or_refuses(seed: int, step: int) -> None:
    draw = random.Random(seed)
    module = Windows(draw.choice([-1, 0, 1, 2]), step or draw.randint(2, 9), draw.randint(2, 9))
    call = ExportCall(module=module, args=(torch.randn(draw.randint(9, 14), 2),), dynamic_shapes=({0: Dim.DYNAMIC},))
    with apply_shims([find("loops-by-count")], call) as changed:
        program = export_program(changed).module()
    agreed = 0
    for rows in range(2, 30):
        x = torch.randn(rows, 2)
        try:
            found = program(x)
        except (AssertionError, RuntimeError):  # a guard of the program
            continue
        torch.testing.assert_close(found, module(x))
        agreed += 1
    assert agreed


@pytest.mark.parametrize(
    "given",
    [(0, 7, 2), (7, 0, -2), (3, 3, 1), (5, 2, 3), (torch.tensor(250, dtype=torch.uint8), 300, 10), (True, 5, 2)],
)
def test_a_loop_over_numbers_is_as_it_was(given: tuple[int, int, int]) -> None:
    assert steps_of(*given) == range(*given)


def test_the_pool_is_torchs_with_any_arguments() -> None:
    draw = random.Random(0)
    for _ in range(60):
        size = draw.randint(1, 5)
        given: dict[str, Any] = {"padding": draw.randint(0, size // 2), "dilation": draw.randint(1, 2)}
        given |= {"kernel_size": draw.choice([size, (size,), [size]]), "stride": draw.choice([None, 1, 2, [3]])}
        given["ceil_mode"] = draw.random() < 0.5
        dtype = draw.choice([torch.float32, torch.float64])
        x = torch.randn(*draw.choice([(3,), (2, 3)]), draw.randint(10, 20), dtype=dtype)
        x[..., draw.randrange(10)] = draw.choice([float("nan"), float("inf"), -float("inf")])
        torch.testing.assert_close(pool_as_2d(x, **given), torch.max_pool1d(x, **given), equal_nan=True, rtol=0, atol=0)


def test_the_length_of_anything_but_a_tensor_is_as_it_was() -> None:
    values: list[Any] = [[], (1, 2), {"a": 1}, "abc", range(4), torch.ones(3, 2)]
    for value in values:
        assert length_of(value) == len(value)
    with pytest.raises(TypeError, match="0-d tensor"):
        length_of(torch.tensor(1.0))
    with pytest.raises(TypeError, match="has no len"):
        length_of(3)


ASKING = (
    "type(rows) is int",
    "[one for one in map(lambda one: type(rows) is int, 'a') if one]",
)
NOT_ASKING = (
    "isinstance(rows, int)",
    "isinstance(rows, (str, float))",
    "[1 for one in x.shape if isinstance(rows, int)]",
    "rows > 1",
    "x.device.type == 'cpu'",
    "isinstance(x, torch.Tensor)",
    "int(x.shape[1]) == 2",
)


@pytest.mark.parametrize("condition", [*ASKING, *NOT_ASKING])
def test_a_length_whose_type_may_be_asked_for_stays_a_number(
    condition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"lengths_{len(condition)}_{condition in ASKING}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\n\n\nclass Lengths(torch.nn.Module):\n    def forward(self, x):\n"
        f"        rows = len(x)\n        return x * 2 if {condition} else x * 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name).Lengths()
    rows = torch.randn(5, 2)
    call = ExportCall(module=module, args=(rows,), dynamic_shapes=({0: Dim.DYNAMIC},))
    refused = pytest.raises(NotApplicable, match="asks for types")
    with refused if condition in ASKING else contextlib.nullcontext():
        with apply_shims([find("len-as-size")], call) as changed:
            program = export_program(changed).module()
        for x in (rows, torch.randn(9, 2)):
            assert torch.equal(program(x), module(x))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float16, torch.float64, torch.complex64])
@pytest.mark.parametrize("other", [1.0, 2, -0.5, True, 1j])
def test_a_number_minus_a_tensor_is_what_it_was(dtype: torch.dtype, other: Any) -> None:
    for tensor in (torch.tensor([0, 1, 3]).to(dtype), torch.tensor(1).to(dtype)):
        expected, found = (result_of(minus, tensor, other) for minus in (plain_minus, minus_promoted))
        assert str(found) == str(expected)
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)


def plain_minus(tensor: Tensor, other: Any) -> Any:
    return other - tensor


def minus_promoted(tensor: Tensor, other: Any) -> Any:
    return subtract_promoted(tensor, other, torch.Tensor.__rsub__)


def result_of(minus: Callable[[Tensor, Any], Any], tensor: Tensor, other: Any) -> Any:
    try:
        return minus(tensor, other)
    except RuntimeError as error:
        return error
