"""Modules that branch on a tensor's value, with arms that only compute and arms that do more."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers.modeling_outputs import BaseModelOutput

from exportdoctor.shims import ExportCall, apply_shims, export_program, find


class Early(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if not (x > 0).any():
            return torch.zeros_like(x)
        y = self.proj(x)
        return y * 2


class Several(nn.Module):
    """A conditional expression, `and` with a size, a chained comparison and `elif`."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.abs() if (x < 0).all().item() else x.neg()
        if 0 < x.sum() < 10 and x.shape[0] > 2:
            y = y + 1
        elif x.sum() > 10:
            y = y - 5
        return y


class Named(nn.Module):
    """The condition is a number that was read before; each arm binds a name of its own."""

    def forward(self, x: Tensor) -> Tensor:
        large = x.max().item() > 3
        if large:
            half = x / 2
            y = half - 1
        else:
            more = x + 1
            y = more * 3
        return y


class Telling(nn.Module):
    """A branch that only tells, over several lines, and one that computes and tells."""

    def forward(self, x: Tensor) -> Tensor:
        low = x.var()
        if (low < 1e-9).any() or ~torch.isfinite(low).any():
            warnings.warn("The variance is close to zero", stacklevel=2)
        if x.max() > 3:
            logging.getLogger(__name__).warning("large: %s", x.shape)
            x = x.clamp(max=3)
        elif x.max() < -3:
            print("small")
        return x / (low + 1)


class Asked(nn.Module):
    """Truth by `is_nonzero`, and of some or all of the columns."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2 if torch.is_nonzero(x.sum().clamp(min=0)) else x + 1
        if any(column > 3 for column in x.sum(0)):
            y = y - 1
        if not all([bool((column < 9).any()) and column.sum() > -50 for column in x.T]):  # noqa: C419
            y = y * 5
        if any([x.sum() > 99, (x < -40).any()]) or not all(((x < 99).all(), True)):
            x = x - 8
        if (x > 40).any().is_nonzero() or any(column is None for column in x.T):
            y = y / 2
        if 5.0 in x and x.argmax() % 4 not in (1, 2):
            y = y + 7
        if x.argmin().item() % 4 in {0, 3} or x.min().item() in [-5.0, x.shape[0]]:
            y = y - 9
        return y


def _shift(x: Tensor) -> Tensor:
    low = x.min()
    return x - low


class Numbered(nn.Module):
    """Numbers of Python: as a factor, which does not change the dtype, as an exponent, a size, a sign and a flag."""

    def forward(self, x: Tensor) -> Tensor:
        factor = 2 if x.sum().item() > 1 else 3
        sign = -1.0 if (x < 0).all() else 0.5
        rows = x.shape[0]
        if x.max() > 3:
            rows = 1
        large = True if x.max() > 8 else False  # noqa: SIM210
        y = x.to(torch.bfloat16) * factor + sign
        if large:
            y = y**factor
        return torch.cat([y[:rows].float().sum(0)[None], x * large])


class Guarded(nn.Module):
    """A tensor of no dimension beside a number of Python, on either side, in a tuple, and a flag."""

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().max() if x.abs().max() > 1 else 1
        low, high = (0.5, x.max()) if x.sum() > 2 else (x.min(), 2)
        seen = (x > 3).any() if x.mean() > 0 else False
        least = x.std() if x.std() > 1e-3 else 1e-3
        return torch.cat([x / scale / least, x.to(torch.bfloat16).float() * low + high, x * seen])


class Chained(nn.Module):
    """Choices within choices, in either arm and in a condition."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum()
        y = x * 2 if total > 2 else x + 1 if total > 0 else x.abs() if x.min() < -2 else -x
        z = (x - 1 if x.max() > 3 else x - 2) if total > 1 else x - 3
        return torch.cat([y, z * 2 if (x.max() if total > 0 else x.min()) > 1 else z])


