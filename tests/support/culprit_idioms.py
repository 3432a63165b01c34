"""More ways in which Python code can lead to a failure, which one scan asks together: a child of `Together` each."""

from __future__ import annotations

import bisect
import contextlib
import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor, nn
from torch.ao.nn import quantized
from torch.nn.utils import parametrize

from culprit_constructs import Construct


class MatchGuard(Construct):
    def forward(self, x: Tensor) -> Tensor:
        match x.ndim:
            case 2 if x.sum() > 0:  # <- here: MatchGuard
                return x + 1
            case _:
                return x


class _Sign:
    def __get__(self, holder: Any, owner: object) -> int:
        return 1 if holder.value.sum() > 0 else -1  # <- here: DescriptorGet


class _Signed:
    sign = _Sign()

    def __init__(self, value: Tensor) -> None:
        self.value = value


class DescriptorGet(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return x * _Signed(x).sign


@functools.singledispatch
def _clip(value: Any) -> Any:
    raise TypeError


@_clip.register
def _(value: Tensor) -> Tensor:
    return value if value.max() < 1e9 else value / 2  # <- here: SingleDispatch


class SingleDispatch(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return _clip(x)  # type: ignore[no-any-return]


class CachedFunction(Construct):
    @functools.cache  # noqa: B019
    def limit(self, x: Tensor) -> float:
        return 1.0 if x.sum() > 0 else 2.0  # <- here: CachedFunction

    def forward(self, x: Tensor) -> Tensor:
        return x * self.limit(x)


@dataclass
class _Checked:
    value: Tensor

    def __post_init__(self) -> None:
        if self.value.isnan().any():  # <- here: PostInit
            raise ValueError("not a number")


class PostInit(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return _Checked(x).value


class ForwardHook(Construct):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.proj.register_forward_hook(self.watch)

    def watch(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if output.isinf().any():  # <- here: ForwardHook
            raise ValueError("overflow")

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)  # type: ignore[no-any-return]


class _Positive(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight if weight.min() > 0 else weight.abs()  # <- here: Parametrization


class Parametrization(Construct):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        parametrize.register_parametrization(self.proj, "weight", _Positive())

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)  # type: ignore[no-any-return]


class NumpyUfunc(Construct):
    KIND = ""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.as_tensor(numpy.maximum(x, 0))  # <- here: NumpyUfunc


class Bisect(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return x * bisect.bisect([1.0, 2.0], x.sum())  # <- here: Bisect


class FormatSpec(Construct):
    KIND = ""

    def forward(self, x: Tensor) -> Tensor:
        name = f"{x.sum():.1f}"  # <- here: FormatSpec
        return x * len(name)


class SliceByTensor(Construct):
    KIND = ""

    def forward(self, x: Tensor) -> Tensor:
        count = x.sum().long().clamp(1, 2)
        return x[:count].sum(0) * (1 if len(x[:count]) > 1 else 2)  # <- here: SliceByTensor


class InGroup(Construct):
    def inner(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: InGroup

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except Exception as error:
            raise ExceptionGroup("several", [error, ValueError("another")]) from None


class WithoutTraceback(Construct):
    def inner(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: WithoutTraceback

    def forward(self, x: Tensor) -> Tensor:
        failed = None
        try:
            return self.inner(x)
        except Exception as error:
            failed = error
        raise failed.with_traceback(None)


class ByExitStack(Construct):
    def check(self, x: Tensor) -> None:
        assert not x.isnan().any()  # <- here: ByExitStack

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.ExitStack() as stack:
            stack.callback(self.check, x)
            return x + 1


class IteratedRows(Construct):
    KIND = "dynamic_dim_specialised"
    DYNAMIC = True

    def forward(self, x: Tensor) -> Tensor:
        total = x[0] * 0
        for row in x:  # <- here: IteratedRows
            total = total + row
        return total


class SizeInSet(Construct):
    KIND = ""
    DYNAMIC = True

    def forward(self, x: Tensor) -> Tensor:
        return x * (2 if x.shape[0] in {3, 7} else 1)  # <- here: SizeInSet


class ShapeAsKey(Construct):
    KIND = ""
    DYNAMIC = True
    SEEN: ClassVar[dict[Any, int]] = {}

    def forward(self, x: Tensor) -> Tensor:
        factor = self.SEEN.get(x.shape, 2)  # <- here: ShapeAsKey
        return x * factor


class IteratorInOutput(Construct):
    KIND = "unregistered_pytree"

    def forward(self, x: Tensor) -> Any:
        half = x / 2
        return {"half": half, "rows": iter([half])}  # <- here: IteratorInOutput


class ModuleByTensor(Construct):
    KIND = "data_dependent_value"

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.argmax() % 2
        return self.experts[chosen](x)  # type: ignore[call-overload, no-any-return]  # <- here: ModuleByTensor


class ScriptObject(nn.Module):
    """Holds an object of C++ that export refuses before it runs any forward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Sequential(quantized.dynamic.Linear(4, 4))  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x)  # type: ignore[no-any-return]


class CalledForEach(nn.Module):
    """Its child has inputs of its own only inside a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.jacrev(self.proj))(x)  # type: ignore[no-any-return]


IDIOMS = [
    kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Construct) and not kind.__name__.startswith("_")
    and kind is not Construct
]  # fmt: skip


class Together(nn.Module):
    """All of them, each called once."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleDict({kind.__name__: kind() for kind in IDIOMS})

    def forward(self, x: Tensor) -> Tensor:
        for construct in self.each.values():
            construct(x)
        return x


class Blamed(nn.Module):
    """Some whose failure lies in one of several modules."""

    def __init__(self) -> None:
        super().__init__()
        self.by_tensor, self.by_hook = ModuleByTensor(), ForwardHook()
        self.script, self.mapped = ScriptObject(), CalledForEach()

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            child(x)
        return x


def build_blamed() -> tuple[Any, ...]:
    """A factory of `Blamed`."""
    torch.manual_seed(0)
    return Blamed().eval(), (torch.rand(3, 4) + 0.5,)


def build() -> tuple[Any, ...]:
    """What a factory returns."""
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=2, max=4096)
    return Together().eval(), (torch.rand(3, 4) + 0.5,), {}, ({0: rows},)
