"""LSTM, GRU and RNN as scans compute what torch's own do, and export for any length."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, find
from exportdoctor.shims.own.recurrent_modules import computes_as_torch, run_recurrent
from scan_steps import check_any_length, refused_lengths, run_in_turn

KINDS: dict[str, Any] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


@st.composite
def modules(draw: st.DrawFn) -> nn.RNNBase:
    kind = draw(st.sampled_from(sorted(KINDS)))
    how: dict[str, Any] = {
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
    }
    if kind == "LSTM":
        how["proj_size"] = draw(st.integers(0, 3))
    if kind == "RNN":
        how["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    made: nn.RNNBase = KINDS[kind](3, 4, **how).eval()
    return made


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(modules(), st.booleans(), st.booleans(), st.integers(1, 5))
def test_the_steps_compute_what_torch_does(module: nn.RNNBase, batched: bool, started: bool, length: int) -> None:
    shape = ((2, length) if module.batch_first else (length, 2)) if batched else (length,)
    x = torch.randn(*shape, 3)
    layers, batch = module.num_layers * (2 if module.bidirectional else 1), (2,) if batched else ()
    states = tuple(torch.randn(layers, *batch, width) for width in (module.proj_size or 4, 4))
    state = (states if module.mode == "LSTM" else states[0]) if started else None
    with torch.no_grad():
        expected, found = module(x, state), run_recurrent(module, x, state, run=run_in_turn)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Named(nn.LSTM):
    """Other arguments and a method more; the computation is torch's."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, batch_first=True)

    def width(self) -> int:
        return self.hidden_size


class Permutes(nn.LSTM):
    def permute_hidden(self, hx: Any, permutation: Any) -> Any:
        return hx[0] * 2, hx[1]


class Checks(nn.GRU):
    def check_forward_args(self, *args: Any) -> None:
        raise ValueError("never")


class Doubles(nn.RNN):
    def forward(self, *args: Any) -> Any:
        found, state = super().forward(*args)
        return found * 2, state


class DoublesLater(Doubles):
    pass


class Looks(nn.LSTM):
    @property
    def all_weights(self) -> Any:
        return []


def with_method_of_instance() -> nn.Module:
    made = nn.LSTM(4, 4)
    made.permute_hidden = lambda hx, permutation: hx  # type: ignore[method-assign]
    return made


def with_other_weights() -> nn.Module:
    made = nn.LSTM(4, 4)
    made._flat_weights = [nn.Parameter(one * 2) for one in made.parameters()]
    return made


OTHERS: dict[str, Callable[[], nn.Module]] = {
    **{kind.__name__: functools.partial(kind, 4, 4) for kind in (Permutes, Checks, Doubles, DoublesLater, Looks)},
    "method of instance": with_method_of_instance,
    "other weights": with_other_weights,
    "parametrized": lambda: parametrizations.weight_norm(nn.LSTM(4, 4), "weight_hh_l0"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_module_with_methods_or_weights_of_its_own_stays_as_it_is(name: str) -> None:
    other = OTHERS[name]().eval()
    call = ExportCall(module=other, args=())
    with pytest.raises(NotApplicable, match="of its own"), apply_shims([find("rnn-as-scan")], call):
        pass
    both = nn.ModuleList([nn.GRU(4, 4), other])
    with apply_shims([find("rnn-as-scan")], ExportCall(module=both, args=())):
        pass


def test_a_module_whose_weights_were_set_is_torchs() -> None:
    made = nn.LSTM(4, 4)
    made.weight_ih_l0 = nn.Parameter(torch.randn(16, 4))
    assert computes_as_torch(made)
    assert computes_as_torch(copy.deepcopy(made).to(torch.float64))
    assert computes_as_torch(Named(4))


class Later(nn.Module):
    """A recurrent module over all rows but the first few."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first, self.inner = first, nn.GRU(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x[:, self.first :] if self.first else x)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1, 3])
def test_only_sequences_shorter_than_the_condition_says_are_refused(first: int) -> None:
    shim = find("rnn-as-scan")
    assert shim.soundness == "precondition"
    assert "computed from a size has at least two steps" in shim.precondition
    refused = refused_lengths(Later(first).eval(), shim.id, range(8))
    assert refused == ([first + 1] if first else [])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [nn.LSTM(4, 6, batch_first=True), nn.GRU(4, 6, batch_first=True, bidirectional=True), Named(4)],
    ids=["LSTM", "GRU of two directions", "subclass"],
)
def test_it_exports_for_any_length_and_translates(module: nn.Module, tmp_path: Path) -> None:
    check_any_length(module.eval(), "rnn-as-scan", ((2, 5), (3, 2), (4, 17)), tmp_path)
