"""Small modules that fail to export, one for each way of failing; each name in `TARGETS` is a factory of one.

They are targets of repro_rates.py: no test lists them. Each has something around its failure that its repro can do
without.
"""

from __future__ import annotations

import collections
from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

Given = dict[str, object]
TARGETS: dict[str, tuple[str, ...]] = {}
"""A factory's name, and further options of the scan."""


def target(
    *options: str,
    inputs: Callable[[], tuple[Any, ...]] = lambda: (torch.randn(4, 6),),
    cure: bool = False,
    **more: Any,
) -> Callable[[type[nn.Module]], Callable[[], Given]]:
    """Put a factory in the place of a module's class: it returns an instance with these inputs."""

    def register(kind: type[nn.Module]) -> Callable[[], Given]:
        def build() -> Given:
            torch.manual_seed(0)
            return {"module": Tower(kind()).eval(), "args": inputs(), "kwargs": {}, **more}

        TARGETS[kind.__name__] = (*options, *(() if cure else ("--no-cure",)))
        return build

    return register


class Tower(nn.Module):
    """A wrapper, as most failing modules have one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        return self.inner(*args)


class Projected(nn.Module):
    """Layers that no failure needs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.proj = nn.Linear(6, 6)

    def embed(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(self.norm(x)))


# --- values and branches


@target()
class EarlyExit(Projected):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        for _ in range(3):
            if (hidden.abs() < 1e-3).all():
                break
            hidden = self.embed(hidden) + x
        return hidden


@target()
class TopRows(Projected):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        count = int((hidden.mean(-1) > 0).sum().item())
        return hidden[:count].sum(0) if count > 1 else hidden[0]


@target()
class Packed(Projected):
    def forward(self, x: Tensor) -> Tensor:
        rows = self.embed(x)
        kept = rows[(rows > 0).any(-1).nonzero().squeeze(-1)]
        return kept.view(2, -1) if kept.shape[0] % 2 == 0 else kept


@target(inputs=lambda: (torch.randn(10, 6), torch.tensor([3, 4, 3])))
class Segments(Projected):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        parts = torch.split(self.embed(x), lengths.tolist())
        return torch.cat([part - part.mean(0) for part in parts if len(part) > 2])


@target()
class NumpyDetour(Projected):
    def forward(self, x: Tensor) -> Tensor:
        order = self.embed(x).detach().numpy().argsort(0)
        return x + torch.from_numpy(order).float()


# --- classes that pytree does not know


class KeyValues:
    """A cache of one tensor for each layer."""

    def __init__(self, layers: int) -> None:
        self.keys: list[Tensor] = []
        self.layers = layers

    def update(self, key: Tensor, index: int) -> Tensor:
        if len(self.keys) <= index:
            self.keys.append(key)
        else:
            self.keys[index] = torch.cat([self.keys[index], key])
        return self.keys[index]


@target()
class ReturnsCache(Projected):
    def forward(self, x: Tensor) -> tuple[Tensor, KeyValues]:
        cache = KeyValues(2)
        hidden = cache.update(self.embed(x), 0)
        return self.embed(hidden), cache


