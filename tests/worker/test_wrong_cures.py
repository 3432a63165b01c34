"""Programs that differ from eager in one respect are refused; those that differ by rounding or by kernel are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.shims import ExportCall
from exportdoctor.worker.attempt.shimmed_export import compare_set
from exportdoctor.worker.prove.cure_inputs import cure_inputs, drawer_for

ROWS: dict[int, Any] = {0: Dim.DYNAMIC}


def compare(call: ExportCall, program: nn.Module) -> list[Agreement]:
    """How a program agrees with the call's module on all input sets of a proof."""
    known = list(cure_inputs(call))
    sets = [*known, *drawer_for(call, known[0]).draw()]
    return [compare_set(program, call, one) for one in sets]


def run(forward: Callable[..., Any], like: nn.Module | None = None) -> nn.Module:
    """A module with that forward, with a copy of the other's state."""
    module = copy.deepcopy(like) if like is not None else nn.Module()
    kind = type("Program", (type(module),), {"forward": forward})
    module.__class__ = kind
    return module


def built(forward: Callable[..., Any], **state: Any) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Module()
    for name, value in state.items():
        if isinstance(value, Tensor):
            module.register_buffer(name, value)
        else:
            setattr(module, name, value)
    return run(forward, module)


@dataclass
class Held:
    """A plain object that a call changes."""

    total: Tensor = field(default_factory=lambda: torch.zeros(3))
    count: int = 0
    parts: list[Tensor] = field(default_factory=list)


def segments_of(x: Tensor, ends: Tensor) -> Tensor:
    """Attention within segments, by a loop."""
    parts = torch.split(x, (ends[1:] - ends[:-1]).tolist())
    return torch.cat([F.softmax(part @ part.T, -1) @ part for part in parts])


def masked_segments(x: Tensor, ends: Tensor) -> Tensor:
    """The same by one mask."""
    place = torch.searchsorted(ends[1:].contiguous(), torch.arange(len(x)), right=True)
    scores = (x @ x.T).masked_fill(place[:, None] != place[None, :], -torch.inf)
    return F.softmax(scores, -1) @ x


def attend(x: Tensor, mask: Tensor) -> Tensor:
    scores = x @ x.transpose(1, 2) + torch.where(mask[:, None, :] != 0, 0.0, -1e9)
    return F.softmax(scores, -1) @ x


X = torch.linspace(-1, 2, 24).sin().reshape(8, 3)
SAME = torch.ones(8, 3)
ENDS = torch.tensor([0, 4, 8])
IDS = torch.tensor([[1, 4, 2, 7], [3, 3, 0, 5]])
ONES = torch.ones(2, 4, dtype=torch.int64)
BATCH = torch.linspace(-1, 3, 24).cos().reshape(2, 4, 3)


def add_up(self: Any, x: Tensor, held: Any) -> Tensor:
    held.total += x.sum(0)
    return x * 2


def count_up(self: Any, x: Tensor, held: Any) -> Tensor:
    held.count += 1
    return x * 2


def put(self: Any, x: Tensor, held: Any) -> Tensor:
    held.parts.append(x[:1])
    return x * 2


def forget(self: Any, x: Tensor, held: Any) -> Tensor:
    return x * 2


def steps(self: Any, x: Tensor) -> Tensor:
    self.n = getattr(self, "n", 0) + 1
    return x * (1 if self.n < 3 else 2)


def memo(self: Any, x: Tensor) -> Tensor:
    if getattr(self, "kept", None) is None:
        self.kept = x.clone()
    return self.kept + x


def buffered(self: Any, x: Tensor) -> Tensor:
    self.seen += x.sum()
    return x + 1