class Appending(nn.Module):
    """Both arms append to one list, also in branches inside; one of two lists gets none."""

    def forward(self, x: Tensor) -> Tensor:
        rows = [x[0]]
        for place in range(1, 3):
            row = x[place % x.shape[0]]
            if rows[-1].abs().max() > 2:
                row = row * 2
                if row.sum() > 3:
                    rows.append(row)
                else:
                    row = row + 1
                    rows.append(row * 3)
            else:
                rows.append(rows[-1] + row)
        return torch.stack(rows)


class Found(nn.Module):
    """The variable of a loop is read where a value has left the loop, or none did."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for place in range(4):
            if x[0, place] > 2:
                break
        for number, factor in enumerate((1.0, 2.0, 3.0)):  # noqa: B007
            if x.sum() * factor > 5:
                x = x + 1
                break
        return x[:, place] * factor, x[0, 0] + number


class Calling(nn.Module):
    """An arm that calls a function of the user's and a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = self.norm(_shift(x))
        return x


class Remembering(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.count = 3
            x = x + 1
        return x


class Writing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        if x.sum() > 0:
            z = y.add_(1)
            y = z * 1
        return y


class WritingLater(nn.Module):
    """What is chosen would be a copy, and the write would be lost to `x`."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        y = x
        if x.sum() > 0:
            y = x + 0
        y[0] = 7.0
        return x


class Raising(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 100:
            raise ValueError("too large")
        return x


class Printing(nn.Module):
    """To a file that is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.file = io.StringIO()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            print("large", file=self.file)
            x = x + 1
        return x * len(self.file.getvalue())


class Calculating(nn.Module):
    """The helper appends to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def note(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = self.note(x)
        return x


class Growing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = torch.cat([x, x])
        return x


class LookingUp(nn.Module):
    """The arm that is not taken would read beyond the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        places = x[:, 0].abs().to(torch.int64)
        if places.max() < 4:
            found = self.table(places)
            y = found + x
        else:
            y = x
        return y * 2


class Finding(nn.Module):
    """What is found has a size of its own, and its maximum does not exist where nothing is found."""

    def forward(self, x: Tensor) -> Tensor:
        if (x > 2).any():
            return x - x[x > 2].max()
        return x


class Dividing(nn.Module):
    """By zero, and the conditions stand inside each other."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum().to(torch.int64)
        if total != 0:
            y = x + 7 // total
            if total > 4:
                y = y * 3
        else:
            y = x.t().contiguous().t()
        return y


class Undefined(nn.Module):
    """The root of negative numbers is NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt() if (x >= 0).all() else x - 1


VALUES = tuple(
    torch.tensor(rows).reshape(-1, 4)
    for rows in ([1.0, -2.0, 3.0, 5.0], [-1.0] * 8, [0.1] * 12, [9.0] * 12, [0.0] * 8, [4.0, -4.0] * 6)
)


class Row(NamedTuple):
    scaled: Tensor
    shifted: Tensor


@dataclass
class Pair:
    scaled: Tensor
    shifted: Tensor


torch.export.register_dataclass(Pair, serialized_type_name="branching_models.Pair")


class Record(nn.Module):
    """Each arm makes an object that only holds its results."""

    def __init__(self, kind: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            return self.kind(x * 2, x + 1)
        return self.kind(x / 2, x - 1)


class OutputObject(nn.Module):
    def forward(self, x: Tensor) -> BaseModelOutput:
        if x.sum() > 0:
            return BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x, x + 1))
        return BaseModelOutput(last_hidden_state=x / 2, hidden_states=(x - 1, x))


def call_of(make: Callable[[], nn.Module]) -> ExportCall:
    torch.manual_seed(0)
    return ExportCall(module=make().eval(), args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))


