"""An export under shims, and what its program computes: the numbers beside those of eager, which no shim has touched.

The program runs while the shims still hold, for one that takes a registered cache needs the registration; eager runs
before they are applied.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
from torch.utils._pytree import tree_flatten

from exportdoctor.core.outcome import Agreement
from exportdoctor.core.probe import Probe
from exportdoctor.shims import ExportCall, Inputs, applying, export_program, find, in_order
from exportdoctor.targets.eager import run_in_a_row
from exportdoctor.worker.attempting.torchscript import export_torchscript
from exportdoctor.worker.proving.comparing import difference

_SEED = 20


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One input set and what eager computes from it, in each of so many calls one after the other."""

    inputs: Inputs
    title: str
    wanted: tuple[Any, ...]
    made_up: bool = False


def cured_export(call: ExportCall, probe: Probe, *, files: Sequence[str], axes: Any) -> tuple[Agreement, ...]:
    """Export `call` under the probe's shims; with `to` = run, compare the program with eager on every input set.

    Raises what the export raises, NotApplicable and ShimTrouble.
    """
    shims = in_order([find(name, files=files, axes=axes) for name in probe.shims])
    trials = tuple(_trials(call)) if probe.to == "run" else ()
    with applying(shims, dataclasses.replace(call, options=_options(call, probe))) as given:
        if probe.exporter == "torchscript":
            export_torchscript(given.module, given.args, given.kwargs, None)
            return ()
        program = export_program(given)
        return tuple(_compared(program, given, trial) for trial in trials)


def _options(call: ExportCall, probe: Probe) -> Any:
    return dataclasses.replace(call.options, strict=probe.exporter == "export-strict")


def _trials(call: ExportCall) -> Iterator[Trial]:
    """The example, twice in a row; its sizes with other values; the other sizes. What eager refuses is left out."""
    example = (call.args, call.kwargs)
    yield Trial(inputs=example, title=_sizes(example), wanted=run_in_a_row(call.module, example, times=2))
    for other in call.more_inputs:
        yield Trial(inputs=other, title=_sizes(other), wanted=run_in_a_row(call.module, other))
    floats = _changed(example, _redrawn)
    if floats is not None and (wanted := _eager(call, floats)):
        yield Trial(inputs=floats, title=f"{_sizes(example)}, other values", wanted=wanted)
    for change in (lambda leaf: leaf.roll(1, -1), lambda leaf: leaf + 1, lambda leaf: leaf - 1):
        whole = _changed(example, partial(_renumbered, change=change))
        if whole is not None and (wanted := _eager(call, whole)):
            title = f"{_sizes(example)}, other whole numbers"
            yield Trial(inputs=whole, title=title, wanted=wanted, made_up=True)
            return


def _eager(call: ExportCall, inputs: Inputs) -> tuple[Any, ...]:
    try:
        return run_in_a_row(call.module, inputs)
    except Exception:
        return ()


def _changed(inputs: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs | None:
    """The inputs with `change` applied to their tensors; None where that changes nothing."""
    different = False

    def visit(leaf: torch.Tensor) -> torch.Tensor:
        nonlocal different
        new = change(leaf) if leaf.numel() else leaf
        different = different or (new is not leaf and not torch.equal(new, leaf))
        return new

    changed: Inputs = _mapped(copy.deepcopy(inputs), visit)
    return changed if different else None


def _mapped(value: Any, visit: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with each tensor in it visited, also those in classes that are no pytree nodes, such as caches."""
    match value:
        case torch.Tensor():
            return visit(value)
        case dict():
            for key in list(value):
                value[key] = _mapped(value[key], visit)
        case list():
            value[:] = [_mapped(item, visit) for item in value]
        case tuple():
            items = [_mapped(item, visit) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        case _ if hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module) and not callable(value):
            for name, item in list(vars(value).items()):
                object.__setattr__(value, name, _mapped(item, visit))
    return value


def _redrawn(leaf: torch.Tensor) -> torch.Tensor:
    """A floating tensor drawn anew, with its own mean and spread; any other as it is."""
    if not leaf.is_floating_point() or not bool(leaf.isfinite().all()):
        return leaf
    values = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(_SEED))
    spread = leaf.detach().std() if leaf.numel() > 1 else leaf.detach().abs().max()
    drawn = values.to(device=leaf.device, dtype=leaf.dtype) * spread + leaf.detach().mean()
    return drawn.requires_grad_(leaf.requires_grad)


def _renumbered(leaf: torch.Tensor, *, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A tensor of whole numbers with others in it; any other as it is."""
    if leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool or not leaf.dim():
        return leaf
    return change(leaf)


def _compared(program: Any, given: ExportCall, trial: Trial) -> Agreement:
    row = Agreement(inputs=trial.title, made_up=trial.made_up)
    try:
        answers = run_in_a_row(program.module(), given.convert(copy.deepcopy(trial.inputs)), times=len(trial.wanted))
    except Exception as error:
        lines = str(error).strip().splitlines()
        trouble = f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
        return msgspec.structs.replace(row, trouble=trouble, refused=True)
    rows = [_agreement(row, answer, want) for answer, want in zip(answers, trial.wanted, strict=True)]
    if rows[0].holds and not rows[-1].holds:
        what = rows[-1].trouble or f"differs by {rows[-1].max_abs:.1e}"
        return msgspec.structs.replace(rows[-1], trouble=f"the second call in a row {what}: eager keeps state")
    return rows[0]


def _agreement(row: Agreement, answer: Any, want: Any) -> Agreement:
    """Leaf by leaf; told is the tensor that fits worst. A leaf that is no tensor must be equal."""
    answers, wants = tree_flatten(answer)[0], tree_flatten(want)[0]
    if len(answers) != len(wants):
        return msgspec.structs.replace(row, trouble=f"{len(answers)} outputs, and eager gives {len(wants)}")
    found: list[Agreement] = []
    for number, (one, other) in enumerate(zip(answers, wants, strict=True)):
        if not _alike(one, other):
            trouble = f"output {number} is {_kind(one)}, and eager gives {_kind(other)}"
            return msgspec.structs.replace(row, trouble=trouble)
        if isinstance(other, torch.Tensor):
            absolute, over, allowed = difference(one, other)
            found.append(msgspec.structs.replace(row, max_abs=absolute, max_rel=over, tolerance=allowed))
    return max(found or [row], key=_misfit)


def _misfit(row: Agreement) -> tuple[bool, float]:
    return not row.holds, row.max_abs / row.tolerance if row.tolerance else 0.0


def _alike(one: Any, other: Any) -> bool:
    if isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype
    return type(one) is type(other) and _equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return one is other


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{value!r:.60}"


def _sizes(inputs: Inputs) -> str:
    """The shapes of the inputs' tensors, the first few, as a row's title."""
    found = [list(leaf.shape) for leaf in tree_flatten(inputs)[0] if isinstance(leaf, torch.Tensor)]
    shapes = [" x ".join(map(str, shape)) or "scalar" for shape in found]
    return ", ".join(shapes[:6]) + (f" and {len(shapes) - 6} more" if len(shapes) > 6 else "")
