"""Guards on one size: which sizes they take, and from which one on they take all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

from exportdoctor.core.failure.messages import suggested_fixes
from exportdoctor.core.failure.size_guards import declared_ranges, guards_of_sizes, least_size, unproved_sizes


def said(name: str, place: str, guard: str) -> str:
    where = f"{name} = {place} in the specified range 2 <= {name}"
    return f"  - Not all values of {where} satisfy the generated guard {guard}."


@given(st.lists(st.integers(0, 12), max_size=4), st.integers(1, 4), st.integers(0, 3), st.sampled_from([0, 1, 2, 3, 5]))
def test_from_the_least_size_on_all_are_taken_and_the_one_before_is_not(
    refused: list[int], factor: int, more: int, start: int
) -> None:
    place = "L['x'].size()[0]"
    message = "\n".join(said("b", place, f"((-{1 + one}) + {place}) != -1") for one in refused)
    guards = guards_of_sizes(message).get("b", [])
    least = least_size(guards, lambda number: factor * number + more, start=start)
    assert least is not None
    assert all(factor * number + more not in refused for number in range(least, least + 40))
    assert least == start or factor * (least - 1) + more in refused


@pytest.mark.parametrize(
    ("guard", "known"),
    [
        ("(1 + ((-1) + {x}) // 4) != 1", True),
        ("{x} % 2 == 0", False),  # never all from some size on
        ("{x} == 4", False),
        ("4 // ((-3) + {x}) >= 0", True),  # divides by zero at 3
        ("Max(2, {x}) == 2", None),
        ("{x} == L['y'].size()[0]", None),
        ("__import__('os')", None),
        ("{x} ** {x} > 1", None),
    ],
)
def test_what_cannot_be_evaluated_is_left_out(guard: str, known: bool | None) -> None:
    place = "L['x'].size()[1]"
    guards = guards_of_sizes(said("n", place, guard.replace("{x}", place)))
    assert (guards == {}) is (known is None)
    if guards:
        assert (least_size(guards["n"], int, start=2) is not None) is known


def test_what_torch_suggests_starts_where_the_guards_of_the_message_take_all() -> None:
    place = "L['ids'].size()[1]"
    message = said("t", place, f"((-4) + {place}) != 1") + "\n" + said("h", "L['x'].size()[2]", f"(1 + {place}) != 1")
    suggested = "\nSuggested fixes:\n  t = Dim('t', min=5, max=512)\n  _h = Dim('_h', max=7)\n  h = 8*_h - 3\n\n"
    assert suggested_fixes(message + suggested) == [
        "t = Dim('t', min=6, max=512)", "_h = Dim('_h', min=2, max=7)", "h = 8*_h - 3",
    ]  # fmt: skip


class Folds(nn.Module):
    """Takes each multiple of 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 8) * 2


def test_the_root_of_a_multiple_is_suggested_from_the_size_on_that_torch_takes() -> None:
    with pytest.raises(torch._dynamo.exc.UserError) as caught:
        torch.export.export(Folds(), (torch.randn(16),), dynamic_shapes=({0: Dim("n")},))
    assert suggested_fixes(str(caught.value)) == ["_n = Dim('_n', min=2, max=oo)", "n = 8*_n"]
    program = torch.export.export(Folds(), (torch.randn(16),), dynamic_shapes=({0: 8 * Dim("_n")},)).module()
    with pytest.raises(AssertionError, match="Guard failed"):
        program(torch.ones(8))


class Pools(nn.Module):
    """Refuses a length of which the pooled half has one element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.reshape(x.shape[0] // 4, 4)
        return half * 2 if half.shape[0] == 1 else half * 3


def test_torch_takes_the_least_size_and_refuses_the_one_before() -> None:
    x = torch.randn(16)
    with pytest.raises(torch._dynamo.exc.UserError) as caught:
        torch.export.export(Pools(), (x,), dynamic_shapes=({0: Dim("n", min=4)},))
    guards = guards_of_sizes(str(caught.value))["n"]
    least = least_size(guards, lambda root: 4 * root, start=1)
    assert least == 2
    for least_root, taken in ((1, False), (least, True)):
        shapes = ({0: 4 * Dim("_n", min=least_root)},)
        program = torch.export.export(Pools(), (x,), dynamic_shapes=shapes).module()
        if taken:
            torch.testing.assert_close(program(torch.ones(4 * least_root)), Pools()(torch.ones(4 * least_root)))
        else:
            with pytest.raises(AssertionError, match="Guard failed"):
                program(torch.ones(4))


def test_a_guard_that_takes_all_declared_sizes_is_one_that_torch_cannot_prove() -> None:
    """As those of ConvNeXt and of diffusers' AutoencoderKL: a range that they take is refused, too."""
    place = "L['x'].size()[3]"
    line = said("w", place, f"(1 % (32*({place} // 2))) != 0").replace("range", "range 16 <= w <= 128")
    bound = said("h", "L['x'].size()[2]", "64 <= L['x'].size()[2]").replace("range", "range 32 <= h <= 256")
    assert declared_ranges(f"{line}\n{bound}") == {"w": (16, 128), "h": (32, 256)}
    assert unproved_sizes(f"{line}\n{bound}") == {"w"}
    assert unproved_sizes(said("n", place, f"{place} <= 100")) == frozenset()