def hooked(x: Tensor) -> nn.Module:
    """Its hook is a function inside another, which closed over a tensor."""

    def double(module: nn.Module, given: Any, made: Tensor) -> Tensor:
        if made.sum() > 0:
            return made * x
        return made

    module = nn.Linear(4, 4)
    module.register_forward_hook(double)
    return nn.Sequential(module)


def with_forward_of_its_own(x: Tensor) -> nn.Module:
    def forward(self: Any, given: Tensor) -> Tensor:
        made = nn.functional.linear(given, self.weight)
        return made * x if made.sum() > 0 else made

    module = nn.Linear(4, 4)
    module.forward = MethodType(forward, module)  # type: ignore[method-assign]
    return nn.Sequential(module)


def several_of_one_code(x: Tensor) -> nn.Module:
    made = (hooked(x * times) for times in (1, 2))
    return nn.Sequential(*made)


class InsideAndOut(nn.Module):
    """Branches in forward and in functions that it makes at each call, one of which closes over another's result."""

    def __init__(self) -> None:
        super().__init__()
        self.__scale = 3

    def __halve(self, x: Tensor) -> Tensor:
        return x / 2 if x.min() < 0 else x

    def forward(self, x: Tensor) -> Tensor:
        limit = x.shape[0]

        def clip(y: Tensor, times: int = 2) -> Tensor:
            def inner(z: Tensor) -> Tensor:
                if z.mean() > limit:
                    z = z - limit
                return z

            made = inner(y)
            if y.sum() > 9:
                return made * times
            return y

        if x.max() > 1:
            x = x + self.__scale
        return self.__halve(clip(x))


class Attack(nn.Module):
    """What is chosen is a copy, and both arms are computed: something else sees that."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.tail = nn.ReLU(inplace=True), nn.Sequential(nn.Hardtanh(inplace=True))
        self.register_buffer("last", torch.zeros(1, 4))
        self.register_buffer("mean", torch.zeros(4))
        self.count = 0

    last: Tensor
    mean: Tensor

    @property
    def tick(self) -> int:
        self.count += 1
        return self.count

    def _apply_to(self, x: Tensor) -> Tensor:
        self.last = self.last + 1
        return x


class WrittenAfterAChoice(Attack):
    def forward(self, x: Tensor) -> Tensor:
        h = x * 1
        y = h if x.sum() > 0 else h * 2
        y[:, 0] = 7.0
        return h + y


class WrittenByAModule(Attack):
    def forward(self, x: Tensor) -> Tensor:
        h = x * 1
        y = h + 1
        if x.sum() < 0:
            y = h
        y = self.relu(y)
        return y + h


class WrittenBufferAfter(Attack):
    def forward(self, x: Tensor) -> Tensor:
        before = self.last if x.sum() > 0 else x[:1]
        self.last.copy_(x[:1] + 3)
        return x - before


class WrittenUnderAnotherName(Attack):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        y = x
        if x.sum() > 0:
            y = x * 2
        x += 1
        return y


def _pick(x: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return one if x.sum() > 0 else other


class WrittenByItsCaller(Attack):
    def forward(self, x: Tensor) -> Tensor:
        one, other = x * 1, x * 2
        _pick(x, one, other).add_(1)
        return one - other


class WrittenAsOut(Attack):
    def forward(self, x: Tensor) -> Tensor:
        h = x * 1
        y = h
        if x.sum() > 0:
            y = h + 5
        torch.add(x, 1, out=y)
        return h


class WrittenThroughOneOfTwoNames(Attack):
    def forward(self, x: Tensor) -> Tensor:
        a = b = x
        if x.sum() > 0:
            a = x * 2
            b = a
        else:
            a = x * 3
            b = a
        for one in [a]:
            one.add_(1)
        return b


class Appended(Attack):
    def forward(self, x: Tensor) -> Tensor:
        one, other = [x], [x * 2]
        chosen = one if x.sum() > 0 else other
        chosen.append(x * 3)
        return torch.stack([torch.stack(one).sum(0), torch.stack(other).sum(0)])


class FieldSetAfter(Attack):
    """The object of one arm is older than the branch."""

    def forward(self, x: Tensor) -> Tensor:
        one, other = Pair(x, x + 1), Pair(x * 2, x - 1)
        chosen = one if x.sum() > 0 else other
        chosen.scaled = x * 3
        return one.scaled + 5 * other.scaled


class WritingModule(Attack):
    def forward(self, x: Tensor) -> Tensor:
        h = x * 1
        y = h
        if x.sum() > 0:
            y = self.tail(h) + 1
        return y + h


class WritingFunction(Attack):
    def forward(self, x: Tensor) -> Tensor:
        h = x * 1
        y = h
        if x.sum() > 0:
            y = torch.nn.functional.threshold(h, 0.5, 9.0, True)
        return y + h


class WritingStatistics(Attack):
    def forward(self, x: Tensor) -> Tensor:
        y = x
        if x.sum() > 0:
            y = torch.nn.functional.batch_norm(x, self.mean, torch.ones(4), training=True)
        return y + self.mean


class Bag:
    def __init__(self) -> None:
        self.items: list[Tensor] = []

    def add(self, value: Tensor) -> Tensor:
        self.items.append(value)
        return value

    def __mul__(self, value: Tensor) -> Tensor:
        return self.add(value)


class MethodWithATensorsName(Attack):
    def forward(self, x: Tensor) -> Tensor:
        bag, y = Bag(), x
        if x.sum() > 0:
            y = bag.add(x * 2)
        return y + len(bag.items)


class OperatorThatCounts(Attack):
    def forward(self, x: Tensor) -> Tensor:
        bag, y = Bag(), x
        if x.sum() > 0:
            y = bag * (x * 2)
        return y + len(bag.items)


class Rated:
    """Its method is pure where its function is."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def mul(self, value: Tensor) -> Tensor:
        return self.function(value)


