"""LSTM, GRU and RNN as scans compute what torch's own do, and export for any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from exportdoctor.shims.own.recurrent_modules import run_recurrent
from scan_steps import check_any_length, run_in_turn

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [nn.LSTM(4, 6, batch_first=True), nn.GRU(4, 6, batch_first=True, bidirectional=True)],
    ids=["LSTM", "GRU of two directions"],
)
def test_it_exports_for_any_length_and_translates(module: nn.Module, tmp_path: Path) -> None:
    check_any_length(module.eval(), "rnn-as-scan", ((2, 5), (3, 2), (4, 17)), tmp_path)