def threshold(limit: float, below: float = 1.0) -> Callable[..., Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        return x * below if x.max() < limit else x + 5

    return forward


WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], Any]] = {
    # eager, program, inputs, dynamic shapes
    "a constant example hides a factor": (lambda s, x: x * x, lambda s, x: x, (SAME,), None),
    "ones hide a missing mean": (lambda s, x: x.mean(0), lambda s, x: x[0], (SAME,), None),
    "zeros hide a missing weight": (lambda s, x: x * 3, lambda s, x: x * 2, (SAME * 0,), None),
    "one repeated value hides a reversal": (lambda s, x: x, lambda s, x: x.flip(0), (SAME * 0.7,), None),
    "ones hide missing segments": (
        lambda s, x, ends: segments_of(x, ends),
        lambda s, x, ends: F.softmax(x @ x.T, -1) @ x,
        (SAME, ENDS),
        None,
    ),
    "segments are fixed": (
        lambda s, x, ends: segments_of(x, ends),
        lambda s, x, ends: masked_segments(x, ENDS),
        (X, ENDS),
        None,
    ),
    "one segment is taken for all": (
        lambda s, x, ends: segments_of(x, ends),
        lambda s, x, ends: F.softmax(x @ x.T, -1) @ x,
        (X, torch.tensor([0, 8, 8])),
        None,
    ),
    "segments of equal length": (
        lambda s, x, ends: segments_of(x, ends),
        lambda s, x, ends: masked_segments(x, torch.linspace(0, len(x), len(ends)).long()),
        (X, ENDS),
        None,
    ),
    "empty segments are dropped": (
        lambda s, x, ends: torch.stack([part.sum(0) for part in torch.split(x, (ends[1:] - ends[:-1]).tolist())]),
        lambda s, x, ends: torch.stack(
            [part.sum(0) + (not len(part)) for part in torch.split(x, (ends[1:] - ends[:-1]).tolist())]
        ),
        (X, ENDS),
        None,
    ),
    "a segment of one row": (
        lambda s, x, ends: segments_of(x, ends),
        lambda s, x, ends: segments_of(x, ends) + bool(((ends[1:] - ends[:-1]) == 1).any()),
        (X, ENDS),
        None,
    ),
    "lengths are fixed": (
        lambda s, x, n: torch.cat([part.cumsum(0) for part in torch.split(x, n.tolist())]),
        lambda s, x, n: torch.cat([part.cumsum(0) for part in torch.split(x, [3, 5])]),
        (X, torch.tensor([3, 5])),
        None,
    ),
    "a table index is fixed": (
        lambda s, x, i: x[i],
        lambda s, x, i: x[torch.tensor([2, 5])],
        (X, torch.tensor([2, 5])),
        None,
    ),
    "an index is clamped": (lambda s, x, i: x[i], lambda s, x, i: x[i.clamp(0, 6)], (X, torch.tensor([2, 5])), None),
    "zero means something else": (
        lambda s, x, i: x[i],
        lambda s, x, i: torch.where((i == 0)[:, None], 0.0, x[i]),
        (X, torch.tensor([2, 5])),
        None,
    ),
    "a mask is dropped": (
        lambda s, x, m: attend(x, m),
        lambda s, x, m: attend(x, torch.ones_like(m)),
        (BATCH, ONES),
        None,
    ),
    "a mask is that of the last row": (
        lambda s, x, m: attend(x, m),
        lambda s, x, m: attend(x, m[-1:].expand_as(m)),
        (BATCH, ONES),
        None,
    ),
    "padding is taken to be on the right": (
        lambda s, x, m: (x * m[..., None]).sum(1),
        lambda s, x, m: (x * (torch.arange(m.shape[1]) < m.sum(1, keepdim=True))[..., None]).sum(1),
        (BATCH, ONES),
        None,
    ),
    "a flag is fixed": (
        lambda s, x, f: x * 2 if bool(f) else x,
        lambda s, x, f: x * 2,
        (X, torch.tensor(True)),
        None,
    ),
    "a count is fixed": (lambda s, x, n: x * n, lambda s, x, n: x * 3, (X, torch.tensor(3)), None),
    "a branch far away is lost": (threshold(50.0), lambda s, x: x, (X,), None),
    "a branch on a mean is lost": (
        lambda s, x: x if x.mean() < 7.5 else -x,
        lambda s, x: x,
        (X,),
        None,
    ),
    "a branch on a token is lost": (
        lambda s, x, ids: x * 2 if bool((ids == 29).any()) else x,
        lambda s, x, ids: x,
        (X, IDS),
        None,
    ),
    "a branch on a scalar is lost": (
        lambda s, x, n: x if n.item() < 12 else x + 1,
        lambda s, x, n: x,
        (X, torch.tensor(3)),
        None,
    ),
    "negative values are lost": (lambda s, x: x.abs(), lambda s, x: x, (X.abs() + 5,), None),
    "large values are clamped": (lambda s, x: x, lambda s, x: x.clamp(-50, 50), (X,), None),
    "small values are flushed": (
        lambda s, x: x / x.abs().max(),
        lambda s, x: torch.where(x.abs() < 1e-2, 0.0, x) / x.abs().max(),
        (X + 2,),
        None,
    ),
    "the first row stands for all": (
        lambda s, x: x - x.max(0).values,
        lambda s, x: x - x[0],
        (X.sort(0, descending=True).values,),
        None,
    ),
    "a size is fixed": (lambda s, x: x.sum(0) / len(x), lambda s, x: x.sum(0) / 8, (X,), (ROWS,)),
    "even sizes only": (
        lambda s, x: x,
        lambda s, x: torch.cat([x[: len(x) // 2], x[len(x) // 2 :] + (len(x) % 2)]),
        (X,),
        (ROWS,),
    ),
    "a size of one": (lambda s, x: x, lambda s, x: x + (len(x) == 1), (X,), (ROWS,)),
    "state at the third call": (steps, lambda s, x: x * 1, (X,), None),
    "a memo of the first input": (memo, lambda s, x: x + x, (X,), None),
    "a buffer that is not updated": (buffered, lambda s, x: x + 1, (X,), None),
    "a buffer that eager leaves alone": (lambda s, x: x + 1, buffered, (X,), None),
    "an object's tensor is not updated": (add_up, forget, (X, Held()), None),
    "an object's number is not updated": (count_up, forget, (X, Held()), None),
    "an object's list is not appended to": (put, forget, (X, Held()), None),
    "an input is changed that eager leaves": (forget, add_up, (X, Held()), None),
    "a tensor is not changed in place": (lambda s, x: x.mul_(2).sum(), lambda s, x: (x * 2).sum(), (X,), None),
    "views of one tensor are told apart": (
        lambda s, x, y: (x.add_(1), y.sum())[1],
        lambda s, x, y: (y.sum(), x.add_(1))[0],
        (lambda one: (one, one[:4]))(X.clone()),
        None,
    ),
    "a value that the caller needs is missing": (
        lambda s, x: {"x": x, "best": (x @ s.w).argmax(-1)},
        lambda s, x: {"x": x},
        (X,),
        None,
    ),
    "a floating output is missing": (lambda s, x: (x, x + 1), lambda s, x: (x,), (X,), None),
    "two inputs are never equal": (
        lambda s, x, y: x if torch.equal(x, y) else -x,
        lambda s, x, y: -x,
        (X, X + 1),
        None,
    ),
    "another dtype": (lambda s, x: x, lambda s, x: x.double(), (X,), None),
    "nan in another place": (
        lambda s, x: x.sqrt(),
        lambda s, x: x.sqrt().nan_to_num(0.0),
        (X.abs() + 1,),
        None,
    ),
}


def _call(forward: Callable[..., Any], args: tuple[Any, ...], shapes: Any) -> ExportCall:
    torch.manual_seed(0)
    module = run(forward, _with_state())
    return ExportCall(module=module, args=copy.deepcopy(args), dynamic_shapes=shapes)


def _with_state() -> nn.Module:
    module = nn.Module()
    module.register_buffer("seen", torch.zeros(()))
    module.w = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_program_that_differs_from_eager_in_one_respect_is_refused(name: str) -> None:
    eager, program, args, shapes = WRONG[name]
    call = _call(eager, args, shapes)
    rows = compare(call, run(program, _with_state()))
    assert not all(row.holds for row in rows)


RIGHT: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], Any]] = {
    "rounding": (lambda s, x: x.softmax(-1), lambda s, x: x.softmax(-1) * (1 + 1e-6), (X,), (ROWS,)),
    "another order": (lambda s, x: x.sum(0), lambda s, x: x.flip(0).cumsum(0)[-1], (X,), None),
    "another kernel": (
        lambda s, x: F.scaled_dot_product_attention(x, x, x),
        lambda s, x: F.softmax(x @ x.transpose(1, 2) / 3**0.5, -1) @ x,
        (BATCH,),
        (ROWS,),
    ),
    "one mask for a loop": (
        lambda s, x, ends: segments_of(x, ends),
        lambda s, x, ends: masked_segments(x, ends),
        (X, ENDS),
        None,
    ),
    "where for a branch": (
        lambda s, x: x * 2 if x.max() > 3 else x,
        lambda s, x: torch.where(x.max() > 3, x * 2, x),
        (X,),
        (ROWS,),
    ),
    "a buffer that is updated": (buffered, buffered, (X,), None),
    "an object that is changed": (add_up, add_up, (X, Held()), None),
    "a list that is appended to": (put, put, (X, Held()), None),
    "what follows from the inputs is missing": (
        lambda s, x, i: {"x": x @ s.w, "shift": i.max() - i},
        lambda s, x, i: {"x": x @ s.w},
        (X, torch.tensor([2, 5])),
        None,
    ),
    "what is changed comes back": (lambda s, x: (x.mul_(2), x)[1], lambda s, x: x * 2, (X,), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_accepted(name: str) -> None:
    eager, program, args, shapes = RIGHT[name]
    rows = compare(_call(eager, args, shapes), run(program, _with_state()))
    assert [row for row in rows if not row.holds] == []
    assert sum(row.made_up for row in rows) >= 20


def test_rounding_is_no_difference_where_equal_rows_leave_a_channel_small_by_chance() -> None:
    weight = torch.randn(256, 64, generator=torch.Generator().manual_seed(1))
    eager = built(lambda self, x: (x @ self.weight + 1000) - 1000, weight=weight)
    program = run(lambda self, x: x @ self.weight, eager)
    call = ExportCall(module=eager, args=(torch.randn(12, 256, generator=torch.Generator().manual_seed(2)),), kwargs={})
    assert all(row.holds for row in compare(call, program))
