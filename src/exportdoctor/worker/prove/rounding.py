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
from exportdoctor.targets.eager import CallResult
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class
from exportdoctor.torch_internals.trees import tree_map
from exportdoctor.worker.prove.compare_outputs import compare_outputs, least_allowed, tensors_in
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

_Runs = dict[tuple[tuple[int, ...], int, bool], list[torch.Tensor] | None]
"""What eager gives under noise, by the identity of the inputs of each call, the seed and whether operands have it."""


class RoundingNoise(dispatch_mode_class()):  # type: ignore[misc]
    """Changes each floating-point result that an operator computes by up to `units` in its last place, by chance; with
    `operands` what it takes as well.

    Another order of a sum over thousands of terms changes a result by some tens of units, one of float16 or bfloat16 by
    no more than one. Where terms cancel, that is a small share of the terms and a large one of the result, as if the
    operands had been rounded.
    """

    def __init__(self, units: float, seed: int, *, operands: bool = False) -> None:
        super().__init__()
        self._units = units
        self._operands = operands
        self._seed = seed
        self._places = random.Random(seed)
        self._kept: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._operands and _only_computes(func):
            args = tree_map(self._with_noise, args)
        result = func(*args, **(kwargs or {}))
        if not _has_numbers(result):
            return result
        if result._is_zerotensor():  # of forward-mode differentiation: it has no memory, and below a mode is read as if
            return result
        if func.__name__.partition(".")[0] in PASSED_ON or func._schema.returns[0].alias_info is not None:
            return result
        return self._with_noise(result)

    def _with_noise(self, value: Any) -> Any:
        """A tensor of floating-point numbers, each off by rounding; anything else as it is."""
        return (value * self._noise(value)).to(value.dtype) if _has_numbers(value) else value

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


def _has_numbers(value: Any) -> bool:
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return is_real and not is_fake(value) and not value.is_meta and value.layout == torch.strided


def _only_computes(func: Any) -> bool:
    """Whether an operator makes new results of what it takes, and writes nothing."""
    schema = func._schema
    is_passed_on = func.__name__.partition(".")[0] in PASSED_ON
    return not is_passed_on and not schema.is_mutable and all(one.alias_info is None for one in schema.returns)


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
    tolerance: through tens of layers it exceeds what a proof allows by the dtype. So it is of outputs that are small
    throughout, which may come of larger numbers. Call it while no shim is active."""

    runs: _Runs = {}  # some sets begin with the same inputs

    def widen(one: InputSet, row: Agreement) -> Agreement:
        is_small = not row.holds and is_below_floor(row, one)
        if row.holds or (row.trouble and not row.call) or not (has_halves(one) or is_small):
            return row
        moved = _misfit_of_rounding(module, one, _misfit(row), runs, call=row.call, operands=is_small)
        if _misfit(row) > moved:
            return row
        if row.call:
            row = msgspec.structs.replace(row, trouble="")
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


def is_below_floor(row: Agreement, one: InputSet) -> bool:
    """Whether the outputs differ by no more than small ones may that come of numbers near one."""
    return row.max_abs <= least_allowed(tensors_in(one.results[row.call].output))


def moves_as_far(module: torch.nn.Module, inputs: Inputs, output: Any, row: Agreement) -> bool:
    """Whether rounding alone moves `output`, eager's answer to the inputs, as far as a row says that a program differs,
    and that is no more than small outputs may. Call it while no shim is active."""
    result = CallResult(output=output, after=inputs, buffers={})
    one = InputSet(title=row.inputs, kind="example", calls=(inputs,), results=(result,))
    return widen_to_rounding(module, [one], [row])[0].holds


def _misfit_of_rounding(
    module: torch.nn.Module,
    one: InputSet,
    enough: float,
    runs: _Runs | None = None,
    *,
    call: int = 0,
    operands: bool = False,
) -> float:
    """How far rounding moves eager's answers to the set, as a multiple of what a proof allows; 0 if not beyond that.
    Some run's, if it is `enough`; else that of the run that moves most. `runs` are those that were made before. It is
    of the first call, or of `call`; `operands` are rounded, too."""
    most = 0.0
    if one.with_gradients:  # such answers are of another forward than the one that runs here
        return most
    for run in range(_RUNS):
        row = run_rounded(module, one, seed=_SEED + run, runs=runs, call=call, operands=operands)
        if row is not None and not row.holds:
            most = max(most, _misfit(row))
        if most >= enough:
            break
    return most


def run_rounded(
    module: torch.nn.Module,
    one: InputSet,
    *,
    seed: int,
    runs: _Runs | None = None,
    call: int = 0,
    operands: bool = False,
) -> Agreement | None:
    """How far eager's first answer to the set, or that to its `call`, moves where each operator's result, and what it
    takes if `operands`, is off by rounding; None if eager fails so."""
    runs = runs if runs is not None else {}
    calls = one.calls[: call + 1]
    key = (tuple(map(id, calls)), seed, operands)
    if key not in runs:
        runs[key] = _outputs_under_noise(module, calls, seed, operands=operands)
    found = runs[key]
    return None if found is None else compare_outputs(one.title, found, tensors_in(one.results[call].output))


def _outputs_under_noise(
    module: torch.nn.Module, calls: Sequence[Inputs], seed: int, *, operands: bool
) -> list[torch.Tensor] | None:
    """Those of the last of the calls."""

    def answer(given: Inputs) -> Any:
        with RoundingNoise(_UNITS, seed, operands=operands):
            return module(*given[0], **given[1])

    again = run_in_eager(module, calls, how=answer)
    return None if again is None else tensors_in(again[-1].output)


def _misfit(row: Agreement) -> float:
    return row.max_abs / (row.tolerance or 1)
