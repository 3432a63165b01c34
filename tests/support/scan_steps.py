"""Steps of scans: run one after the other in Python, and modules whose loops a shim makes scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.worker.translate.onnx_session import OnnxSession


class RowsDiffer(RuntimeError):
    """Rows of several shapes, for which there is no scan: an export of it fails."""


def run_in_turn(step: Callable[..., Any], state: Sequence[Tensor], rows: Sequence[Tensor], length: int) -> Any:
    """What a scan means."""
    made = []
    for index in range(length):
        state, outputs = step(state, tuple(one[index] for one in rows))
        made.append(outputs)
        if any(one.shape != other.shape for one, other in zip(outputs, made[0], strict=True)):
            raise RowsDiffer
    return state, tuple(torch.stack(column) for column in zip(*made, strict=True))


def check_any_length(module: nn.Module, shim: str, sizes: Sequence[tuple[int, int]], folder: Path) -> None:
    """The module, of inputs (batch, steps, 4), fixes its steps without the shim; with it the program and its ONNX file
    agree with eager at these sizes."""
    call = ExportCall(
        module=module, args=(torch.randn(2, 5, 4),), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    )  # fmt: skip
    with pytest.raises(Exception, match="Constraints violated"):
        export_program(call)
    with torch.no_grad(), apply_shims([find(shim)], call) as changed:
        program = export_program(changed)
        made = torch.onnx.export(program, dynamo=True, verbose=False)
        assert made is not None
        made.save(str(folder / "scan.onnx"))
    session = OnnxSession(folder / "scan.onnx")
    for batch, steps in sizes:
        x = torch.randn(batch, steps, 4)
        with torch.no_grad():
            expected = module(x)
        torch.testing.assert_close(program.module()(x), expected, rtol=1e-4, atol=1e-5)
        parts = expected if isinstance(expected, tuple) else (expected,)
        flat = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
        torch.testing.assert_close(list(session.run([x])), flat, rtol=1e-4, atol=1e-5)


def refused_lengths(module: nn.Module, shim: str, lengths: Sequence[int]) -> list[int]:
    """The lengths of inputs (2, length, 4) that eager takes and the program refuses; at all others both agree."""
    call = ExportCall(module=module, args=(torch.randn(2, 9, 4),), dynamic_shapes=({1: Dim.DYNAMIC},))
    with torch.no_grad(), apply_shims([find(shim)], call) as changed:
        program = export_program(changed).module()
    refused = []
    for length in lengths:
        x = torch.randn(2, length, 4)
        try:
            with torch.no_grad():
                expected = module(x)
        except RuntimeError:
            continue
        try:
            with torch.no_grad():
                found = program(x)
        except (AssertionError, IndexError, RuntimeError):
            refused.append(length)
            continue
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    return refused
