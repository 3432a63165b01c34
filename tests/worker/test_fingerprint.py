"""Equal fingerprints must mean equal outcomes: any difference that an export can see changes the fingerprint."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from exportdoctor.worker.capture.fingerprint import Fingerprints, Question
from exportdoctor.worker.capture.outside_mentions import find_mentioned


class Configuration:
    """A plain settings object."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.inner = {"scale": 2.0}


class Layer(nn.Module):
    """Has something of every sort that a forward may look at."""

    def __init__(self, *, index: int = 0, width: int = 4, settings: Configuration | None = None) -> None:
        super().__init__()
        self.index = index
        self.settings = settings or Configuration(1)
        self.act: Callable[[torch.Tensor], torch.Tensor] = torch.relu
        self.linear = nn.Linear(4, width)
        self.table = torch.arange(3)

    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.act(self.linear(x))


def ask(module: nn.Module, *args: Any, **kwargs: Any) -> Question:
    return Fingerprints().question(module, args or (torch.ones(2, 4),), kwargs, "")


def test_copies_are_equal_and_portable() -> None:
    layer = copy.deepcopy(Layer())  # which sets its tensors' versions, as a copy of it does
    assert ask(layer).full == ask(copy.deepcopy(layer)).full
    assert not ask(layer).full.startswith("~")


def _changed(change: Callable[[Layer], object]) -> Layer:
    layer = Layer()
    change(layer)
    return layer


def tie_weights(module: Layer) -> None:
    """Give the module a second child whose weight is that of its first one."""
    other = nn.Linear(4, 4)
    other.weight = module.linear.weight
    module.add_module("twin", other)


DIFFERENCES: dict[str, Callable[[Layer], object]] = {
    "a parameter's shape": lambda m: setattr(m, "linear", nn.Linear(4, 5)),
    "a parameter's dtype": lambda m: m.linear.half(),
    "a frozen parameter": lambda m: m.linear.weight.requires_grad_(False),
    "training mode": lambda m: m.eval(),
    "a child's training mode": lambda m: m.linear.eval(),
    "a function": lambda m: setattr(m, "act", torch.tanh),
    "a function's closure": lambda m: setattr(m, "act", _closure(3)),
    "a setting": lambda m: setattr(m.settings, "width", 9),
    "a nested setting": lambda m: m.settings.inner.update(scale=1.0),
    "a plain tensor's values": lambda m: setattr(m, "table", torch.tensor([0, 1, 3])),
    "another attribute": lambda m: setattr(m, "extra", [1]),
    "a forward of its own": lambda m: setattr(m, "forward", lambda x: x),
    "a hook": lambda m: m.register_forward_hook(lambda *_: None),
    "a hook of a child": lambda m: m.linear.register_forward_pre_hook(lambda *_: None),
    "another child": lambda m: m.add_module("more", nn.Identity()),
    "a tied parameter": lambda m: tie_weights(m),
}


def _closure(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * number


@pytest.mark.parametrize("what", DIFFERENCES)
def test_whatever_an_export_can_see_makes_another_question(what: str) -> None:
    first, second = ask(Layer()), ask(_changed(DIFFERENCES[what]))
    assert first.full != second.full
    assert first.group != second.group


def test_closures_over_other_values_are_told_apart() -> None:
    three, four = _changed(lambda m: setattr(m, "act", _closure(3))), _changed(lambda m: setattr(m, "act", _closure(4)))
    assert ask(three).full != ask(four).full


def test_tied_and_untied_children_of_the_same_shapes_differ() -> None:
    tied, untied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert ask(tied).full != ask(untied).full


def test_a_plain_index_makes_kin_that_say_what_differs() -> None:
    first, second = ask(Layer(index=0)), ask(Layer(index=1))
    assert first.full != second.full
    assert first.group == second.group
    assert {a for a, b in zip(first.scalars, second.scalars, strict=True) if a != b} == {("", "index", "int:0")}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((torch.ones(3, 4),), {}),
        ((torch.ones(2, 4).double(),), {}),
        ((torch.ones(4, 2).T,), {}),
        ((torch.ones(2, 4), 5), {}),
        ((torch.ones(2, 4),), {"flag": True}),
        ((torch.ones(2, 4),), {"flag": False}),
        ((torch.ones(2, 4),), {"ids": torch.tensor([1])}),
        ((torch.ones(2, 4),), {"ids": torch.tensor([2])}),
    ],
)
def test_other_inputs_are_another_question(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert ask(Layer(), *args, **kwargs).full != ask(Layer()).full


def test_values_of_activations_do_not_count() -> None:
    assert ask(Layer(), torch.ones(2, 4)).full == ask(Layer(), torch.zeros(2, 4)).full


def test_an_object_that_hides_its_state_is_only_equal_to_itself() -> None:
    first, second = (
        _changed(lambda m: setattr(m, "lock", memoryview(b"a"))),
        _changed(lambda m: setattr(m, "lock", memoryview(b"b"))),
    )
    assert ask(first).full != ask(second).full
    assert ask(first).full.startswith("~")


@pytest.mark.slow
def test_what_dynamo_notes_of_new_modules_is_no_mention_by_the_user() -> None:
    torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),), strict=True)
    model = nn.Sequential(Layer(), Layer())
    assert not find_mentioned(model.modules())
    kept = weakref.ref(model[0], lambda _: None)
    assert find_mentioned(model.modules()) == {id(kept())}
