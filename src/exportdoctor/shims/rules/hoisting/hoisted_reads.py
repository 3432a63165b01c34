"""A whole number that is read from a tensor that follows from whole numbers alone becomes the size of an input.

Python reads it, or torch where a tensor is given as a size (`tensor_sizes.py`).

Sizes can be compared, computed with and used as shapes while a program is traced, and keep their meaning for other
inputs. Reads are told apart by their place in the code and their number there. What they give for other inputs is
found by running the untouched module up to the last of them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Inputs, Named
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import all_code
from exportdoctor.shims.rules.code.number_types import symbolic_numbers
from exportdoctor.shims.rules.hoisting.clean_values import follow_values
from exportdoctor.shims.rules.hoisting.hoisted_results import (
    CONDITION,
    HoistedResult,
    describe_results,
    facts_of_results,
)
from exportdoctor.shims.rules.hoisting.more_inputs import Recorded, is_made_here, taking_more
from exportdoctor.shims.rules.numbers.number_calls import INT, as_whole, symbolic_int
from exportdoctor.shims.rules.numbers.tensor_sizes import replace_sizes
from exportdoctor.shims.searches import search_once
from exportdoctor.targets.eager import copy_inputs, restore_afterwards
from exportdoctor.torch_internals.fake_tensors import around_tolist

_READS = frozenset({"item", "tolist", "__int__"})
_MOST = 16
"""Numbers of one read; more of them are data and no sizes."""


@dataclass(frozen=True)
class _Read:
    """One read in a forward: where it is made, the how manieth there, and what it gave; `clean` if that follows from
    whole numbers alone."""

    name: str
    file: str
    line: int
    number: int
    namespace: dict[str, Any] = field(compare=False)
    has_int: bool = field(compare=False)
    """Whether the code there names `int`."""
    result: Any = field(default=None, compare=False)
    clean: bool = field(default=False, compare=False)


@contextmanager
def _watch_reads(answer: Callable[[_Read, Callable[[], Any]], Any]) -> Iterator[None]:
    """Within it `answer` gives the result of each read that the user's code makes, or torch for a size."""
    from torch import Tensor
    from torch.overrides import TorchFunctionMode

    counts: Counter[tuple[str, str, int]] = Counter()

    def ask(name: str, frame: FrameType, compute: Callable[[], Any]) -> Any:
        place = name, frame.f_code.co_filename, frame.f_lineno
        has_int = name == "__int__" or any("int" in code.co_names for code in all_code(frame.f_code))
        read = _Read(*place, counts[place], frame.f_globals, has_int)
        counts[place] += 1
        return answer(read, compute)

    class Reading(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, frame = getattr(func, "__name__", ""), sys._getframe(1)
            whole = name == "item" and frame.f_code is INT
            if whole and frame.f_back is not None:
                name, frame = "__int__", frame.f_back
            if name in _READS and is_user_file(frame.f_code.co_filename):

                def compute() -> Any:
                    made = func(*args, **(kwargs or {}))
                    return as_whole(made) if whole else made

                return ask(name, frame, compute)
            asking = _user_frame(frame)
            if asking is not None:

                def number(size: Any) -> Any:
                    return ask("size", asking, size.item) if isinstance(size, Tensor) else size

                args, kwargs = replace_sizes(func, args, kwargs or {}, number)
            return func(*args, **(kwargs or {}))

    def read_list(frame: FrameType, compute: Callable[[], Any]) -> Any:
        return ask("tolist", frame, compute) if is_user_file(frame.f_code.co_filename) else compute()

    with around_tolist(read_list), Reading():
        yield


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code: torch's own calls operators for it."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _record_reads(call: ExportCall, inputs: Inputs) -> list[_Read]:
    reads: list[_Read] = []
    args, kwargs = copy_inputs(inputs)
    with follow_values(call.module) as values:
        values.mark_inputs((args, kwargs))

        def note(read: _Read, compute: Callable[[], Any]) -> Any:
            result = compute()
            reads.append(replace(read, result=_as_tuples(result), clean=not values.reads))
            return result

        with _watch_reads(note):
            call.module(*args, **kwargs)
    return reads


def find_hoisted_reads(call: ExportCall) -> dict[_Read, HoistedResult]:
    """The reads of a forward that are hoisted, each with what it becomes: one set of inputs alone shows the same.

    Raises NotApplicable if there is none, or one that gives another structure for other inputs.
    """
    runs = [_record_reads(call, one) for one in ((call.args, call.kwargs), *call.more_inputs)]
    if any(other != runs[0] for other in runs):
        raise NotApplicable("values are read at other places for other inputs")
    found, reads_others = {}, False
    for number, several in enumerate(zip(*runs, strict=True)):
        if all(one.clean for one in several):
            reads_others = True
            result = describe_results(several[0].name.strip("_"), number, [one.result for one in several])
            if len(result.leaves) <= _MOST and set(result.leaves) == {"size"}:
                found[several[0]] = result
    if not found:
        raise NotApplicable(
            "the numbers that are read for these inputs are no sizes (negative, fractions or flags), or too many"
            if reads_others
            else "no number is read that follows from whole numbers and the configuration alone"
        )
    return found


def _as_tuples(value: Any) -> Any:
    """Nested lists as tuples, whose lengths are part of the structure."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _as_lists(value: Any) -> Any:
    return list(map(_as_lists, value)) if isinstance(value, tuple) else value


def _compute_inputs(module: Any, reads: Mapping[_Read, HoistedResult], named: Named) -> dict[str, Any]:
    """What the reads give for these inputs of the untouched module, by the names of the program's inputs."""
    import torch

    found: dict[str, Any] = {}
    left = set(reads)

    def note(read: _Read, compute: Callable[[], Any]) -> Any:
        result = compute()
        if read in left:
            found.update(reads[read].as_inputs(_as_tuples(result)))
            left.remove(read)
        if not left:
            raise Recorded
        return result

    own = {name: value for name, value in named.items() if not is_made_here(name)}
    with torch.no_grad(), restore_afterwards(module), suppress(Recorded), _watch_reads(note), _symbolic_int(reads):
        module(**copy_inputs(own))
    if left:
        raise ValueError("fewer values are read than at the export")
    return found


def _symbolic_int(reads: Iterable[_Read]) -> AbstractContextManager[None]:
    """Python's `int` gives a symbolic size where a tensor is read by it, or where it is called on a number that was
    read: `int(lengths.max().item())`."""
    return symbolic_int(read.namespace for read in reads if read.has_int)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    reads = search_once("hoist-numbers", call.module, lambda: find_hoisted_reads(call))

    @contextmanager
    def take(made: Named) -> Iterator[None]:
        def answer(read: _Read, compute: Callable[[], Any]) -> Any:
            return _as_lists(reads[read].as_result(made)) if read in reads else compute()

        with _watch_reads(answer):
            yield

    changed = call.with_inputs(partial(_compute_inputs, call.module, reads))
    changed = changed.with_facts(facts_of_results(reads.values()))
    taking_reads = taking_more(changed, tuple(reads.values()), take)
    with _symbolic_int(reads), symbolic_numbers(call), taking_reads as taking:
        yield taking


SHIM = Shim(
    id="hoist-numbers",
    title="Reads numbers that follow from whole numbers alone outside the model and passes them in as sizes",
    soundness="signature",
    precondition=CONDITION,
    enter=_enter,
    does=(
        "Numbers that Python reads by item(), tolist() or int(), or torch from a tensor that is given as a size, and "
        "that follow from whole-number inputs and the configuration alone, are read before the export. Each becomes "
        "the size of an input without elements, so that shapes and comparisons that depend on it stay symbolic."
    ),
    cures=(
        Cure(
            kinds=("data_dependent_value", "data_dependent_guard", "dynamic_dim_specialised", "unsupported_python"),
            where=r"\bint\(|\.item\(|\.tolist\(",
        ),
        Cure(
            kinds=("data_dependent_value", "data_dependent_guard", "dynamic_dim_specialised"),
            operator=r"\bitem\b|_local_scalar_dense",
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export traces numbers that are read from inputs",
    rank=22,
    conflicts=("strict",),
    late=True,
    replaces=(
        Replacement(
            target="the inputs of the program",
            before="model(hidden_states, lengths)\n",
            after="model(hidden_states, lengths, int__0_0=torch.empty(int(lengths.max()) + 2, 0))\n",
        ),
    ),
)  # fmt: skip
