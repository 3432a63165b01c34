"""Packed sequences kept padded: the program computes what eager does, and refuses the lengths that eager refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find

KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


class Packing(nn.Module):
    """A recurrent module over packed rows, with its state; `whole` pads to as many steps as were given."""

    def __init__(self, inner: nn.RNNBase, *, sorts: bool = False, whole: bool = True, value: float = 0.0) -> None:
        super().__init__()
        self.inner, self.sorts, self.whole, self.value = inner, sorts, whole, value

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        first = self.inner.batch_first
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=self.sorts)
        found, state = self.inner(packed)
        total = x.shape[1 if first else 0] if self.whole else None
        return *pad_packed_sequence(found, first, self.value, total), state


class Scaled(Packing):
    """The state before the first step is of the rows."""

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        start = (x.mean(1) @ x.new_ones(x.shape[-1], self.inner.hidden_size)).unsqueeze(0)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.sorts)
        found, state = self.inner(packed, start)
        return pad_packed_sequence(found, batch_first=True), state


class Listing(nn.Module):
    """Lengths as a list, and rows that differ in size."""

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_sequence([x[0], x[1, :2]], enforce_sorted=False)
        other = pack_padded_sequence(x, lengths.tolist(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(packed, total_length=9), pad_packed_sequence(other, total_length=12)


class Reading(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return pack_padded_sequence(x, lengths, batch_first=True).data.mean()


def program_of(module: nn.Module, x: Tensor, lengths: Tensor, *, dynamic: bool = True) -> Any:
    shapes: Any = {"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, "lengths": {0: Dim.DYNAMIC}} if dynamic else None
    call = ExportCall(module=module.eval(), args=(x, lengths), dynamic_shapes=shapes)
    with apply_shims([find("packed-as-padded")], call) as changed:
        return export_program(changed).module()


def check(program: Any, module: nn.Module, *given: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(program(*given), module(*given), rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_a_program_computes_what_eager_does_for_other_lengths(data: st.DataObject) -> None:
    check_drawn(data)


@pytest.mark.night
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_program_computes_what_eager_does_for_many_other_lengths(data: st.DataObject) -> None:
    check_drawn(data)


def check_drawn(data: st.DataObject) -> None:
    flag = st.booleans()
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    more = {"proj_size": 2} if kind == "LSTM" and data.draw(flag) else {}
    inner = KINDS[kind](
        3, 4, num_layers=data.draw(st.integers(1, 2)), bidirectional=data.draw(flag), batch_first=data.draw(flag),
        bias=data.draw(flag), **more,
    )  # fmt: skip
    module = Packing(inner, sorts=data.draw(flag), whole=data.draw(flag), value=data.draw(st.sampled_from((0.0, -2.5))))
    program = None
    for _ in range(4):
        steps, batch = data.draw(st.integers(2, 7)), data.draw(st.integers(2, 5))
        lengths = torch.tensor(data.draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch)))
        lengths = lengths.sort(descending=True).values if module.sorts else lengths
        x = torch.randn(*((batch, steps) if inner.batch_first else (steps, batch)), 3)
        program = program or program_of(module, x, lengths)
        check(program, module, x, lengths)


@pytest.mark.long
@pytest.mark.slow
def test_a_state_that_is_given_belongs_to_its_row() -> None:
    module = Scaled(nn.GRU(3, 4, batch_first=True))
    program = program_of(module, torch.randn(3, 5, 3), torch.tensor([2, 5, 1]))
    for lengths in ([1, 4], [6, 6], [3, 1]):
        check(program, module, torch.randn(2, 6, 3), torch.tensor(lengths))


def test_lengths_may_be_lists_and_sizes_fixed() -> None:
    module = Listing()
    program = program_of(module, torch.randn(2, 7, 3), torch.tensor([3, 7]), dynamic=False)
    for lengths in ([7, 1], [4, 4]):
        check(program, module, torch.randn(2, 7, 3), torch.tensor(lengths))


@pytest.mark.long
@pytest.mark.slow
def test_lengths_that_eager_refuses_are_refused() -> None:
    for sorts, refused in ((True, ([2, 0], [6, 2], [2, 3], [3])), (False, ([2, -1], [1, 6]))):
        module = Packing(nn.GRU(3, 4, batch_first=True), sorts=sorts)
        program = program_of(module, torch.randn(2, 5, 3), torch.tensor([5, 2]))
        for lengths in refused:
            for one in (module, program):
                with pytest.raises((RuntimeError, ValueError, AssertionError)):
                    one(torch.randn(2, 5, 3), torch.tensor(lengths))


def test_code_that_reads_the_fields_of_a_packed_sequence_is_not_cured() -> None:
    with pytest.raises(NotImplementedError, match="`data` of a PackedSequence"):
        program_of(Reading(), torch.randn(2, 5, 3), torch.tensor([5, 2]))


@pytest.mark.long
@pytest.mark.slow
def test_it_is_for_modules_that_pack_and_leaves_nothing_behind() -> None:
    shim = find("packed-as-padded")
    with (
        pytest.raises(NotApplicable, match="packs sequences"),
        apply_shims([shim], ExportCall(module=nn.GRU(2, 2), args=())),
    ):
        pass
    program_of(Packing(nn.GRU(3, 4, batch_first=True)), torch.randn(2, 5, 3), torch.tensor([5, 2]))
    packed = pack_padded_sequence(torch.randn(5, 2, 3), torch.tensor([5, 2]))
    assert type(packed) is PackedSequence
    assert type(nn.GRU(3, 4)(packed)[0]) is PackedSequence
