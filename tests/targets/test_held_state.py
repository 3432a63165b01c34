"""What a call leaves in a module and in what the module holds is put back after it, wherever it stands."""

from __future__ import annotations

import copy
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from exportdoctor.targets.eager import restore_afterwards, run_once
from exportdoctor.targets.plain_state import plain_state
from exportdoctor.worker.child import fork


class Position:
    def __init__(self) -> None:
        self.at = 0


class Slotted:
    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0


class Stepping(nn.Module):
    """Multiplies by what a step of its state gives, which is another number at each call."""

    def __init__(self, state: Any, step: Callable[[Any], Any]) -> None:
        super().__init__()
        self.state, self.step = state, step

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x * self.step(self.state)
        return found


def _count(holder: Any, key: Any) -> int:
    holder[key] += 1
    return int(holder[key])


def _move(holder: Any) -> int:
    holder.at += 1
    return int(holder.at)


def _append(holder: Any) -> int:
    holder.append(1)
    return len(holder)


def _counter() -> Callable[[Any], int]:
    calls = 0

    def step(_: Any) -> int:
        nonlocal calls
        calls += 1
        return calls

    return step


def _replace(weight: Tensor) -> Tensor:
    weight.data = weight.data + 1
    return weight


STATES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a parameter": (lambda: nn.Parameter(torch.ones(3)), lambda weight: weight.add_(1)),
    "the data of a parameter": (lambda: nn.Parameter(torch.ones(3)), lambda weight: weight.data.add_(1)),
    "another parameter's data": (lambda: nn.Parameter(torch.ones(3)), _replace),
    "a tensor": (lambda: torch.ones(3), lambda tensor: tensor.add_(1)),
    "a tensor with NaN": (lambda: torch.tensor([1.0, torch.nan, 1]), lambda tensor: tensor.add_(1).nan_to_num()),
    "a tensor in a list": (lambda: [torch.ones(3)], lambda held: held[0].add_(1)),
    "a dict in a dict": (lambda: {"a": {"b": 0}}, lambda held: _count(held["a"], "b")),
    "a list in a tuple": (lambda: ([0],), lambda held: _count(held[0], 0)),
    "a default dict": (lambda: defaultdict(int), lambda held: _count(held, "a")),
    "a deque": (lambda: deque(maxlen=9), _append),
    "an object": (Position, _move),
    "an object in a list": (lambda: [Position()], lambda held: _move(held[0])),
    "a slot": (Slotted, _move),
    "random numbers of Python": (lambda: random.Random(0), lambda held: held.random()),
    "random numbers of NumPy": (lambda: numpy.random.default_rng(0), lambda held: float(held.random())),
    "old random numbers of NumPy": (lambda: numpy.random.RandomState(0), lambda held: float(held.rand())),
    "random numbers of torch": (torch.Generator, lambda held: torch.rand(3, generator=held)),
}


@pytest.mark.parametrize("state", STATES)
def test_what_a_call_leaves_in_what_a_module_holds_is_put_back(state: str) -> None:
    make, step = STATES[state]
    module = Stepping(make(), step)
    assert not torch.equal(*_two_calls(module)), "the state is kept between the calls of one run"
    assert torch.equal(_two_calls(module)[0], _two_calls(module)[0])


def test_what_a_call_leaves_in_a_variable_of_a_function_that_a_module_holds_is_put_back() -> None:
    module = Stepping(None, _counter())
    assert [float(call[0]) for call in _two_calls(module)] == [1, 2]
    assert [float(call[0]) for call in _two_calls(module)] == [1, 2]


def _noted_in_a_default(noted: list[int] = []) -> int:  # noqa: B006
    noted.append(1)
    return len(noted)


class Noting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.count() * self.count_keyword() * _noted_in_a_default()

    @staticmethod
    def count(noted: dict[int, int] = {}) -> int:  # noqa: B006
        noted[len(noted)] = 1
        return len(noted)

    def count_keyword(self, *, noted: set[int] = set()) -> int:  # noqa: B006
        noted.add(len(noted))
        return len(noted)


def test_what_a_call_leaves_in_a_default_of_a_parameter_is_put_back() -> None:
    module = Noting()
    assert [float(call[0]) for call in _two_calls(module)] == [1, 8]
    assert [float(call[0]) for call in _two_calls(module)] == [1, 8]


