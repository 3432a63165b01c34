"""The table of exporters: every name that the type allows has a row, and a function that exports."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import nn

from exportdoctor.core.exporters import EXPORTERS, Exporter
from exportdoctor.worker.attempt.export_attempt import EXPORTER_CALLS


class Box:
    """A class that no exporter knows."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class ReturnsBox(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Box(x + 1)


def test_every_exporter_has_its_row_and_its_function() -> None:
    assert tuple(EXPORTERS) == get_args(Exporter) == tuple(EXPORTER_CALLS)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_an_exporter_exports_a_layer_and_refuses_an_output_of_unknown_class(exporter: str) -> None:
    call, inputs = EXPORTER_CALLS[exporter], (torch.randn(2, 3),)
    program = call(nn.Linear(3, 4), inputs, {}, None)
    assert isinstance(program, torch.export.ExportedProgram) is EXPORTERS[exporter].makes_program
    with pytest.raises(Exception, match=r"Box|Only tuples|type"):
        call(ReturnsBox(), inputs, {}, None)
