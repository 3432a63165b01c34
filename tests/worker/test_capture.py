"""One forward records every submodule's inputs as they were before the call, and leaves the model unchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch import nn

from exportdoctor.core.protocol.scan import Captured
from exportdoctor.targets import BuiltPart
from exportdoctor.torch_internals.fake_tensors import new_fake_mode
from exportdoctor.torch_internals.pytree_registry import register_node, temporary_registrations
from exportdoctor.worker.capture.dynamic_dims import dynamic_shapes_of, each_dim, leaves_of
from exportdoctor.worker.capture.forward_hooks import add_dims, record_calls
from exportdoctor.worker.capture.session import capture_part, captured_fact
from exportdoctor.worker.capture.snapshot import CopyBudget, snapshot


class Store:
    """Stands for a cache: an object that calls write into."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []


class Writer(nn.Module):
    """Writes into what it is given, as caches are written into."""

    def forward(self, x: torch.Tensor, store: Store) -> torch.Tensor:
        store.kept.append(x)
        x.add_(1)
        return x


class Forgetful(nn.Module):
    """Leaves traces on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = Writer()
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Linear(1, 1)
        self.seen = 0

    def forward(self, x: torch.Tensor, store: Store) -> torch.Tensor:
        self.seen += 1
        self.last = x
        torch.set_grad_enabled(False)
        return self.norm(self.writer(x.clone(), store))


def test_inputs_are_those_before_the_call() -> None:
    model = Forgetful()
    calls = record_calls(model, (torch.zeros(3, 4), Store()), {}, budget=CopyBudget())
    call = calls[id(model.writer)].kept[0]
    assert torch.equal(call.args[0], torch.zeros(3, 4))
    assert call.args[1].kept == []


def test_the_model_the_inputs_and_the_grad_mode_are_left_as_they_were() -> None:
    model, x, store = Forgetful(), torch.zeros(3, 4), Store()
    before = {name: dict(child.__dict__) for name, child in model.named_modules()}
    mean = model.norm.running_mean.clone()  # type: ignore[union-attr, operator]
    record_calls(model, (x, store), {}, budget=CopyBudget())
    assert {name: dict(child.__dict__) for name, child in model.named_modules()} == before
    assert torch.equal(model.norm.running_mean, mean)  # type: ignore[arg-type]
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(x, torch.zeros(3, 4))
    assert store.kept == []
    assert torch.is_grad_enabled()
    assert not model._forward_pre_hooks


def test_a_forward_that_raises_leaves_no_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 3))
    with pytest.raises(RuntimeError):
        record_calls(model, (torch.zeros(2, 4),), {}, budget=CopyBudget())
    assert not any(child._forward_pre_hooks for child in model.modules())


def test_modules_that_are_never_called_have_no_calls() -> None:
    model = Forgetful()
    assert id(model.unused) not in record_calls(model, (torch.zeros(3, 4), Store()), {}, budget=CopyBudget())


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


def test_a_snapshot_shares_no_storage_keeps_aliases_and_containers() -> None:
    tensor = torch.arange(4)
    value = {"a": [tensor, (tensor, None)], "b": Pair(tensor, {"x": 1.5})}
    copied = snapshot(value, budget=CopyBudget())
    assert copied["a"][0] is copied["a"][1][0] is copied["b"].left
    assert copied["a"][0].data_ptr() != tensor.data_ptr()
    assert isinstance(copied["b"], Pair)
    tensor.add_(1)
    assert torch.equal(copied["a"][0], torch.arange(4))


def test_a_snapshot_keeps_what_a_tensor_says_of_itself() -> None:
    whole = torch.complex(torch.ones(2, 3), torch.ones(2, 3))
    given = [nn.Buffer(torch.ones(2)), whole.conj(), whole.conj().imag, torch.ones(2)]
    given[3].note = [given[3]]  # type: ignore[attr-defined]
    buffer, conjugate, negative, noted = snapshot(given, budget=CopyBudget())
    whole.zero_()
    assert isinstance(buffer, nn.Buffer)
    assert conjugate.is_conj()
    assert conjugate.imag.tolist() == [[-1] * 3] * 2
    assert negative.is_neg()
    assert (negative.stride(), negative.tolist()) == (given[2].stride(), [[-1] * 3] * 2)
    assert noted.note[0] is noted


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "layout": lambda fake: fake.t_(),
    "size": lambda fake: fake.resize_(5, 2),
    "gradient": lambda fake: fake.requires_grad_(True),
    "attribute": lambda fake: setattr(fake, "tag", 1),
}


@pytest.mark.parametrize("change", ["", *CHANGES])
def test_calls_with_one_fake_tensor_share_its_copy_unless_it_was_changed_between_them(change: str) -> None:
    fake, budget = new_fake_mode().from_tensor(torch.zeros(2, 3)), CopyBudget()
    first = snapshot((fake,), budget=budget)[0]
    assert first is not fake
    before = first.shape, first.stride(), first.requires_grad, dict(vars(first))
    CHANGES.get(change, lambda _: None)(fake)
    second, third = snapshot((fake, fake), budget=budget)
    assert (second.shape, second.stride(), second.requires_grad) == (fake.shape, fake.stride(), fake.requires_grad)
    assert vars(second).get("tag") == vars(fake).get("tag")
    assert second is third
    assert (second is first) == (not change)
    assert (first.shape, first.stride(), first.requires_grad, dict(vars(first))) == before


class Packed(msgspec.Struct, frozen=True):
    """Its attributes cannot be set by `object.__setattr__`."""

    x: torch.Tensor


def test_a_snapshot_copies_a_struct_of_a_layout_of_its_own() -> None:
    given = Packed(torch.ones(2))
    copied = snapshot(given, budget=CopyBudget())
    given.x.zero_()
    assert copied.x.tolist() == [1, 1]


class Chooses(nn.Module):
    """torch.cond compiles its arms in eager where it may, and then takes no hook there."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        found: torch.Tensor = torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.other(x), (x,))
        return self.before(found)