def _two_calls(module: nn.Module) -> tuple[Tensor, Tensor]:
    with torch.no_grad(), restore_afterwards(module):
        return module(torch.ones(3)).clone(), module(torch.ones(3)).clone()


def test_what_a_hook_has_noted_for_its_caller_stays() -> None:
    module, called = nn.Linear(2, 2), []
    module.register_forward_hook(lambda *_: called.append("called"))
    with restore_afterwards(module):
        module(torch.ones(1, 2))
    assert called == ["called"]


def test_an_object_that_holds_itself_and_one_of_an_odd_class_are_walked() -> None:
    class Odd(type):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(cls, other: object) -> bool:
            raise TypeError("classes of this kind are not compared")

    class Held(metaclass=Odd):
        __class__ = property(lambda _: dict)  # type: ignore[assignment]

    module = nn.Linear(2, 2)
    held: list[Any] = [Held()]
    held.append(held)
    module.held = held  # type: ignore[assignment]
    with restore_afterwards(module):
        held.clear()
    assert held[1] is held
    assert "held" in plain_state(module)


class Frozen(OrderedDict[str, int]):
    """A configuration that its users cannot change."""

    frozen = False

    def __setitem__(self, key: str, value: int) -> None:
        if self.frozen:
            raise TypeError("frozen")
        super().__setitem__(key, value)

    def clear(self) -> None:
        raise TypeError("frozen")

    update = pop = clear  # type: ignore[assignment]


def test_a_container_that_refuses_changes_is_left_alone_or_restored_without_its_own_methods() -> None:
    module, config = nn.Linear(2, 2), Frozen(b=1, a=2)
    config.frozen = True
    module.config = config  # type: ignore[assignment]
    with restore_afterwards(module):
        module(torch.ones(1, 2))
    with restore_afterwards(module):
        OrderedDict.__setitem__(config, "c", 3)
    assert list(config.items()) == [("b", 1), ("a", 2)]


def test_a_run_leaves_attributes_hooks_buffers_and_the_random_state_as_they_were() -> None:
    class Messy(nn.BatchNorm1d):
        notes: list[str]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = torch.rand(1)
            self.notes.append("ran")
            self.register_forward_hook(lambda *_: None)
            return super().forward(x)

    module = Messy(4)
    module.notes = ["built"]
    state = torch.get_rng_state()
    before = OrderedDict((name, value.clone()) for name, value in module.state_dict().items())
    with restore_afterwards(module):
        module(torch.randn(5, 4))
        assert module.notes == ["built", "ran"]
    assert not hasattr(module, "seen")
    assert module.notes == ["built"]
    assert not module._forward_hooks
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


class WritesItsWeight(nn.Module):
    """Writes into a parameter in place, and gives another one new memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        self.first.data.add_(1)
        self.second.data = torch.zeros_like(self.second)
        return x * self.first.sum() + self.second.sum()


def values_after_two_calls(device: str) -> list[list[float]]:
    with torch.device(device):
        module, x = WritesItsWeight(), torch.ones(1)
    found = [run_once(module, ((x,), {})).tolist() for _ in range(2)]
    return [*found, *(one.tolist() for one in module.parameters())]


def test_what_is_written_through_data_is_put_back() -> None:
    assert values_after_two_calls("cpu") == [[6.0], [6.0], [1.0, 1.0, 1.0], [1.0, 1.0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_what_is_written_through_data_is_put_back() -> None:
    end = fork(lambda _: str(values_after_two_calls("cuda")).encode()).wait()
    assert end.data.decode() == "[[6.0], [6.0], [1.0, 1.0, 1.0], [1.0, 1.0]]"


def test_a_buffer_that_was_written_into_with_gradients_carries_none_afterwards() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.cache: torch.Tensor
            self.register_buffer("cache", torch.zeros(2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache[0] = self.layer(x)
            return self.cache * 2

    module = Cached()
    with torch.enable_grad(), restore_afterwards(module):
        module(torch.ones(4))
    assert not module.cache.requires_grad
    assert torch.equal(module.cache, torch.zeros(2, 4))
    copy.deepcopy(module)
