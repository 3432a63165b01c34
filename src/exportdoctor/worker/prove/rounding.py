"""How far rounding alone moves eager's answer: beyond what a proof allows, no program can be held to it."""

from __future__ import annotations

import random
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

_FEWEST_KEPT, _MOST_KEPT = 1 << 12, 1 << 23
"""Elements of a result: noise is drawn once, and each result takes others of it; longer results have their own."""

_Runs = dict[tuple[int, int], list[torch.Tensor] | None]
"""What eager gives under noise, by the identity of the inputs and the seed."""


class RoundingNoise(dispatch_mode_class()):  # type: ignore[misc]
    """Changes each floating-point result that an operator computes by up to `units` in its last place, by chance.

    Another order of a sum over thousands of terms changes a result by some tens of units, one of float16 or bfloat16 by
    no more than one.
    """

    def __init__(self, units: float, seed: int) -> None:
        super().__init__()
        self._units = units
        self._seed = seed
        self._places = random.Random(seed)
        self._kept: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor) or not result.is_floating_point() or is_fake(result) or result.is_meta:
            return result
        if result._is_zerotensor():  # of forward-mode differentiation: it has no memory, and below a mode is read as if
            return result
        if func.__name__.partition(".")[0] in PASSED_ON or func._schema.returns[0].alias_info is not None:
            return result
        return (result * self._noise(result)).to(result.dtype)

    def _noise(self, result: torch.Tensor) -> torch.Tensor:
        """Factors for the elements of a result."""
        dtype, device, length = result.dtype, result.device, result.numel()
        if length > _MOST_KEPT:
            return self._draw(length, dtype, device).view(result.shape)
        kept = self._kept.get((device, dtype))
        if kept is None or kept.numel() < 2 * length:
            kept = self._kept[device, dtype] = self._draw(
                1 << (max(length, _FEWEST_KEPT).bit_length() + 1), dtype, device
            )
        first = self._places.randrange(kept.numel() - length + 1)
        return kept[first : first + length].view(result.shape)

    def _draw(self, length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        generator = torch.Generator(device=device).manual_seed(self._seed)
        units = min(self._units, _UNITS_OF_HALVES) if dtype in _HALVES else self._units
        most = units * torch.finfo(dtype).eps
        noise = torch.empty(length, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=device)
        return noise.uniform_(1 - most, 1 + most, generator=generator)


def leave_out_rounding(
    module: torch.nn.Module, sets: Sequence[InputSet], rows: Sequence[Agreement]
) -> tuple[list[InputSet], list[Agreement], str]:
    """The sets and their rows without the drawn sets on which a program differs by no more than rounding moves eager's
    own answer, and what is said of these. Call it while no shim is active."""
    pairs, out = [], []
    for one, row in zip(sets, rows, strict=True):
        asked = one.made_up and not row.holds and not row.trouble and not has_halves(one)  # these were asked before
        if asked and _misfit(row) <= _misfit_of_rounding(module, one, _misfit(row)):
            out.append(one.title)
        else:
            pairs.append((one, row))
    said = left_out_by_chance(out, MOVED_BY_ROUNDING) if out else ""
    return [one for one, _ in pairs], [row for _, row in pairs], said


def widen_to_rounding(module: torch.nn.Module, sets: Sequence[InputSet], rows: Sequence[Agreement]) -> list[Agreement]:
    """The rows; where outputs in float16 or bfloat16 differ by no more than rounding moves eager's own, that is their
    tolerance: through tens of layers it exceeds what a proof allows by the dtype. Call it while no shim is active."""

    runs: _Runs = {}  # some sets begin with the same inputs

    def widen(one: InputSet, row: Agreement) -> Agreement:
        if row.holds or row.trouble or not has_halves(one):
            return row
        moved = _misfit_of_rounding(module, one, _misfit(row), runs)
        if _misfit(row) > moved:
            return row
        note = "; ".join(filter(None, (row.note, WIDENED_TO_ROUNDING)))
        return msgspec.structs.replace(row, tolerance=row.tolerance * moved, note=note)

    return [widen(one, row) for one, row in zip(sets, rows, strict=True)]


def excuse_rounding(module: torch.nn.Module, sets: Sequence[InputSet], rows: Sequence[Agreement]) -> list[Agreement]:
    """As `widen_to_rounding`, for drawn sets in any dtype: what rounding moves by itself is its tolerance there."""
    rows = widen_to_rounding(module, sets, rows)
    kept, _, _ = leave_out_rounding(module, sets, rows)
    moved = {id(one) for one in sets} - {id(one) for one in kept}
    return [
        msgspec.structs.replace(row, tolerance=max(row.tolerance, row.max_abs), note=MOVED_BY_ROUNDING)
        if id(one) in moved
        else row
        for one, row in zip(sets, rows, strict=True)
    ]


def has_halves(one: InputSet) -> bool:
    """Whether an output is in float16 or bfloat16."""
    return any(tensor.dtype in _HALVES for tensor in tensors_in([result.output for result in one.results]))


def _misfit_of_rounding(module: torch.nn.Module, one: InputSet, enough: float, runs: _Runs | None = None) -> float:
    """How far rounding moves eager's answers to the set, as a multiple of what a proof allows; 0 if not beyond that.
    Some run's, if it is `enough`; else that of the run that moves most. `runs` are those that were made before."""
    most = 0.0
    if one.with_gradients:  # such answers are of another forward than the one that runs here
        return most
    for run in range(_RUNS):
        row = run_rounded(module, one, seed=_SEED + run, runs=runs)
        if row is not None and not row.holds:
            most = max(most, _misfit(row))
        if most >= enough:
            break
    return most


def run_rounded(module: torch.nn.Module, one: InputSet, *, seed: int, runs: _Runs | None = None) -> Agreement | None:
    """How far eager's first answer to the set moves where each operator's result is off by rounding; None if eager
    fails so."""
    runs = runs if runs is not None else {}
    key = (id(one.inputs), seed)
    if key not in runs:
        runs[key] = _outputs_under_noise(module, one.inputs, seed)
    found = runs[key]
    return None if found is None else compare_outputs(one.title, found, tensors_in(one.results[0].output))


def _outputs_under_noise(module: torch.nn.Module, inputs: Inputs, seed: int) -> list[torch.Tensor] | None:
    def call(given: Inputs) -> Any:
        with RoundingNoise(_UNITS, seed):
            return module(*given[0], **given[1])

    again = run_in_eager(module, [inputs], how=call)
    return None if again is None else tensors_in(again[0].output)


def _misfit(row: Agreement) -> float:
    return row.max_abs / (row.tolerance or 1)