class Output(MutableMapping[str, Any]):
    """A model's output: a mapping whose keys are attributes too."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.fields[name] = value

    def __delitem__(self, name: str) -> None:
        del self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


@target()
class ReturnsMapping(Projected):
    def forward(self, x: Tensor) -> Output:
        hidden = self.embed(x)
        return Output(last_hidden=hidden, pooled=hidden.mean(0))


@target(inputs=lambda: (torch.randn(4, 6), UserDict(scale=torch.ones(6))))
class TakesUserDict(Projected):
    def forward(self, x: Tensor, extras: UserDict[str, Tensor]) -> Tensor:
        return self.embed(x) * extras["scale"]


@dataclass
class Features:
    """What a backbone hands on."""

    maps: list[Tensor]
    sizes: dict[str, int] = field(default_factory=dict)
    mask: Tensor | None = None

    def last(self) -> Tensor:
        return self.maps[-1]


@target(inputs=lambda: (Features([torch.randn(4, 6)], {"h": 2}),))
class TakesFeatures(Projected):
    def forward(self, features: Features) -> Tensor:
        return self.embed(features.last()) * features.sizes["h"]


class Point(NamedTuple):
    x: Tensor
    tags: frozenset[str]


@target()
class ReturnsSet(Projected):
    def forward(self, x: Tensor) -> Point:
        return Point(self.embed(x), frozenset({"done"}))


# --- custom operators


@torch.library.custom_op("failing_modules::blur", mutates_args=())
def blur(x: Tensor, radius: int) -> Tensor:
    return x.roll(radius, 0) / 2 + x / 2


@target()
class NoFake(Projected):
    def forward(self, x: Tensor) -> Tensor:
        return blur(self.embed(x), 1) + x


@torch.library.custom_op("failing_modules::halve", mutates_args=())
def halve(x: Tensor) -> Tensor:
    return x[::2].clone()


@halve.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1])


@target()
class WrongFake(Projected):
    def forward(self, x: Tensor) -> Tensor:
        return halve(self.embed(x)) + x[:2]


# --- Python


@target()
class FollowsGradient(Projected):
    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            slope = torch.autograd.grad(self.embed(point).square().sum(), point)[0]
        return self.embed(x - 0.1 * slope)


@target("--exporter", "export-strict")
class StrictId(Projected):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        with open("/dev/null", "w") as log:
            log.write(str(hidden.shape))
        return hidden + collections.Counter([1]).total()


@target("--exporter", "torchscript")
class Scripted(Projected):
    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.embed(x)
        return {"hidden": hidden, "cache": KeyValues(1)}


@target("--to", "onnx")
class NoTranslation(Projected):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        return torch.linalg.eigvals(hidden[:4, :4]).real + torch.special.bessel_j0(hidden[:, 0])


# --- declared dimensions


@target(dynamic_shapes={"args": ({0: Dim("rows", min=2, max=64)},)})
class CountsRows(Projected):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        table = torch.arange(4).float()
        return hidden + table[:, None]


@target(
    inputs=lambda: (torch.randn(4, 6), torch.randn(4, 6)),
    dynamic_shapes={"args": ({0: Dim("left")}, {0: Dim("right")})},
)
class AddsRows(Projected):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.embed(x) + self.embed(y)


@target(inputs=lambda: (torch.randn(1, 6),), dynamic_shapes={"args": ({0: Dim("batch")},)})
class BatchOfOne(Projected):
    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x).flatten(0)


@target(inputs=lambda: (torch.randn(6, 6),), dynamic_shapes={"args": ({0: Dim("rows", max=64)},)})
class PairsRows(Projected):
    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x).view(-1, 2, 6).sum(1)


@target(inputs=lambda: (torch.randn(4, 6), object()))
class TakesObject(Projected):
    def forward(self, x: Tensor, context: object) -> Tensor:
        return self.embed(x)


# --- two failures, one behind the other


class Gate(Projected):
    def forward(self, x: Tensor) -> Tensor:
        return x if self.embed(x).sum() > 0 else -x


class Lengths(Projected):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(int(x.abs().sum().item()) + 1)


@target()
class TwoBehindEachOther(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.lengths = Lengths()

    def forward(self, x: Tensor) -> Tensor:
        return self.lengths(self.gate(x))


@target()
class TwoInOneForward(Projected):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        if hidden.max() > 10:
            hidden = hidden / 2
        count = hidden.abs().sum().long().tolist()
        return hidden.repeat(range(count)[0] + 1, 1)


@target(cure=True)
class ChecksThenCounts(Projected):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        if hidden.max() > 1e6:
            raise ValueError("out of range")
        return torch.zeros(int(hidden.abs().sum().item()) + 1)
