"""LSTM, GRU and RNN over a dynamic sequence: torch.export takes their steps apart, which fixes how many there are.

Here the steps are torch's scan. The formulas are those of the documentation of `torch.nn.LSTM`, `torch.nn.GRU` and
`torch.nn.RNN`; the products with the inputs of all steps are taken at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.loops.scanned_loops import scan
from exportdoctor.torch_internals.module_proxies import original_module, state_id

if TYPE_CHECKING:
    from torch import Tensor, nn

Run = Callable[[Any, Sequence[Any], Sequence[Any], Any], tuple[Any, Any]]
"""Runs a step for each row and carries state, as `scan` does."""


def run_recurrent(
    module: nn.RNNBase,
    given: Tensor,
    state: Any = None,
    *,
    batch_first: bool | None = None,
    alive: Tensor | None = None,
    run: Run = scan,
) -> tuple[Tensor, Any]:
    """What an LSTM, a GRU or an RNN computes of tensors, in evaluation mode.

    `given` is (steps, batch, width), (batch, steps, width) with `batch_first` (the module's own where it is None), or
    (steps, width) without a batch; `state` and the results are those of the module's forward. A row of the batch keeps
    its state at steps where `alive`, bool (steps, batch), is False; what comes out there has no meaning.
    """
    import torch

    is_lstm, batched = module.mode == "LSTM", given.dim() == 3
    swapped = batched and (module.batch_first if batch_first is None else batch_first)
    steps = given if batched else given.unsqueeze(1)
    steps = steps.transpose(0, 1) if swapped else steps
    directions = 2 if module.bidirectional else 1
    starts = _first_states(module, steps, state, is_lstm=is_lstm, batched=batched, count=module.num_layers * directions)
    last: list[tuple[Tensor, ...]] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            weights = _weights(module, f"_l{layer}" + "_reverse" * direction)
            place = layer * directions + direction
            rows = [one.flip(0) if direction else one for one in (steps, alive) if one is not None]
            found, end = _run_layer(module.mode, rows, tuple(one[place] for one in starts), weights, run)
            outputs.append(found.flip(0) if direction else found)
            last.append(end)
        steps = torch.cat(outputs, dim=-1) if directions == 2 else outputs[0]
    ends = [torch.stack(column) for column in zip(*last, strict=True)]
    ends = ends if batched else [one.squeeze(1) for one in ends]
    output = steps.transpose(0, 1) if swapped else steps if batched else steps.squeeze(1)
    return output, tuple(ends) if is_lstm else ends[0]


def _first_states(
    module: nn.RNNBase, steps: Tensor, state: Any, *, is_lstm: bool, batched: bool, count: int
) -> tuple[Tensor, ...]:
    """The states before the first step: (layers * directions, batch, width) each."""
    if state is not None:
        given = tuple(state) if is_lstm else (state,)
        return given if batched else tuple(one.unsqueeze(1) for one in given)
    hidden = steps.new_zeros(count, steps.shape[1], module.proj_size or module.hidden_size)
    return (hidden, steps.new_zeros(count, steps.shape[1], module.hidden_size)) if is_lstm else (hidden,)


def _weights(module: nn.RNNBase, suffix: str) -> dict[str, Any]:
    return {name: getattr(module, f"{name}{suffix}", None) for name in
            ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")}  # fmt: skip


def _run_layer(
    mode: str, rows: Sequence[Tensor], state: tuple[Tensor, ...], weights: dict[str, Any], run: Run
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs of all steps, and the last state. `rows` are what is given, and which rows are alive, if any end."""
    import torch
    from torch.nn import functional

    products = functional.linear(rows[0], weights["weight_ih"], weights["bias_ih"])
    cell = {"LSTM": _lstm_cell, "GRU": _gru_cell}.get(mode) or _plain_cell(mode)

    def step(before: tuple[Tensor, ...], rows: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        of_state = functional.linear(before[0], weights["weight_hh"], weights["bias_hh"])
        after = cell(rows[0], of_state, before, weights)
        for alive in rows[1:]:
            after = tuple(torch.where(alive.unsqueeze(-1), *both) for both in zip(after, before, strict=True))
        return after, (after[0],)

    last, (outputs,) = run(step, state, (products, *rows[1:]), products.shape[0])
    return outputs, last


def _lstm_cell(
    given: Tensor, of_state: Tensor, before: tuple[Tensor, ...], weights: dict[str, Any]
) -> tuple[Tensor, ...]:
    from torch.nn import functional

    admit, forget, candidate, show = (given + of_state).chunk(4, dim=-1)
    cell = forget.sigmoid() * before[1] + admit.sigmoid() * candidate.tanh()
    hidden = show.sigmoid() * cell.tanh()
    narrow = weights["weight_hr"]
    return (hidden if narrow is None else functional.linear(hidden, narrow)), cell


def _gru_cell(
    given: Tensor, of_state: Tensor, before: tuple[Tensor, ...], weights: dict[str, Any]
) -> tuple[Tensor, ...]:
    (reset, update, new), (reset_too, update_too, new_too) = given.chunk(3, dim=-1), of_state.chunk(3, dim=-1)
    keep = (update + update_too).sigmoid()
    fresh = (new + (reset + reset_too).sigmoid() * new_too).tanh()
    return (fresh + keep * (before[0] - fresh),)


def _plain_cell(mode: str) -> Callable[..., tuple[Tensor, ...]]:
    def cell(given: Tensor, of_state: Tensor, before: object, weights: object) -> tuple[Tensor, ...]:
        both = given + of_state
        return (both.tanh() if mode == "RNN_TANH" else both.relu(),)

    return cell


def computes_as_torch(module: nn.RNNBase) -> bool:
    """Whether its forward is that of torch's documentation with its attributes as weights.

    It is not where a subclass or the instance has other methods than torch's, nor where other tensors than the
    attributes are in the list from which torch's forward takes its weights.
    """
    module = original_module(module)
    torchs = next(kind for kind in type(module).__mro__ if kind in recurrent_kinds())
    between = type(module).__mro__[: type(module).__mro__.index(torchs)]
    own = {name for one in between for name, value in vars(one).items() if hasattr(value, "__get__")} - {"__init__"}
    own |= {name for name in vars(module) if callable(getattr(torchs, name, None))}
    if any(hasattr(torchs, name) for name in own):
        return False
    attributes = [getattr(module, name, None) for name in module._flat_weights_names]
    return module._weights_have_changed() or all(map(operator.is_, module._flat_weights, attributes))


def recurrent_kinds() -> tuple[type[nn.RNNBase], ...]:
    """The recurrent modules of torch."""
    from torch import nn

    return (nn.LSTM, nn.GRU, nn.RNN)


def _forward_of(plain: Callable[..., Any], others: frozenset[int]) -> Callable[..., Any]:
    """The forward in which a symbolic number of steps is scanned, but in modules whose `state_id` is in `others`."""
    import torch

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        is_tensor = isinstance(input, torch.Tensor)
        length = input.shape[1 if self.batch_first and input.dim() == 3 else 0] if is_tensor else 0
        if state_id(self) in others or not isinstance(length, torch.SymInt) or (self.training and self.dropout):
            return plain(self, input, hx)
        return run_recurrent(self, input, hx)

    return forward


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = [one for one in call.module.modules() if isinstance(one, recurrent_kinds())]
    others = frozenset(state_id(one) for one in found if not computes_as_torch(one))
    if len(others) == len({state_id(one) for one in found}):
        own = "each LSTM, GRU and RNN of the module has methods or weights of its own"
        raise NotApplicable(own if others else "the module has no LSTM, GRU or RNN")
    with ExitStack() as stack:
        for kind in recurrent_kinds():
            stack.enter_context(patch_attribute(kind, "forward", _forward_of(kind.forward, others)))
        yield call


SHIM = Shim(
    id="rnn-as-scan",
    title="Runs the steps of LSTM, GRU and RNN over a dynamic sequence as a scan",
    soundness="precondition",
    enter=_enter,
    does=(
        "torch.export takes the steps of a recurrent module apart, which fixes the length of the sequence. Here "
        "torch's scan runs them, whose program holds for any length; only a length that is computed from a size "
        "(`x[:, 1:]`) must be two or more. torch.onnx translates it to ONNX's Scan. A module that overrides torch's "
        "methods, or has other weights than its attributes, stays as it is."
    ),
    precondition=(
        "a sequence whose length is computed from a size has at least two steps; the program refuses a shorter one"
    ),
    cures=(Cure(kinds=("dynamic_dim_specialised",)),),
    needs={"torch": ">=2.13"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html",
    retire="torch.export keeps the sequence of recurrent modules dynamic",
    rank=22,
    replaces=(
        Replacement(
            target="torch.nn.LSTM.forward, and those of GRU and RNN",
            before="outputs, state = self.lstm(x)\n",
            after="outputs, state = run_recurrent(self.lstm, x)\n",
        ),
    ),
)
