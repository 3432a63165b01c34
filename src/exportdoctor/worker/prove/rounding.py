"""How far rounding alone moves eager's answer: beyond what a proof allows, no program can be held to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.report.wording.export import MOVED_BY_ROUNDING, WIDENED_TO_ROUNDING, left_out_by_chance
from exportdoctor.targets.built import Inputs
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class
from exportdoctor.worker.prove.compare_outputs import compare_outputs, tensors_in
from exportdoctor.worker.prove.eager_trace import PASSED_ON
from exportdoctor.worker.prove.input_set import InputSet, run_in_eager

_UNITS, _UNITS_OF_HALVES = 16, 1
"""By so many units in the last place each operator's result is off at most; operators sum float16 and bfloat16 in
float32, and round once."""

_HALVES = (torch.float16, torch.bfloat16)

_RUNS = 4
"""At most; the first that moves so far as the program differs ends them."""

_SEED = 20


class RoundingNoise(dispatch_mode_class()):  # type: ignore[misc]
    """Changes each floating-point result that an operator computes by up to `units` in its last place, by chance.

    Another order of a sum over thousands of terms changes a result by some tens of units, one of float16 or bfloat16 by
    no more than one.
    """

    def __init__(self, units: float, seed: int) -> None:
        super().__init__()
        self._units = units
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor) or not result.is_floating_point() or is_fake(result) or result.is_meta:
            return result
        if func.__name__.partition(".")[0] in PASSED_ON or func._schema.returns[0].alias_info is not None:
            return result
        units = min(self._units, _UNITS_OF_HALVES) if result.dtype in _HALVES else self._units
        most = units * torch.finfo(result.dtype).eps
        dtype = torch.float64 if result.dtype == torch.float64 else torch.float32
        noise = torch.empty(result.shape, dtype=dtype, device=result.device)
        noise.uniform_(1 - most, 1 + most, generator=self._generator(result.device))
        return (result * noise).to(result.dtype)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device=device).manual_seed(self._seed)
        return self._generators[device]


def leave_out_rounding(
    module: torch.nn.Module, sets: Sequence[InputSet], rows: Sequence[Agreement]
) -> tuple[list[InputSet], list[Agreement], str]:
    """The sets and their rows without the drawn sets on which a program differs by no more than rounding moves eager's
    own answer, and what is said of these. Call it while no shim is active."""
    pairs, out = [], []
    for one, row in zip(sets, rows, strict=True):
        asked = one.made_up and not row.holds and not row.trouble and not _has_halves(one)  # these were asked before
        if asked and _misfit(row) <= _misfit_of_rounding(module, one, _misfit(row)):
            out.append(one.title)
        else:
            pairs.append((one, row))
    said = left_out_by_chance(out, MOVED_BY_ROUNDING) if out else ""
    return [one for one, _ in pairs], [row for _, row in pairs], said


def widen_to_rounding(module: torch.nn.Module, sets: Sequence[InputSet], rows: Sequence[Agreement]) -> list[Agreement]:
    """The rows; where outputs in float16 or bfloat16 differ by no more than rounding moves eager's own, that is their
    tolerance: through tens of layers it exceeds what a proof allows by the dtype. Call it while no shim is active."""

    def widen(one: InputSet, row: Agreement) -> Agreement:
        if row.holds or row.trouble or not _has_halves(one):
            return row
        moved = _misfit_of_rounding(module, one, _misfit(row))
        if _misfit(row) > moved:
            return row
        note = "; ".join(filter(None, (row.note, WIDENED_TO_ROUNDING)))
        return msgspec.structs.replace(row, tolerance=row.tolerance * moved, note=note)

    return [widen(one, row) for one, row in zip(sets, rows, strict=True)]


def _has_halves(one: InputSet) -> bool:
    return any(tensor.dtype in _HALVES for tensor in tensors_in([result.output for result in one.results]))


def _misfit_of_rounding(module: torch.nn.Module, one: InputSet, enough: float) -> float:
    """How far rounding moves eager's answers to the set, as a multiple of what a proof allows; 0 if not beyond that.
    Some run's, if it is `enough`; else that of the run that moves most."""
    most = 0.0
    if one.with_gradients:  # such answers are of another forward than the one that runs here
        return most
    for run in range(_RUNS):
        row = run_rounded(module, one, seed=_SEED + run)
        if row is not None and not row.holds:
            most = max(most, _misfit(row))
        if most >= enough:
            break
    return most


def run_rounded(module: torch.nn.Module, one: InputSet, *, seed: int) -> Agreement | None:
    """How far eager's first answer to the set moves where each operator's result is off by rounding; None if eager
    fails so."""

    def call(given: Inputs) -> Any:
        with RoundingNoise(_UNITS, seed):
            return module(*given[0], **given[1])

    again = run_in_eager(module, one.calls[:1], how=call)
    if again is None:
        return None
    found, wanted = (tensors_in(results[0].output) for results in (again, one.results))
    return compare_outputs(one.title, found, wanted)


def _misfit(row: Agreement) -> float:
    return row.max_abs / (row.tolerance or 1)
