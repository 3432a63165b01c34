"""What counts as code that only computes: running it twice, or where it was not run, must not be seen."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput

from exportdoctor.shims.rules.code.pure_callees import makes_record
from exportdoctor.shims.rules.code.pure_code import Purity
from strict_state import Counter


def is_pure(function: Callable[..., Any], *instances: nn.Module) -> bool:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    return Purity(function=cast(FunctionType, function), instances=instances).of_statements(node.body)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Holder(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.seen, self.rate = layer, set[int](), 0.0

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layer(x))

    def note(self, x: Tensor) -> object:
        return self.seen.add(1)  # type: ignore[func-returns-value]

    def attend(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x, None, self.rate if self.training else 0.0)


def training_below(layer: nn.Module) -> nn.Module:
    layer.eval()[0].train()  # type: ignore[index]
    return layer


def with_other_forward(layer: nn.Module) -> nn.Module:
    layer.forward = lambda x: x  # type: ignore[method-assign]
    return layer


def parametrized(layer: nn.Module, by: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", by)
    return layer


LAYERS = {
    "a layer": (nn.Linear(4, 4), True),
    "layers": (nn.Sequential(nn.Linear(4, 4), nn.GELU(), Doubled()), True),
    "attention": (nn.MultiheadAttention(4, 2), True),
    "a parametrization": (parametrized(nn.Linear(4, 4), Doubled()), True),
    "one that notes": (Counter(), False),
    "one that notes, inside torch's": (nn.Sequential(nn.Linear(4, 4), Counter()), False),
    "one that notes, as a parametrization": (parametrized(nn.Linear(4, 4), Counter()), False),
    "one that writes": (nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), False),
    "one that renews its rows": (nn.Embedding(4, 4, max_norm=1.0), False),
    "one in training, inside": (nn.Sequential(nn.BatchNorm1d(4)), False),
    "another forward": (with_other_forward(nn.Linear(4, 4)), False),
    "an observer": (torch.ao.quantization.MinMaxObserver(), False),
    "a script": (torch.jit.script(Doubled()), False),
}


@pytest.mark.parametrize("title", LAYERS)
def test_layers(title: str) -> None:
    layer, pure = LAYERS[title]
    holder = Holder(layer).eval()
    if "training" in title:
        training_below(layer)
    assert is_pure(Holder.forward, holder) is pure
    assert not is_pure(Holder.forward, holder, Holder(Counter()).eval())  # in one of them


def test_a_set_of_the_module_is_written_and_a_rate_of_nothing_draws_nothing() -> None:
    holder = Holder(Doubled()).eval()
    assert not is_pure(Holder.note, holder)
    assert is_pure(Holder.attend, holder)
    holder.training, holder.rate = True, 0.5
    assert not is_pure(Holder.attend, holder)


def relu(x: Tensor) -> Tensor:
    return functional.relu(x)


def relu_in_place(x: Tensor) -> Tensor:
    return functional.relu(x, inplace=True)


def relu_in_place_too(x: Tensor) -> Tensor:
    return functional.relu(x, True)


def relu_with_what_is_given(x: Tensor, options: dict[str, Any]) -> Tensor:
    return functional.relu(x, **options)


def normed(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, training=False) + functional.normalize(x)


def normed_in_training(x: Tensor, mean: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, mean, training=True)


def written(x: Tensor) -> Tensor:
    return torch.add(x, 1, out=x)


def new_layer(x: Tensor) -> Tensor:
    return cast(Tensor, nn.Linear(4, 4)(x))


def drawn(x: Tensor) -> Tensor:
    return torch.normal(x, 1.0)


def mapped(x: Tensor) -> Tensor:
    return cast(Tensor, torch.vmap(noted)(x))


def in_an_order(x: list[int]) -> list[int]:
    return sorted(x, key=noted)


def reduced(x: Tensor) -> object:
    return torch.distributed.all_reduce(x)


def asked(x: Tensor) -> Tensor:
    return x if torch.onnx.is_in_onnx_export() or torch.compiler.is_compiling() or torch.is_grad_enabled() else x * 2


class Row(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Kept:
    left: Tensor
    others: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    left: Tensor


@dataclass
class Checked(Kept):
    def __post_init__(self) -> None:
        noted(self.left)


@dataclass
class Counted(Kept):
    number: int = field(default_factory=lambda: noted(1))


@dataclass
class Watched(Kept):
    def __setattr__(self, name: str, value: Any) -> None:
        noted(name)
        super().__setattr__(name, value)


class Shouting(Row):
    def __new__(cls, left: Tensor, right: Tensor) -> Shouting:
        return super().__new__(cls, noted(left), right)


def records(x: Tensor) -> object:
    return Row(x, right=x), Kept(x), Frozen(x), BaseModelOutput(x)


def noted(x: Any) -> Any:
    print(x)
    return x


@pytest.mark.parametrize("function", [relu, normed, asked, records])
def test_functions_that_compute(function: Callable[..., Any]) -> None:
    assert is_pure(function)


@pytest.mark.parametrize(
    "function",
    [relu_in_place, relu_in_place_too, relu_with_what_is_given, normed_in_training, written, new_layer, drawn, mapped,
     in_an_order, reduced, noted],
)  # fmt: skip
def test_functions_that_do_more(function: Callable[..., Any]) -> None:
    assert not is_pure(function)


@pytest.mark.parametrize("kind", [Checked, Counted, Watched, Shouting, nn.Linear, ModelOutput, complex, Exception])
def test_classes_whose_making_may_do_more(kind: type) -> None:
    assert not makes_record(kind)


def helper(x: Tensor) -> Tensor:
    return x


def test_a_name_of_a_function_around_it_is_not_that_of_the_file() -> None:
    def around(helper: Callable[..., Any]) -> Callable[..., Any]:
        def inner(x: Tensor) -> Tensor:
            return cast(Tensor, helper(x))

        return inner

    assert not is_pure(around(noted))
    assert is_pure(around(relu))


def test_a_decorated_function_is_judged_with_its_decorator() -> None:
    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(x: Tensor) -> Any:
            wrapper.calls = 1  # type: ignore[attr-defined]
            return function(x)

        return wrapper

    decorated = counting(relu)

    def calling(x: Tensor) -> Any:
        return decorated(x)

    assert not is_pure(calling)


class Indexed(nn.Module):
    """Calls one of the modules that it holds, by an index."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.named = nn.ModuleList(layers), nn.ModuleDict({"last": layers[-1]})

    def forward(self, x: Tensor, place: int) -> Tensor:
        x = self.layers[place](x) + self.layers[-1](x)
        return cast(Tensor, self.named["last"](x))


class Own(nn.ModuleList):
    """An index of it gives something else."""

    def __getitem__(self, place: Any) -> Any:
        return Counter()


def test_an_index_of_modules_is_all_of_them() -> None:
    linear = nn.Linear(4, 4)
    assert is_pure(Indexed.forward, Indexed(linear, linear).eval())
    assert not is_pure(Indexed.forward, Indexed(linear, Counter(), linear).eval())
    other = Indexed(linear)
    other.layers = Own([linear])
    assert not is_pure(Indexed.forward, other.eval())
