"""A branch on a tensor's value becomes a choice where both arms only compute, and stays a branch where they do not."""

from __future__ import annotations

import ast
import copy
import io
import itertools
import logging
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers.modeling_outputs import BaseModelOutput

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.rules.arm_choice import ArmChoices
from exportdoctor.shims.rules.code_swap import all_code
from exportdoctor.shims.rules.own_tensors import write_counters_as_bindings
from exportdoctor.targets.factory.factory_file import import_factory_file
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.describe.python_frames import is_user_frame, tracebacks


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


torch.export.register_dataclass(Pair, serialized_type_name="test_branch.Pair")


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


@pytest.mark.slow
@pytest.mark.parametrize("make", [hooked, with_forward_of_its_own, several_of_one_code])
def test_functions_that_modules_were_given_are_rewritten(make: Callable[[Tensor], nn.Module]) -> None:
    call = call_of(lambda: make(torch.tensor(2.0)))
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for x in (torch.ones(5, 4), -torch.ones(2, 4), torch.zeros(3, 4)):
        torch.testing.assert_close(program(x), call.module(x))


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


@pytest.mark.slow
def test_functions_that_forward_makes_and_names_of_the_class_alone() -> None:
    call = call_of(InsideAndOut)
    before = InsideAndOut.forward.__code__
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    assert InsideAndOut.forward.__code__ is before
    for scale in (-20.0, -1.0, 0.0, 0.5, 2.0, 20.0):
        for x in (torch.full((5, 4), scale), torch.linspace(-scale, scale, 8).reshape(2, 4)):
            torch.testing.assert_close(program(x), call.module(x))


@pytest.mark.slow
def test_comments_and_strings_at_the_margin_are_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "margins.py"
    file.write_text(
        "from torch import nn\n"
        "class Margins(nn.Module):\n"
        "    def forward(self, x):\n"
        "#        x = x + 1\n"
        "        if x.sum() > 0:\n"
        "            return x * 2\n"
        '        note = """of\nthe other side"""\n'
        "        return x - len(note)\n"
    )
    call = call_of(import_factory_file(file).Margins)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for x in (torch.ones(5, 4), -torch.ones(2, 4)):
        torch.testing.assert_close(program(x), call.module(x))


@pytest.mark.slow
@pytest.mark.parametrize("make", [Early, Several, Named, Asked, Calling, Telling, Numbered])
def test_the_program_answers_as_eager_on_both_sides_of_each_branch(make: Callable[[], nn.Module]) -> None:
    call = call_of(make)
    with pytest.raises(Exception, match=r"data-dependent"):
        export_program(call)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for values in (row for row in VALUES if row.shape[0] > 1):
        torch.testing.assert_close(program(values), call.module(values))


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: Record(Row), lambda: Record(Pair), OutputObject])
def test_arms_may_make_objects_that_hold_their_results(make: Callable[[], nn.Module]) -> None:
    call = call_of(make)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for values in (row for row in VALUES if row.shape[0] > 1):
        found, wanted = program(values), call.module(values)
        assert type(found) is type(wanted)
        torch.testing.assert_close(tree_leaves(found), tree_leaves(wanted))


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
            x = self._apply_to(x)
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


