"""Packed sequences: torch.export cannot tell how many rows each of their steps has.

Here rows stay padded between `pack_padded_sequence` and `pad_packed_sequence`. LSTM, GRU and RNN go over all steps, and
the state of a row stays as it is after the row's last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.own.lists_of_values import tensor_of
from exportdoctor.shims.own.recurrent_modules import computes_as_torch, recurrent_kinds, run_recurrent
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import all_code, swap_code, user_functions

if TYPE_CHECKING:
    from torch import Tensor

_PACKING = frozenset({"pack_padded_sequence", "pack_sequence"})


class PaddedSequence:
    """Stands for a PackedSequence: `rows` are (steps, batch, *), and `lengths` int64 (batch,).

    It has none of the attributes of a PackedSequence, whose values would be others.
    """

    def __init__(self, rows: Tensor, lengths: Tensor) -> None:
        self.rows, self.lengths = rows, lengths

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        from torch.nn.utils.rnn import PackedSequence

        return PackedSequence

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"`{name}` of a PackedSequence is not known while its rows stay padded")

    def __iter__(self) -> Any:
        raise NotImplementedError("the fields of a PackedSequence are not known while its rows stay padded")


def alive_rows(rows: Tensor, lengths: Tensor) -> Tensor:
    """Which rows have not ended at each step, bool (steps, batch)."""
    import torch

    steps = torch.arange(rows.shape[0], device=rows.device)
    return steps.unsqueeze(1) < lengths.to(rows.device).unsqueeze(0)


def pack_rows(given: Tensor, lengths: Any, batch_first: bool, enforce_sorted: bool) -> PaddedSequence:
    """As `torch.nn.utils.rnn.pack_padded_sequence`; what it refuses of the lengths is asserted."""
    import torch

    rows = given.transpose(0, 1) if batch_first else given
    if (remembered := tensor_of(lengths)) is not None:
        lengths = remembered
    if not isinstance(lengths, torch.Tensor):
        lengths = torch.stack([torch.scalar_tensor(one, dtype=torch.int64) for one in lengths])
    lengths = lengths.to(torch.int64)
    if lengths.dim() != 1 or lengths.device.type != "cpu":
        raise RuntimeError("`lengths` of a packed sequence must be a CPU tensor of one dimension")
    torch._check(lengths.shape[0] == rows.shape[1], lambda: "a packed sequence has one length for each row")
    assert_all = torch.ops.aten._assert_async.msg
    assert_all((lengths > 0).all(), "the length of a packed row is not positive")
    assert_all((lengths <= rows.shape[0]).all(), "the length of a packed row exceeds the steps")
    if enforce_sorted:
        assert_all((lengths == lengths.sort(descending=True).values).all(), "the lengths of packed rows are not sorted")
    return PaddedSequence(rows, lengths)


def pad_rows(packed: Any, batch_first: bool, padding_value: float, total_length: Any) -> tuple[Tensor, Tensor]:
    """As `torch.nn.utils.rnn.pad_packed_sequence`, with as many steps as the longest row or `total_length`."""
    import torch
    from torch.nn import functional

    if type(packed) is not PaddedSequence:
        raise NotImplementedError("a PackedSequence that was not packed by pack_padded_sequence in forward")
    rows, lengths = packed.rows, packed.lengths
    alive = alive_rows(rows, lengths)
    padded = torch.where(alive.reshape(*alive.shape, *[1] * (rows.dim() - 2)), rows, padding_value)
    if total_length is None:
        longest: Any = lengths.max().item()
        torch._check(longest >= 1)
        torch._check(longest <= rows.shape[0])
        padded = padded.narrow(0, 0, longest)
    else:
        fits = (lengths <= total_length).all()
        torch.ops.aten._assert_async.msg(fits, "total_length is less than the length of a packed row")
        added = [0, 0] * (rows.dim() - 1) + [0, total_length - rows.shape[0]]
        padded = functional.pad(padded, added, value=padding_value)
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def _pack(input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> Any:
    return pack_rows(input, lengths, batch_first, enforce_sorted)


def _pad(sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: Any = None) -> Any:
    return pad_rows(sequence, batch_first, padding_value, total_length)


def _forward_of(plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        if type(input) is not PaddedSequence:
            return plain(self, input, hx)
        if not computes_as_torch(self):
            raise NotImplementedError(f"{type(self).__name__} has methods or weights of its own")
        if self.training and self.dropout:
            raise NotImplementedError("dropout between the layers of a recurrent module in training mode")
        alive = alive_rows(input.rows, input.lengths)
        rows, state = run_recurrent(self, input.rows, hx, batch_first=False, alive=alive)
        return PaddedSequence(rows, input.lengths), state

    return forward


def _packs(code: CodeType) -> bool:
    return any(not _PACKING.isdisjoint(one.co_names) for one in all_code(code))


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    from torch.nn.utils import rnn

    if next(user_functions(call, _packs), None) is None:
        raise NotApplicable("no function of the module packs sequences")
    codes: dict[Any, CodeType] = {rnn.pack_padded_sequence: _pack.__code__, rnn.pad_packed_sequence: _pad.__code__}
    with ExitStack() as stack:
        stack.enter_context(swap_code(codes, {"pack_rows": pack_rows, "pad_rows": pad_rows}))
        for kind in recurrent_kinds():
            stack.enter_context(patch_attribute(kind, "forward", _forward_of(kind.forward)))
        yield call


SHIM = Shim(
    id="packed-as-padded",
    title="Keeps packed sequences padded, and runs LSTM, GRU and RNN over them as a scan",
    soundness="precondition",
    enter=_enter,
    does=(
        "How many rows each step of a packed sequence has depends on the lengths, which are unknown during export. "
        "Here rows stay padded between `pack_padded_sequence` and `pad_packed_sequence`: torch's scan runs all steps "
        "of a recurrent module, and the state of a row stays as it is after its last step. Lengths that torch refuses "
        "are refused by assertions. Code that reads the fields of a PackedSequence is not cured."
    ),
    precondition=(
        "a sequence whose length is computed from a size has at least two steps; the program refuses a shorter one"
    ),
    cures=(
        Cure(where=r"pack_padded_sequence|pad_packed_sequence|pack_sequence"),
        Cure(kinds=("python_error",), message=r"zeros\(\): argument 'size'.*FakeTensor"),
    ),
    needs={"torch": ">=2.13"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pack_padded_sequence.html",
    retire="torch.export traces packed sequences",
    rank=22,
    replaces=(
        Replacement(
            target="torch.nn.utils.rnn.pack_padded_sequence and pad_packed_sequence, and LSTM, GRU and RNN",
            before="packed = pack_padded_sequence(x, lengths)\noutputs, state = self.lstm(packed)\n",
            after=(
                "alive = arange(x.shape[0])[:, None] < lengths\n"
                "outputs, state = run_recurrent(self.lstm, x, alive=alive)\n"
            ),
        ),
    ),
)
