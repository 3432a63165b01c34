"""What looks up places that were found refuses no values, if the tensor has the size of the one they were found in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.rules.branches.found_places import FoundPlaces

_MASK = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 0]]) > 0
_X, _WIDE = torch.randn(4, 3, 2), torch.randn(9, 9)


class _Following(TorchFunctionMode):
    """The last call, judged before it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.held = FoundPlaces(), False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        name = name if name.endswith("__") else name.removesuffix("_")
        self.held = self.places.holds(name, args, kwargs)
        made = func(*args, **kwargs)
        self.places.note(name, args, kwargs, made)
        return made


def _is_held(code: Callable[[], Any]) -> bool:
    with _Following() as following:
        code()
        return following.held


def _both() -> tuple[Tensor, Tensor]:
    return torch.where(_MASK)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "code",
    [
        lambda: _X[_both()[0]],
        lambda: _X[_both()],
        lambda: _X[:, _both()[1]],
        lambda: _X[None, _both()[0]],
        lambda: _X.unsqueeze(0)[..., _both()[1], 0],
        lambda: _X[_MASK],
        lambda: _X[_MASK, 0],
        lambda: _WIDE[_both()[0]],
        lambda: _X[_MASK.nonzero()[:, 0]],
        lambda: _X[:, _MASK.nonzero()[:, -1]],
        lambda: _X[_MASK.nonzero().t()[0]],
        lambda: _X[:, _MASK.nonzero().unbind(1)[1]],
        lambda: _X[_MASK[:, 0].nonzero().squeeze(-1)],
        lambda: _X[torch.where(_MASK.view(-1))[0] // 3],
        lambda: _X[:, torch.where(_MASK.view(-1))[0] % 3],
        lambda: _X.index_select(0, _both()[0]),
        lambda: torch.zeros(4, 2).index_add_(0, _both()[0], torch.ones(6, 2)),
        lambda: _X[torch.tensor([3])],
    ],
)
def test_places_within_the_size(code: Callable[[], Any]) -> None:
    assert _is_held(code)


def _moved() -> Tensor:
    rows = _both()[1]
    rows.add_(1)
    return _X[rows]


@pytest.mark.parametrize(
    "code",
    [
        _moved,
        lambda: _X[:, _both()[0].clamp(max=2)],
        lambda: _X[_both()[1] + 1],
        lambda: _X[:, (_both()[0] * 0)],
        lambda: _X[_MASK.nonzero()[:, 1] * 1],
        lambda: _X[torch.where(_MASK.view(-1))[0] // 4 * 1],
        lambda: _X[torch.randint(4, (2,))],
        lambda: _WIDE.index_select(0, torch.arange(3)),
        lambda: _X[2],
        lambda: _X[[0, 1]],
        lambda: torch.take(_X, _both()[0]),
    ],
)
def test_places_that_may_be_others(code: Callable[[], Any]) -> None:
    assert not _is_held(code)


class Pairs(nn.Module):
    """Both sizes are of inputs, and equal in the example."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out = x * 1
        if (x > 1).any():
            rows = torch.where(y > 1)[0]
            out[rows] = 5.0
        return out


def test_sizes_that_are_equal_by_chance_prove_nothing() -> None:
    free = torch.export.Dim.DYNAMIC
    call = ExportCall(module=Pairs(), args=(torch.randn(4), torch.randn(4)), dynamic_shapes=({0: free}, {0: free}))
    with pytest.raises(NotApplicable, match="in range for all sizes"):  # noqa: SIM117
        with apply_shims([find("branch-as-where")], call) as given:
            export_program(given)