ATTACKS = [
    WrittenAfterAChoice, WrittenByAModule, WrittenBufferAfter, WrittenUnderAnotherName, WrittenByItsCaller,
    WrittenAsOut, WrittenThroughOneOfTwoNames, Appended, FieldSetAfter, WritingModule, WritingFunction,
    WritingStatistics, MethodWithATensorsName, OperatorThatCounts, SecondOfOneClass, PropertyThatCounts,
    MethodOfAnotherClass, OtherOrder, NotBound, SignOfZero,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("make", ATTACKS)
def test_a_choice_that_something_else_sees_is_refused_or_right(make: Callable[[], nn.Module]) -> None:
    call, eager = call_of(make), copy.deepcopy(call_of(make).module)
    rows = [row for row in VALUES if row.shape[0] > 1]
    wanted = [copy.deepcopy(eager)(values.clone()) for values in rows]
    try:
        with apply_shims([find("branch-as-where")], call) as given:
            program = export_program(given).module()
    except NotApplicable:
        return
    except Exception as error:
        if "data-dependent" not in str(error):
            raise
        return
    for values, answer in zip(rows, wanted, strict=True):
        torch.testing.assert_close(copy.deepcopy(program)(values.clone()), answer, equal_nan=True)


def test_whole_numbers_are_compared_with_floats_as_in_python() -> None:
    class Large(nn.Module):
        def forward(self, n: Tensor, x: Tensor) -> Tensor:
            return torch.ones(2) if n.item() > x.item() else torch.zeros(2)

    call = ExportCall(module=Large(), args=(torch.tensor(3), torch.tensor(2.0, dtype=torch.float64)))
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    assert program(torch.tensor(1), torch.tensor(2.0, dtype=torch.float64)).sum() == 0
    with pytest.raises(RuntimeError, match=r"beyond 2\*\*53"):
        program(torch.tensor(2**53 + 1), torch.tensor(2.0**53, dtype=torch.float64))


@pytest.mark.long
@pytest.mark.slow
def test_an_arm_that_refuses_the_values_of_the_other_is_computed_only_when_it_is_taken() -> None:
    """In a process of its own, as an attempt is: in one that has run many other tests dynamo was seen to take some
    function inside the arms for one that it skips, for a reason that is not known."""
    code = "import test_branch as own\nfor one in (own.LookingUp, own.Finding, own.Dividing, own.Undefined):\n"
    code += "    own.check_taken_arm(one)\n"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def check_taken_arm(make: Callable[[], nn.Module]) -> None:
    """The program computes one arm of each branch."""
    call = call_of(make)
    with apply_shims([find("branch-as-where")], call) as given:
        exported = export_program(given)
    assert any(node.target is torch.ops.higher_order.cond for node in exported.graph.nodes)
    program = exported.module()
    for values in (row for row in VALUES if row.shape[0] > 1):
        torch.testing.assert_close(program(values), call.module(values))


@pytest.mark.parametrize("make", [LookingUp, Finding, Dividing, Undefined])
def test_where_torch_does_not_take_such_an_arm_the_shim_does_not_apply(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both arms would raise for values that eager takes, or give what it does not."""

    def refuse(*args: object) -> None:
        raise RuntimeError("not supported")

    monkeypatch.setattr(torch, "cond", refuse)
    with pytest.raises(NotApplicable, match=r"may refuse values.*RuntimeError"):  # noqa: SIM117
        with apply_shims([find("branch-as-where")], call_of(make)) as given:
            export_program(given)


def test_a_branch_that_no_eager_run_reached_is_not_merged_where_an_arm_may_refuse_values() -> None:
    choices = ArmChoices()

    class Unseen(nn.Module):
        def forward(self, x: Tensor, places: Tensor) -> Tensor:
            return choices.choose("unseen", places.max() < 3, lambda: x[places], lambda: x[:2])  # type: ignore[no-any-return]

    choices.codes.update(all_code(Unseen.forward.__code__))
    with pytest.raises(NotApplicable, match="no eager run"):
        torch.export.export(Unseen(), (torch.randn(3, 4), torch.tensor([2, 0])))
    assert choices.refused


@pytest.mark.slow
@pytest.mark.parametrize("make", [Early, Several, Named, Calling, Telling, Numbered])
def test_arms_that_can_always_be_computed_need_no_cond(make: Callable[[], nn.Module]) -> None:
    call = call_of(make)
    with apply_shims([find("branch-as-where")], call) as given:
        exported = export_program(given)
    assert not any(node.target is torch.ops.higher_order.cond for node in exported.graph.nodes)


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


def test_a_number_that_is_read_is_compared_as_python_compares_it() -> None:
    x = torch.full((1, 1), 0.1)
    call = ExportCall(module=Compared(), args=(x, torch.tensor(5, dtype=torch.uint8)))
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for value in (0, 66, 67, 86, 99, 100, 255):
        inputs = torch.full((1, 1), 0.1 * (value > 0)), torch.tensor(value, dtype=torch.uint8)
        torch.testing.assert_close(program(*inputs), call.module(*inputs))


class ComparedWithTensor(nn.Module):
    """A float that is read is compared in the dtype of the tensor; with whole numbers, in the default dtype."""

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y = torch.ones(2) if x.item() >= other else torch.zeros(2)
        return y if other == x.item() else y + 2


@pytest.mark.parametrize(
    ("x", "other"),
    [
        (torch.tensor(16777216.0), torch.tensor(16777217)),
        (torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.1)),
        (torch.tensor(0.1, dtype=torch.float64), torch.tensor([0.1])),
        (torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64)),
        (torch.tensor(1.001), torch.tensor(1.0, dtype=torch.float16)),
        (torch.tensor(1.0), torch.tensor(True)),
    ],
)
def test_a_float_that_is_read_is_compared_with_a_tensor_as_torch_compares_it(x: Tensor, other: Tensor) -> None:
    call = ExportCall(module=ComparedWithTensor(), args=(x + 1, other))
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for number in (x, x + 1, x - 1):
        torch.testing.assert_close(program(number, other), call.module(number, other))


class Choosing(nn.Module):
    """What counts is the value of `n or m`, and not its truth."""

    def forward(self, x: Tensor, n: Tensor, m: Tensor) -> Tensor:
        return x + 1 if (n or m) > 3 else x


def test_a_condition_that_needs_the_value_of_an_or_stays_a_branch() -> None:
    call = ExportCall(module=Choosing(), args=(torch.ones(2), torch.tensor(1), torch.tensor(5)))
    with pytest.raises(Exception, match="data-dependent"), apply_shims([find("branch-as-where")], call) as given:
        export_program(given)


@pytest.mark.parametrize("make", [Remembering, Writing, WritingLater, Raising, Calculating, Printing])
def test_an_arm_that_does_more_than_compute_is_left_alone(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(NotApplicable), apply_shims([find("branch-as-where")], call_of(make)):
        pass


class Worded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        reduction = "mean" if x.sum().item() > 1 else "sum"
        return nn.functional.mse_loss(x, x * 2, reduction=reduction)


class OfTwoTypes(nn.Module):
    """A tensor of whole numbers would be promoted by one of them alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.int64) * (2 if x.sum().item() > 1 else 0.5)


@pytest.mark.parametrize("make", [Worded, OfTwoTypes])
def test_what_cannot_be_chosen_between_fails_as_without_the_shim(make: Callable[[], nn.Module]) -> None:
    """With the same words, from the same function: another failure would be told as hidden by the first."""
    call = call_of(make)
    with pytest.raises(Exception, match="data-dependent") as without:
        export_program(call)
    with (
        apply_shims([find("branch-as-where")], call) as given,
        pytest.raises(Exception, match="data-dependent") as with_it,
    ):
        export_program(given)
    places = []
    for raised in (without, with_it):
        frames = (link for link in tracebacks(raised.value) if is_user_frame(link.tb_frame))
        *_, last = [one for one in frames if one.tb_frame.f_code.co_filename == __file__]
        places.append((last.tb_frame.f_code.co_qualname, last.tb_lineno, str(raised.value).splitlines()[0]))
    assert places[0] == places[1]


def test_results_of_other_sizes_cannot_be_chosen_between() -> None:
    call = call_of(Growing)
    with apply_shims([find("branch-as-where")], call) as given, pytest.raises(Exception, match="data-dependent"):
        export_program(given)


def test_the_code_is_as_before_when_the_shim_is_left() -> None:
    code, names = Several.forward.__code__, set(globals())
    with apply_shims([find("branch-as-where")], call_of(Several)):
        assert Several.forward.__code__ is not code
        for values in VALUES:  # what is known is decided as before
            assert torch.isfinite(Several()(values)).all()
    assert Several.forward.__code__ is code
    assert set(globals()) == names


def _program_of(depth: int, shape: tuple[bool, ...]) -> str:
    """A function with branches one after the other and inside each other, of the given shape."""
    lines = ["def forward(self, x):", "    y = x * 1"]
    for number in range(depth):
        lines += [f"    if (x > {number - 1}).{'any' if shape[0] else 'all'}():", f"        y = y + {number + 1}"]
        if shape[1]:
            lines += [f"        if x.sum() > {number}:", "            y = y * 2", "        else:"]
            lines += ["            z = y - x", "            y = z / 2"]
        if shape[2]:
            lines += ["    else:", f"        y = y.abs() if x.min() < -{number} else y - 3"]
    return "\n".join([*lines, "    return y", ""])


@pytest.mark.slow
@pytest.mark.parametrize("shape", list(itertools.product((True, False), repeat=3)))
def test_branches_in_any_arrangement_agree_with_eager(shape: tuple[bool, ...], tmp_path: Path) -> None:
    path = tmp_path / "generated.py"
    path.write_text(_program_of(2, shape))
    kind = type("Generated", (nn.Module,), {"forward": runpy.run_path(str(path))["forward"]})
    call = call_of(kind)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for values in (row for row in VALUES if row.shape[0] > 1):
        torch.testing.assert_close(program(values), call.module(values))


def test_a_name_that_a_pattern_binds_is_no_counter() -> None:
    """Adding to it writes into a tensor that has another name."""
    source = (
        "def forward(x):\n    n = 0\n    match [x.clone()]:\n        case [n]:\n            pass\n"
        "    z = n\n    n += 1\n    return z\n"
    )
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    write_counters_as_bindings(node)
    assert "n += 1" in ast.unparse(node)
    plain = ast.parse("def forward(x):\n    n = 0\n    n += 1\n    return n").body[0]
    assert isinstance(plain, ast.FunctionDef)
    write_counters_as_bindings(plain)
    assert "n = n + 1" in ast.unparse(plain)
