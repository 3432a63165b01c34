"""Whether eager answers a set alike when it is called again: what draws by chance, or reads memory that nobody wrote,
does not. No program can be held to such an answer."""

from __future__ import annotations

import pickle
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch

from exportdoctor.core.errors import TargetError
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.report.wording.export import DRAWS_IN_PYTHON, FIX_CHANCE, RANDOM_EAGER, left_out_by_chance
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.eager import run_calls
from exportdoctor.worker.prove.compare_outputs import compare_outputs, tensors_in
from exportdoctor.worker.prove.input_set import InputSet


def is_repeatable(module: torch.nn.Module, one: InputSet) -> bool:
    """Whether eager answers the set as before. New memory is full of NaN and largest numbers then, the state of torch's
    random numbers is the same. Call it while no shim is active."""
    try:
        with _filled_memory():
            again = run_calls(module, one.calls)
    except Exception:  # a number that nobody wrote may be an index out of range
        return False
    return all(
        compare_outputs("", tensors_in(new.output), tensors_in(old.output)).holds
        for new, old in zip(again, one.results, strict=True)
    )


def repeatable_sets(part: BuiltPart, sets: Sequence[InputSet]) -> tuple[tuple[InputSet, ...], str]:
    """The sets that eager answers alike again, and what is said of the others and of chance; empty where there is
    none.

    Raises TargetError where the example is one of those.
    """
    before = states_of_generators()
    with part.prepare():
        kept = tuple(one for one in sets if one.with_gradients or is_repeatable(part.module, one))
    if not kept or kept[0] is not sets[0]:
        raise TargetError(f"Nothing can be compared with eager: {RANDOM_EAGER}", hint=FIX_CHANCE)
    others = [one.title for one in sets if not any(one is same for same in kept)]
    draws = DRAWS_IN_PYTHON if states_of_generators() != before else ""
    return kept, "; ".join(filter(None, (draws, left_out_by_chance(others) if others else "")))


def leave_out_chance(
    module: torch.nn.Module, sets: Sequence[InputSet], rows: Sequence[Agreement]
) -> tuple[list[InputSet], list[Agreement], str]:
    """The sets and their rows without those that differ where eager does not repeat its own answer, and what is said of
    these. The example stays, with nothing to compare."""
    pairs, out = [], []
    for one, row in zip(sets, rows, strict=True):
        if row.holds or row.refused or is_repeatable(module, one):
            pairs.append((one, row))
        elif one.kind == "example":
            pairs.append((one, msgspec.structs.replace(row, trouble=f"{RANDOM_EAGER}: nothing to compare")))
        else:
            out.append(one.title)
    return [one for one, _ in pairs], [row for _, row in pairs], left_out_by_chance(out) if out else ""


def states_of_generators() -> tuple[bytes, ...]:
    """The states of the generators of Python's `random` and of NumPy."""
    numpy = sys.modules.get("numpy")
    states = (random.getstate(), numpy.random.get_state() if numpy is not None else None)
    return tuple(map(pickle.dumps, states))


@contextmanager
def _filled_memory() -> Iterator[None]:
    """With torch's deterministic algorithms, which fill new memory; an operator that has none runs as it is."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # set on the module
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