class SecondOfOneClass(Attack):
    def forward(self, x: Tensor) -> Tensor:
        bag, y = Bag(), x
        one, other = Rated(_shift), Rated(bag.add)
        if x.sum() > 0:
            y = one.mul(x) + other.mul(x)
        return y + len(bag.items)


class PropertyThatCounts(Attack):
    def forward(self, x: Tensor) -> Tensor:
        y = x
        if x.sum() > 0:
            y = x + self.tick
        return y + self.count


class Child(Attack):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = self._apply_to(x) * 1
        return x + self.last


class MethodOfAnotherClass(Attack):
    """The module around it has a harmless method of that name."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Child()

    def _apply_to(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.child(x))


class OtherOrder(Attack):
    """One arm raises wherever it is not taken, and its dict is in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Embedding(2, 4)

    def _pick(self, x: Tensor) -> dict[str, Tensor]:
        places = x[:, 0].abs().to(torch.int64)
        if places.max() < 2:
            return {"scale": self.small(places), "shift": x * 1}
        return {"shift": x * 1, "scale": x * 2}

    def forward(self, x: Tensor) -> Tensor:
        found = self._pick(x * 5)
        return found["shift"] + 3 * found["scale"]


class NotBound(Attack):
    def forward(self, x: Tensor) -> Tensor:
        try:
            if x.sum() > 0:
                y = x * 2
            return y + 0
        except UnboundLocalError:
            return x - 100


class SignOfZero(Attack):
    def forward(self, x: Tensor) -> Tensor:
        sign = 0.0 if x.sum() > 0 else -0.0
        return 1 / (x.abs() * sign + sign)


class WrittenBefore(Attack):
    """All writes are over where the branch begins, also through another name."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        other = y
        y[0] = 0.5
        y.add_(1)
        other[x > 1] = 0.25
        y = y * 2 if y.sum() > 2 else other
        if y.mean() > 1:
            y = y - 1
        return y, other


class WrittenInAList(Attack):
    """torch counts no write by this while it exports; on the example the other arm is taken."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        other = y
        if not (x == 42.0).any():
            y = y * 2
        torch._foreach_add_([other], 1.0)
        return y


