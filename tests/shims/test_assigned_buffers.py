"""Buffers that forward assigns: the program changes them as eager does, call by call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find

SHIM = find("assigned-buffers")


class Stateful(nn.Module):
    """`step` computes something of the module and an input."""

    b: Tensor

    def __init__(self, step: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        for name in "abc":
            self.register_buffer(name, torch.randn(4), persistent=name != "c")
        self.register_buffer("kept", self.b[:2])
        self.register_buffer("none", None)
        self.lin = nn.Linear(4, 4)
        self.step = step
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


class Outer(nn.Module):
    """Uses one stateful module twice, and writes into what it gives."""

    def __init__(self, step: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = Stateful(step)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x).mul_(0.5))


def follows(self: Any, x: Tensor) -> Tensor:
    before = self.a
    self.a = self.a * 0.5 + x.mean(0)
    return x + before - self.a


def shifts(self: Any, x: Tensor) -> Tensor:
    self.a = torch.cat([self.a[1:], x.sum().reshape(1)])
    return x * self.a


def takes_input(self: Any, x: Tensor) -> Tensor:
    self.a, self.c = x[0], x[1]
    return x * self.a


def swaps(self: Any, x: Tensor) -> Tensor:
    self.a, self.c = self.c, self.a + 1
    return x + self.a


def passes_on(self: Any, x: Tensor) -> Tensor:
    self.c = self.a + 0
    self.a = self.lin(x).mean(0)
    return x + self.c - self.a


def registers(self: Any, x: Tensor) -> Tensor:
    self.register_buffer("a", x.amax(0))
    self._buffers["c"] = x.amin(0)
    return x + self.a


def gives_it(self: Any, x: Tensor) -> Tensor:
    self.a = self.a + x.mean(0)
    return self.a


def gives_the_old(self: Any, x: Tensor) -> Tensor:
    old = self.a
    self.a = x.mean(0)
    return old[None]


STEPS = (gives_the_old, follows, shifts, takes_input, swaps, passes_on, registers)


def program_of(module: nn.Module, dynamic: Any = None) -> Any:
    call = ExportCall(module=module, args=(torch.randn(3, 4),), dynamic_shapes=dynamic)
    with apply_shims([SHIM], call) as given:
        return export_program(given).module()


def assert_same_calls(module: nn.Module, program: Any, rows: tuple[int, ...]) -> None:
    for count in rows:
        x = torch.randn(count, 4)
        torch.testing.assert_close(program(x.clone()), module(x.clone()))
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(dict(program.named_buffers())[name], buffer)


@pytest.mark.slow
@pytest.mark.parametrize("outer", [Stateful, Outer])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_program_changes_buffers_as_eager_does(step: Any, outer: Any) -> None:
    module = outer(step)
    before = copy.deepcopy(module)
    program = program_of(module, ({0: Dim.DYNAMIC},))
    module = copy.deepcopy(module)  # a program shares its tensors with the module
    for name, buffer in before.named_buffers():
        assert torch.equal(buffer, module.get_buffer(name)), f"the export changed {name}"
    with torch.no_grad():
        assert_same_calls(module, program, (3, 5, 2))


class Halving(nn.Module):
    """Its own `__setattr__` changes what is assigned."""

    a: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.ones(4))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * 0.5 if name == "a" else value)

    def forward(self, x: Tensor, depth: int = 1) -> Tensor:
        held = self.a
        if depth:  # it calls itself, while it holds the buffer
            x = self.forward(x, depth - 1)
        self.a = self.a + x.sum(0)
        return x + held


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True])
def test_a_setattr_of_the_models_own_and_a_forward_that_calls_itself_run_as_in_eager(nested: bool) -> None:
    module: Any = nn.Sequential(Halving()) if nested else Halving()
    program = program_of(module)
    module = copy.deepcopy(module)
    with torch.no_grad():
        assert_same_calls(module, program, (3, 3, 3))


def test_a_program_has_the_gradients_of_eager() -> None:
    module = Stateful(passes_on)
    program = program_of(module)
    module = copy.deepcopy(module)
    x = torch.randn(3, 4)
    found, wanted = (
        torch.autograd.grad(one(x).sum(), [one.get_parameter("lin.weight"), one.get_parameter("lin.bias")])
        for one in (program, module)
    )
    torch.testing.assert_close(found, wanted)


def grows(self: Any, x: Tensor) -> Tensor:
    self.a = torch.cat([self.a, x[0]])
    return x


def widens(self: Any, x: Tensor) -> Tensor:
    self.a = self.a.double()
    return x


def fills(self: Any, x: Tensor) -> Tensor:
    self.none = x
    return x


def clears(self: Any, x: Tensor) -> Tensor:
    self.a = None
    return x


def parts(self: Any, x: Tensor) -> Tensor:
    self.b = self.b + x[0]  # `kept` was a view of it, and is no more
    return x + self.b


def joins(self: Any, x: Tensor) -> Tensor:
    self.a = self.c  # what is written into one is in both from now on
    return x + self.a


def holds_it_elsewhere(self: Any, x: Tensor) -> Tensor:
    self.a = x[0] + x[1]
    self.shown = {"last": [self.a]}
    return x


def records(self: Any, x: Tensor) -> Tensor:
    self.a = torch.zeros(4, requires_grad=True)
    return x


def later(self: Any, x: Tensor) -> Tensor:
    self.a = self.a + 1 if self.calls == 0 else torch.cat([self.a, x[0]])
    self.calls += 1
    return x


def reads(self: Any, x: Tensor) -> Tensor:
    self.a.add_(x[0])
    return x + self.a


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (grows, "a tensor of another shape"),
        (widens, "torch.float64 on cpu in place of torch.float32"),
        (fills, "forward assigns none something that is no tensor, or was none"),
        (clears, "forward assigns a something that is no tensor"),
        (parts, "shares memory with kept"),
        (joins, "shares memory with c"),
        (holds_it_elsewhere, "shares memory with a tensor that is no buffer"),
        (records, "records gradients itself"),
        (later, "another shape"),
        (reads, "forward assigns no buffer"),
    ],
)
def test_what_cannot_be_written_into_the_buffer_is_refused(step: Any, said: str) -> None:
    module = Stateful(step)
    before = copy.deepcopy(module)
    with (
        pytest.raises(NotApplicable, match=said),
        apply_shims([SHIM], ExportCall(module=module, args=(torch.randn(3, 4),))),
    ):
        pass
    assert all(torch.equal(buffer, module.get_buffer(name)) for name, buffer in before.named_buffers())


LINES = (
    "self.a = x.mean(0)",
    "self.a = self.a + self.c",
    "self.b.mul_(0.5).add_(x[0])",
    "self.a.add_(1)",
    "self.c = self.b * 2",
    "self.a, self.c = self.c, self.a",
    "held = self.a",
    "x = x + held",
    "x = x - self.c",
    "x = x * self.a",
    "self.c.copy_(held)",
    "held.mul_(0.5)",
    "given.append(self.a)",
    "given.append(held[None])",
)


@pytest.mark.night
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(LINES), min_size=2, max_size=7), st.booleans())
def test_drawn_code_changes_buffers_as_eager_does(lines: list[str], nested: bool) -> None:
    space: dict[str, Any] = {}
    body = "\n    ".join(lines)
    exec(f"def step(self, x):\n    held, given = self.b, []\n    {body}\n    return x, *given\n", space)
    module: Any = Stateful(space["step"])
    module.kept = torch.zeros(2)
    module = nn.Sequential(module) if nested else module
    try:
        program = program_of(module)
    except NotApplicable:
        return
    module = copy.deepcopy(module)
    with torch.no_grad():
        assert_same_calls(module, program, (3, 3, 3))
