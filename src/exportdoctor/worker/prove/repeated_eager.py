"""Whether eager answers a set alike when it is called again: what draws by chance, or reads memory that nobody wrote,
does not. No program can be held to such an answer."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import torch

from exportdoctor.core.errors import TargetError
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.report.wording.export import (
    DRAWS_IN_PYTHON,
    FIX_CHANCE,
    FIX_RANDOM,
    GIVE_OTHER_INPUTS,
    NAN_OUTPUTS,
    NO_OUTPUTS,
    OTHER_RANDOM_NUMBERS,
    RANDOM_EAGER,
    holds_nan,
    left_out_by_chance,
    random_eager,
)
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.eager import CallResult, run_calls
from exportdoctor.targets.plain_state import without_writes
from exportdoctor.worker.prove.compare_calls import does_nothing
from exportdoctor.worker.prove.compare_outputs import same_outputs
from exportdoctor.worker.prove.input_set import InputSet, says_nothing
from exportdoctor.worker.prove.unused_draws import states_of_generators, uses_draws


def why_unrepeatable(module: torch.nn.Module, one: InputSet) -> str:
    """Empty where eager answers the set as before, else what is said of it. New memory is full of NaN and largest
    numbers then, the state of torch's random numbers is the same. Call it while no shim is active."""
    try:
        with _filled_memory():
            if all(map(same_outputs, run_calls(module, one.calls), one.results)):
                return ""
            again = run_calls(module, one.calls, notes_state=True)
    except Exception:  # a number that nobody wrote may be an index out of range
        return RANDOM_EAGER
    for place, (before, now) in enumerate(zip(one.results, again, strict=True)):
        why = why_unlike(module, before, now)
        if why and not before.numbers:  # its state was not noted: what changes from now on is named
            later = run_calls(module, one.calls, notes_state=True)[place]
            why = why_unlike(module, replace(before, numbers=now.numbers), replace(now, numbers=later.numbers))
        if why:
            return why
    return RANDOM_EAGER


def why_unlike(module: torch.nn.Module, before: CallResult, again: CallResult) -> str:
    """Empty where eager gave the same for an equal call after the module was restored, else what is said of it."""
    if same_outputs(again, before):
        return ""
    restored = {f"{path}.{name}".lstrip(".") for path, one in module.named_modules() for name in vars(one)}
    left = {name: value for name, value in again.numbers.items() if before.numbers.get(name, value) != value}
    return random_eager([name for name in left if name not in restored or without_writes(left[name])])


def repeatable_sets(part: BuiltPart, sets: Sequence[InputSet]) -> tuple[tuple[InputSet, ...], str]:
    """The sets that eager answers alike again, and what is said of the others and of chance; empty where there is
    none.

    Raises TargetError where the example is one of those.
    """
    before = states_of_generators()
    with part.prepare():
        asked = [("" if one.with_gradients else why_unrepeatable(part.module, one), one) for one in sets]
    if asked[0][0]:
        raise TargetError(f"Nothing can be compared with eager: {asked[0][0]}", hint=FIX_CHANCE)
    if all(says_nothing(result.output) for result in sets[0].results):
        hint = holds_nan(names) if (names := _names_with_nan(part.module)) else GIVE_OTHER_INPUTS
        raise TargetError(f"Nothing can be compared with eager: {NAN_OUTPUTS}", hint=hint)
    if all(map(does_nothing, sets[0].calls, sets[0].results)):
        raise TargetError(f"Nothing can be compared with eager: {NO_OUTPUTS}", hint=GIVE_OTHER_INPUTS)
    others = [(why, one.title) for why, one in asked if why]
    drew = states_of_generators() != before
    draws = DRAWS_IN_PYTHON if drew and uses_draws(lambda: run_calls(part.module, sets[0].calls * 2)) else ""
    notes = filter(None, (draws, _left_out(others)))
    return tuple(one for why, one in asked if not why), "; ".join(notes)


def _names_with_nan(module: torch.nn.Module) -> list[str]:
    """The parameters and buffers that hold NaN; a buffer may hold it on purpose, as a mask does."""
    state = itertools.chain(module.named_parameters(), module.named_buffers())
    floats = ((name, one) for name, one in state if one.is_floating_point() or one.is_complex())
    return [name for name, one in floats if bool(one.isnan().any())]


def refuse_random(part: BuiltPart, example: InputSet) -> None:
    """Raise TargetError where eager answers the example otherwise with other random numbers of torch's. An exported
    program draws the same ones as eager; ONNX Runtime has its own."""
    with part.prepare(), torch.random.fork_rng(devices=()):
        torch.manual_seed(torch.initial_seed() + 1)
        others = run_calls(part.module, example.calls)
    if not all(map(same_outputs, others, example.results)):
        raise TargetError(f"Nothing can be compared with eager: {OTHER_RANDOM_NUMBERS}", hint=FIX_RANDOM)


def leave_out_chance(
    module: torch.nn.Module, sets: Sequence[InputSet], rows: Sequence[Agreement]
) -> tuple[list[InputSet], list[Agreement], str]:
    """The sets and their rows without those that differ where eager does not repeat its own answer, and what is said of
    these. The example stays, with nothing to compare."""
    pairs, out = [], []
    for one, row in zip(sets, rows, strict=True):
        why = "" if row.holds or row.refused or row.says_nothing else why_unrepeatable(module, one)
        if not why:
            pairs.append((one, row))
        elif one.kind == "example":
            pairs.append((one, msgspec.structs.replace(row, says_nothing=True, trouble=f"{why}: nothing to compare")))
        else:
            out.append((why, one.title))
    return [one for one, _ in pairs], [row for _, row in pairs], _left_out(out)


def _left_out(out: Sequence[tuple[str, str]]) -> str:
    return left_out_by_chance([title for _, title in out], out[0][0]) if out else ""


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