class NormalisedLater(Attack):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        told = self.mean
        if not (x == 42.0).any():
            told = told * 0.5
        y = nn.functional.batch_norm(x, self.mean, self.var, training=True)  # type: ignore[arg-type]
        return y, told * 1.0


class WrittenBeforeAndAfter(Attack):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        y[0] = 0.5
        other = y
        if y.sum() > 2:
            y = y * 2
        y[1] = 7.0
        return y, other


class WrittenInEachRound(Attack):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        for place in range(2):
            y[place] = 0.5
            if y.sum() > 2:
                y = y * 2
        return y


class WrittenByAnInnerFunction(Attack):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()

        def write() -> None:
            y[0] = 0.5

        other = y
        if y.sum() > 2:
            y = y * 2
        write()
        return y, other


_WRITTEN = "a tensor is written into that a branch on values has chosen"
_MORE = "no function branches on a tensor's value with arms that only compute"
BRANCHES = "data-dependent"
"""What torch says of a branch that stays one."""

ATTACKS: dict[type[nn.Module], str] = {
    WrittenAfterAChoice: _WRITTEN,
    WrittenByAModule: _WRITTEN,
    WrittenBufferAfter: _WRITTEN,
    WrittenUnderAnotherName: _WRITTEN,
    WrittenByItsCaller: _WRITTEN,
    WrittenAsOut: _WRITTEN,
    WrittenThroughOneOfTwoNames: _WRITTEN,
    WrittenBefore: "",
    WrittenInAList: _WRITTEN,
    NormalisedLater: _WRITTEN,
    WrittenBeforeAndAfter: _MORE,
    WrittenInEachRound: _MORE,
    WrittenByAnInnerFunction: _MORE,
    Appended: BRANCHES,
    FieldSetAfter: BRANCHES,
    WritingModule: _MORE,
    WritingFunction: _MORE,
    WritingStatistics: _MORE,
    MethodWithATensorsName: BRANCHES,
    OperatorThatCounts: BRANCHES,
    SecondOfOneClass: BRANCHES,
    PropertyThatCounts: BRANCHES,
    MethodOfAnotherClass: "",
    OtherOrder: "may refuse values for which it is not taken",
    NotBound: _MORE,
    SignOfZero: "",
}
"""With what each is refused; nothing where there is a program, which is right."""


def check_taken_arm(make: Callable[[], nn.Module]) -> None:
    """The program computes one arm of each branch."""
    call = call_of(make)
    with apply_shims([find("branch-as-where")], call) as given:
        exported = export_program(given)
    assert any(node.target is torch.ops.higher_order.cond for node in exported.graph.nodes)
    program = exported.module()
    for values in (row for row in VALUES if row.shape[0] > 1):
        torch.testing.assert_close(program(values), call.module(values))


class Compared(nn.Module):
    """Python's numbers have 64 bits: not uint8 that overflows, nor 0.1 and 16,777,217 as float32."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        if n.item() * 3 > 200:
            x = x + 1
        if x[0, 0].item() > 0.1:
            x = x + 10
        if n.to(torch.int32).item() + 16777117 > 16777216.5:
            x = x + 100
        return x + 1000 if not (n.item() or x.sum()) else x


class ComparedWithTensor(nn.Module):
    """A float that is read is compared in the dtype of the tensor; with whole numbers, in the default dtype."""

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y = torch.ones(2) if x.item() >= other else torch.zeros(2)
        return y if other == x.item() else y + 2


class Choosing(nn.Module):
    """What counts is the value of `n or m`, and not its truth."""

    def forward(self, x: Tensor, n: Tensor, m: Tensor) -> Tensor:
        return x + 1 if (n or m) > 3 else x