@pytest.mark.slow
@pytest.mark.parametrize("behaves", [True, False])
def test_the_arm_of_a_condition_that_runs_is_captured(behaves: bool) -> None:
    module = Chooses()
    calls = record_calls(module, (torch.ones(1, 2),), {}, budget=CopyBudget(), behaves=behaves)
    assert calls[id(module.before)].seen == 2
    assert (id(module.one) in calls) is not (id(module.other) in calls)
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in module.modules())


def test_beyond_the_budget_only_shapes_are_kept() -> None:
    budget = CopyBudget(left=1000)
    kept = snapshot((torch.ones(4096), torch.arange(4096), torch.ones(4)), budget=budget)
    assert [type(tensor).__name__ for tensor in kept] == ["FakeTensor", "Tensor", "Tensor"]
    assert kept[0].shape == (4096,)
    assert budget.faked == 1


class Sized(nn.Module):
    def forward(self, x: torch.Tensor, *, length: int, table: dict[str, torch.Tensor], **rest: Any) -> torch.Tensor:
        return x[:, :length] + table["bias"] + rest["extra"][0]


def _call(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    named = {"length": size - 1, "table": {"bias": torch.ones(1)}, "extra": (torch.ones(size - 1),)}
    return (torch.ones(2, size),), named


def test_what_differs_between_two_captures_is_dynamic() -> None:
    module = Sized()
    first = record_calls(module, *_call(5), budget=CopyBudget())
    add_dims(first, record_calls(module, *_call(8), budget=CopyBudget()))
    call = first[id(module)].kept[0]
    assert [path for path, _ in leaves_of(call.args, call.kwargs)] == [
        "args[0]", "kwargs['length']", "kwargs['table']['bias']", "kwargs['extra'][0]",
    ]  # fmt: skip
    dynamic = torch.export.Dim.DYNAMIC
    shapes = dynamic_shapes_of(module, call.args, call.kwargs, dict.fromkeys(each_dim(call.dims), dynamic))
    assert shapes == {
        "x": {1: dynamic},
        "length": dynamic,
        "table": {"bias": None},
        "rest": {"extra": ({0: dynamic},)},
    }


def test_the_shapes_of_a_named_tuple_are_written_though_its_constructor_wants_tensors() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    shapes = dynamic_shapes_of(nn.LSTM(2, 2), (packed,), {}, {(0, 0): torch.export.Dim.DYNAMIC})
    assert shapes is not None
    found: tuple[Any, ...] = tuple(shapes["input"])
    assert found == ({0: torch.export.Dim.DYNAMIC}, None, None, None)
    assert type(shapes["input"]) is type(packed)


def test_a_dynamic_size_of_one_is_taken_from_the_other_capture() -> None:
    module = Sized()
    first = record_calls(module, *_call(2), budget=CopyBudget())
    add_dims(first, record_calls(module, *_call(8), budget=CopyBudget()))
    assert first[id(module)].kept[0].args[0].shape == (2, 8)


class Held:
    """A class that pytree does not know."""

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept


def test_what_is_registered_only_for_an_export_is_told() -> None:
    @contextmanager
    def registered() -> Iterator[None]:
        with temporary_registrations(lambda: register_node(Held, lambda held: held.kept, Held)):
            yield

    def captured(**more: Any) -> Captured:
        built = BuiltPart(
            name="p", title="", module=nn.Linear(2, 2), prefix="", args=(torch.ones(3, 2),), kwargs={},
            dynamic_shapes=None, **more,
        )  # fmt: skip
        return captured_fact(capture_part(built, exporter="export"), seconds=0)

    assert (captured().registered, captured().notes) == ((), ())
    told = captured(prepare=registered)
    assert told.registered == ("Held",)
    assert "torch.export refuses Held" in told.notes[0]


class Widening(nn.Module):
    """Calls its children with rows of 40 lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.ReLU(), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.second(self.first(x[: n + 1])).sum() for n in range(40)])


def test_what_is_called_more_often_than_is_asked_is_told_in_one_note_that_holds_where_nothing_is_asked() -> None:
    """A part that exports has none of its submodules asked: "is asked with the first 32" was not true of it."""
    built = BuiltPart(
        name="p", title="", module=Widening(), prefix="", args=(torch.ones(40),), kwargs={}, dynamic_shapes=None
    )
    (note,) = captured_fact(capture_part(built, exporter="export"), seconds=0).notes
    assert note == "p: 2 submodules have more than 32 distinct calls, of which no more than 32 are asked: first, second"


class Packing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        rows, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(rows)  # type: ignore[no-any-return]


def test_a_submodule_that_takes_a_packed_sequence_is_asked_at_fixed_sizes() -> None:
    """torch puts one together of dynamic shapes, which its constructor refuses: that was told as the failure."""
    many = [(torch.ones(rows, 4, 4), torch.tensor([4, 2, 1, 3, 4][:rows])) for rows in (3, 5)]
    dims = {0: torch.export.Dim("rows")}
    built = BuiltPart(
        name="p", title="", module=Packing().eval(), prefix="", args=many[0], kwargs={}, more_inputs=((many[1], {}),),
        dynamic_shapes=(dims, dims),
    )  # fmt: skip
    facts = {one.fqn: one for one in captured_fact(capture_part(built, exporter="export"), seconds=0).modules}
    assert "PackedSequence" in facts["rnn"].at_fixed_sizes
    assert not any(one.dynamic for one in facts["rnn"].calls[0].inputs)
    assert not facts["head"].at_fixed_sizes
    assert any(one.dynamic for one in facts["head"].calls[0].inputs)


def test_hooks_do_not_use_up_the_depth_that_calls_may_have() -> None:
    limit, deep = sys.getrecursionlimit(), nn.Linear(2, 2)
    levels = limit // 5  # each takes three frames, and four with a hook
    for _ in range(levels):
        deep = nn.Sequential(deep)  # type: ignore[assignment]
    calls = record_calls(deep, (torch.ones(1, 2),), {}, budget=CopyBudget())
    assert len(calls) == levels + 1
    assert sys.getrecursionlimit() == limit
