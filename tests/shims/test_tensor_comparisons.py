"""`torch.equal` and `torch.allclose` by `item`: the same answer as torch's, and a symbol while it is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find


class Comparing(nn.Module):
    def __init__(self, same: Callable[[Tensor, Tensor], bool]) -> None:
        super().__init__()
        self.same = same

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        answer = self.same(x, y)
        return torch.scalar_tensor(answer, dtype=torch.bool)


COMPARISONS = (
    torch.equal,
    lambda x, y: x.equal(other=y),
    torch.allclose,
    lambda x, y: torch.allclose(other=y, input=x, rtol=0, atol=0.5),
    lambda x, y: x.allclose(y, 0.1, equal_nan=True),
)
NAN = float("nan")
PAIRS = (
    ([1.0, 2.0], [1.0, 2.0]),
    ([1.0, 2.0], [1.0, 2.3]),
    ([1.0, NAN], [1.0, NAN]),
    ([float("inf"), 2.0], [float("inf"), 2.0]),
    ([-0.0, 0.0], [0.0, 0.0]),
    ([1.0, 2.0], [1.0, 2.0 + 1e-6]),
)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(COMPARISONS)))
def test_a_program_answers_what_torch_answers(number: int) -> None:
    module, n = Comparing(COMPARISONS[number]), Dim("n")
    example = (torch.randn(3, 2), torch.randn(3, 2))
    with apply_shims(
        [find("equal-as-item")], ExportCall(module=module, args=example, dynamic_shapes=({0: n}, {0: n}))
    ) as call:
        program = export_program(call).module()
    for one, other in PAIRS:
        for rows in (1, 4):
            pair = torch.tensor([one] * rows), torch.tensor([other] * rows)
            assert bool(program(*pair)) is bool(module(*pair)), pair
            assert bool(program(pair[0], pair[0])) is bool(module(pair[0], pair[0])), pair[0]


@pytest.mark.parametrize(
    "ask",
    [
        lambda x, y: x if torch.equal(x, y) is True else -x,
        lambda x, y: x if type(torch.equal(x, y)) is bool else -x,
        lambda x, y: x + y,
    ],
    ids=["is True", "type", "no comparison"],
)
def test_it_is_not_applicable_where_the_answer_must_be_a_bool_of_python(ask: Any) -> None:
    class Asking(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return ask(x, y)  # type: ignore[no-any-return]

    call = ExportCall(module=Asking(), args=(torch.randn(2), torch.randn(2)))
    with pytest.raises(NotApplicable), apply_shims([find("equal-as-item")], call):
        pass


@pytest.mark.slow
def test_its_text_fixes_it() -> None:
    module = Comparing(lambda x, y: len(str(torch.equal(x, y))) == 4)
    call = ExportCall(module=module, args=(torch.ones(2), torch.ones(2)))
    with apply_shims([find("equal-as-item")], call) as given, pytest.raises(Exception, match="data-dependent"):
        export_program(given)


@pytest.mark.slow
def test_its_class_is_that_of_a_bool() -> None:
    module = Comparing(lambda x, y: isinstance(torch.equal(x, y), bool) and torch.equal(x, y))
    call = ExportCall(module=module, args=(torch.ones(2), torch.zeros(2)))
    with apply_shims([find("equal-as-item")], call) as given:
        program = export_program(given).module()
    assert bool(program(torch.ones(2), torch.ones(2)))
    assert not bool(program(torch.ones(2), torch.zeros(2)))


@pytest.mark.slow
def test_tensors_of_other_shapes_are_not_equal() -> None:
    module = Comparing(torch.equal)
    call = ExportCall(module=module, args=(torch.zeros(3, 1), torch.zeros(1, 3)))
    with apply_shims([find("equal-as-item")], call) as given:
        assert not export_program(given).module()(torch.zeros(3, 1), torch.zeros(1, 3))


@pytest.mark.slow
def test_tensors_that_are_not_traced_are_compared_as_ever() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: Any = torch.ones(2)

        def forward(self, x: Tensor) -> Tensor:
            return x if torch.equal(self.seen.new_tensor([1, 1]), x.new_tensor([1, 1])) else -x

    call = ExportCall(module=Kept(), args=(torch.randn(2),))
    with apply_shims([find("equal-as-item")], call) as given:
        torch.testing.assert_close(given.module(torch.ones(2)), torch.ones(2))
