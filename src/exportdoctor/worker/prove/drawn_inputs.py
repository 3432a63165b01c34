"""Draws input sets that may break a cure: other sizes, values, numbers, segments, padding, and other branches.

Each set is a change of the example or of another known set. Eager must take it, and say something other than NaN.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Any

import torch

from exportdoctor.core.records.outcome import SetKind
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import CallResult, copy_inputs
from exportdoctor.targets.plain_state import without_writes
from exportdoctor.targets.sizes.other_sizes import GROWTHS, declared_least, same_shapes
from exportdoctor.worker.prove.eager_trace import EagerTrace
from exportdoctor.worker.prove.input_meaning import mask_among, meaning_of
from exportdoctor.worker.prove.input_recipes import InputRecipes, Recipe
from exportdoctor.worker.prove.input_set import InputSet, named_path, run_in_eager, sizes_of
from exportdoctor.worker.prove.masked_positions import ignores_zeros
from exportdoctor.worker.prove.object_walk import (
    equal_inputs,
    equal_tensors,
    is_whole,
    map_tensors,
    tensors_by_path,
    turn_flags,
)
from exportdoctor.worker.prove.rounding import run_rounded

MOST_SETS = 24
"""Sets drawn for one proof, those in which eager decides otherwise included."""

_TRIES_PER_SET = 4
_MOST_SEQUENCES = 2
_SEED = 20
_MOST_CONSTANTS = 16
_PRIMES = (13, 7, 11, 5, 17)
_MOST_SHRUNK = 10
_FEW, _FEW_INPUTS = 8, 3
_MOST_DIMENSIONS, _MOST_REASONS, _SECONDS_FOR_REFUSED, _SECONDS_WHERE_READ = 4, 4, 2.0, 5.0
_MOST_WHERE_READ = 6
"""Sets of which none is seen to take another branch, before no more are drawn."""
_LARGEST_LIMIT, _MOST_ELEMENTS = 600, 1 << 14
"""Of the sizes next to a limit that are tried, and of such inputs: forward takes the time and memory of these."""
_REFUSED_SIZES = (*range(2, 18), 24, 31, 32, 33, 47, 48, 63)
"""Of the search for sizes that a program refuses: those of which a guard may ask whether they are small, large, or a
multiple of a small number."""
_LARGEST_NUMBER = 4096
"""That is tried as an input; one of its sizes may be taken from it."""
_HELD_TO_ROUNDING = ("extreme_values", "branches", "rows")
"""Sets of these kinds are drawn only where rounding leaves eager's answer where it is. With equal rows a channel has
one value, which may be small by chance."""


@dataclass(kw_only=True)
class SetDrawer:
    """Draws sets for one call of a module. `known` are the example, given as `first`, and other sets eager takes."""

    module: torch.nn.Module
    known: Sequence[Inputs]
    first: InputSet
    shapes: Any = None
    seconds: float = 20.0
    chance: random.Random = field(default_factory=lambda: random.Random(_SEED))

    def __post_init__(self) -> None:
        self._leaves = tensors_by_path(self.known[0])
        self._met: list[Inputs] = list(self.known)
        self._traces, self._trace = True, None
        self._trace, results = self._trace_run(self.known[0])
        self._traces = self._trace is not None
        self._left = results and _state_left(results[0])
        bounds = self._trace.bounds if self._trace else {}
        meanings = {
            path: meaning_of(leaf, self._leaves.values(), bound=bounds.get(path))
            for path, leaf in self._leaves.items()
            if is_whole(leaf) and leaf.numel()
        }
        compared = sorted(self._trace.constants) if self._trace else []
        self._constants = list(dict.fromkeys([*compared, *_code_constants(self.module)]))[:_MOST_CONSTANTS]
        self._decided = {self._trace.decisions} if self._trace else set()
        mask_path = mask_among(self._leaves, meanings)
        ignores = mask_path is not None and ignores_zeros(self.module, self.known[0], mask_path)
        self.mask_path = mask_path if ignores else None
        self._recipes = InputRecipes(
            module=self.module,
            known=self.known,
            leaves=self._leaves,
            meanings=meanings,
            mask_path=mask_path,
            shapes=self.shapes,
            chance=self.chance,
        )

    def draw(self) -> Iterator[InputSet]:
        """Up to MOST_SETS sets of all kinds that apply, until the time is over."""
        end, found, sequences = time.process_time() + self.seconds, 0, 0
        recipes = itertools.islice(itertools.cycle(self._recipes.every()), MOST_SETS * _TRIES_PER_SET)
        compared = self._trace.constants if self._trace else set()
        places = self._recipes.places_of_constants(self._constants, compared)
        searches: list[Recipe] = [("values", self._recipes.with_one_for_two)]
        searches += [("branches", partial(self._recipes.with_constant, *place)) for place in places]
        for kind, make in itertools.chain(searches, recipes):
            if found == MOST_SETS or time.process_time() > end:
                return
            one = self._try(kind, make)
            if one is not None:
                found += 1
                yield one
                around = self._around(one) if sequences < _MOST_SEQUENCES else None
                if around is not None:
                    sequences += 1
                    yield around

    def draw_where_read(self) -> Iterator[InputSet]:
        """A few sets of the example's sizes, where eager reads numbers out of tensors: torch gives `is` and `match` a
        symbol, and what they choose is not asked again."""
        if self._trace is None or not self._trace.reads:
            return
        end, plain = time.process_time() + min(self.seconds, _SECONDS_WHERE_READ), 0
        for one in self.draw():
            plain += one.kind != "branches"
            if one.same:
                yield one
            if plain == _MOST_WHERE_READ or time.process_time() > end:
                return

    def _around(self, one: InputSet) -> InputSet | None:
        """The example before and after a set whose call leaves other state than the example's does, of which a program
        may know nothing; None where it leaves the same."""
        if self._left is None or _state_left(one.results[0]) == self._left:
            return None
        calls = (self.known[0], one.inputs, self.known[0])
        results = run_in_eager(self.module, calls, notes_state=True)
        title = f"{self.first.title}, before and after {one.title}"
        if results is None:
            return None
        return replace(one, title=title, kind="others_between", calls=calls, results=results)

    def draw_each_size(self) -> Iterator[InputSet]:
        """For each dynamic dimension a set in which it alone, with those that go with it, has another size."""
        for place in range(_MOST_DIMENSIONS if self.shapes is not None else 0):
            tries = (partial(self._recipes.with_other_size, place, GROWTHS[first:]) for first in range(len(GROWTHS)))
            yield from itertools.islice(filter(None, (self._try("sizes", make) for make in tries)), 1)

    def draw_primes(self) -> Iterator[InputSet]:
        """For each dynamic dimension a set in which it, with those that go with it, is a prime number: the known sizes
        may be multiples of the example's."""
        for place in range(_MOST_DIMENSIONS if self.shapes is not None else 0):
            tries = (self._try("sizes", partial(self._recipes.with_size, place, size)) for size in _PRIMES)
            yield from itertools.islice(filter(None, tries), 1)

    def draw_ones_and_zeros(self) -> Iterator[InputSet]:
        """For each dynamic dimension a set in which it, with those that go with it, is one, another one with zeros for
        ones and ones for zeros, as in a mask, and a set in which it is zero. torch takes it to be more while it traces:
        a branch on it may read other inputs."""
        places = range(_MOST_DIMENSIONS if self.shapes is not None else 0)
        for size, place in itertools.product((1, 0), places):
            plain = partial(self._recipes.with_size, place, size)
            for make in (plain, partial(_with_flags_turned, plain)) if size else (plain,):
                one = self._try("size_one_or_zero", make)
                if one is not None:
                    yield one

    def draw_least(self) -> Iterator[InputSet]:
        """For each dynamic dimension with a least size that is declared a set in which it, with those that go with it,
        has that size: an assertion of the program may ask for more."""
        declared = declared_least(self.module, self.known[0], self.shapes) if self.shapes is not None else ()
        for place, least in enumerate(declared[:_MOST_DIMENSIONS]):
            one = self._try("sizes", partial(self._recipes.with_size, place, least)) if least > 1 else None
            if one is not None:
                yield one

    def draw_refused(
        self, refuses: Callable[[Inputs], str], *, limits: Collection[int] = (), numbers: bool = False
    ) -> Iterator[InputSet]:
        """For each reason that `refuses` names for some size of a dynamic dimension, from two on, the first such set
        that eager takes; the empty text is no refusal. Sizes next to `limits` are among them. With `numbers` also for a
        whole number near to one in the code.
        """
        end, met = time.process_time() + _SECONDS_FOR_REFUSED, {""}
        largest = max((size for leaf in self._leaves.values() for size in leaf.shape), default=0)
        around = (largest - 1, largest, largest + 1)
        sizes = sorted({size for size in (*_REFUSED_SIZES, *around) if 2 <= size < min(2 * largest + 2, 64)})
        next_to = {limit + step for limit in limits for step in (-1, 0, 1)}
        far = sorted(size for size in next_to - {*sizes} if 2 <= size <= _LARGEST_LIMIT)
        most = max(_MOST_ELEMENTS, 4 * sum(leaf.numel() for leaf in self._leaves.values()))
        groups = declared_least(self.module, self.known[0], self.shapes) if self.shapes is not None else ()
        places = range(min(_MOST_DIMENSIONS, len(groups)))
        whole = [int(one) for one in self._constants if math.isfinite(one) and one == int(one)]
        near = sorted({one + step for one in whole for step in (-1, 0, 1) if 0 <= one + step <= _LARGEST_NUMBER})
        free = self._recipes.free_numbers if numbers else []
        recipes: list[Recipe] = [
            *(("sizes", partial(self._recipes.with_size, *one)) for one in itertools.product(places, sizes)),
            *(("sizes", partial(self._recipes.with_size, *one)) for one in itertools.product(places, far)),
            *(("whole_numbers", partial(self._recipes.with_number, *one)) for one in itertools.product(free, near)),
        ]
        for kind, make in recipes:
            if time.process_time() > end or len(met) > _MOST_REASONS:
                return
            made = make()
            if made is not None and sum(leaf.numel() for leaf in tensors_by_path(made).values()) > most:
                continue
            reason = refuses(made) if made is not None else ""
            if reason not in met and (one := self._try(kind, lambda made=made: made)):  # type: ignore[misc]
                met.add(reason)
                yield one

    def _try(self, kind: SetKind, make: Callable[[], Inputs | None]) -> InputSet | None:
        try:
            inputs = make()
        except Exception:
            return None  # such values do not fit these tensors
        if inputs is None or any(equal_inputs(inputs, met) for met in self._met):
            return None
        self._met.append(inputs)
        trace, results = self._trace_run(inputs)
        if results is None:
            return None
        decided = trace is not None and trace.decisions not in self._decided
        same = same_shapes(inputs, self.known[0])
        if trace is not None:
            self._decided.add(trace.decisions)
        if decided and same:
            kind = "branches"
        elif kind == "branches":
            return None
        made_up = replace(
            self.first,
            title=self._title(inputs),
            kind=kind,
            calls=(inputs,),
            results=results,
            same=same,
            made_up=True,
            mask_path=self.mask_path,
        )
        if kind in _HELD_TO_ROUNDING:
            rounded = run_rounded(self.module, made_up, seed=self.chance.randrange(2**31))
            return made_up if rounded is not None and rounded.holds else None
        return made_up

    def _title(self, inputs: Inputs) -> str:
        """The sizes, and what is other than in the example: few whole numbers are given, else an input is named."""
        words = []
        for path, leaf in tensors_by_path(inputs).items():
            known = self._leaves.get(path)
            if known is not None and not equal_tensors(leaf, known):
                name, few = named_path(path, self.first.names), is_whole(leaf) and leaf.numel() <= _FEW
                if few or leaf.shape == known.shape:  # other sizes are given
                    words.append(f"{name} = {leaf.tolist()}" if few else f"other {name}")
        more = [f"{len(words) - _FEW_INPUTS} more"] if len(words) > _FEW_INPUTS else []
        return ", ".join([sizes_of(inputs), *words[:_FEW_INPUTS], *more])

    def _trace_run(self, inputs: Inputs) -> tuple[EagerTrace | None, tuple[CallResult, ...] | None]:
        """What eager did and gave; no trace if it does not run under one, no results of what it refuses."""
        trace = EagerTrace()

        def call(given: Inputs) -> Any:
            trace.follow_inputs(tensors_by_path(given))
            with trace:
                return self.module(*given[0], **given[1])

        results = run_in_eager(self.module, [inputs], how=call, notes_state=True) if self._traces else None
        if results is not None:
            return trace, results
        plain = run_in_eager(self.module, [inputs], notes_state=True) if self._trace is None else None
        return None, plain

    def shrink(self, one: InputSet) -> Iterator[InputSet]:
        """Sets between the example and this one, the nearest to the example first; eager takes them."""
        inputs, example = one.inputs, self.known[0]
        if not one.same:
            return
        found = tensors_by_path(inputs)
        apart = [path for path, leaf in found.items() if not equal_tensors(leaf, self._leaves[path])]
        for made in itertools.islice(self._nearer(example, found, apart), _MOST_SHRUNK):
            results = run_in_eager(self.module, [made])
            if results is not None:
                yield replace(one, title=self._title(made), calls=(made,), results=results)

    def _nearer(self, example: Inputs, found: dict[str, torch.Tensor], apart: list[str]) -> Iterator[Inputs]:
        for path in apart:
            old, new = self._leaves[path].flatten(), found[path].flatten()
            places = [place for place in range(old.numel()) if bool(old[place] != new[place])]
            for place in places[:4] if len(places) > 1 and is_whole(old) else ():
                yield _with_leaf(example, path, partial(_write_at, place=place, value=new[place]))
        for path in apart if len(apart) > 1 else ():
            yield _with_leaf(example, path, lambda leaf, path=path: leaf.copy_(found[path]))  # type: ignore[misc]


def _state_left(result: CallResult) -> dict[str, Any]:
    """The plain state behind a call, without how often tensors were written into: restoring them writes, too."""
    return {name: without_writes(value) for name, value in result.numbers.items()}


def _with_leaf(inputs: Inputs, where: str, change: Callable[[torch.Tensor], Any]) -> Inputs:
    def visit(path: str, leaf: torch.Tensor) -> torch.Tensor:
        if path == where:
            with torch.no_grad():
                change(leaf.detach())
        return leaf

    changed: Inputs = map_tensors(copy_inputs(inputs), visit)
    return changed


def _with_flags_turned(make: Callable[[], Inputs | None]) -> Inputs | None:
    """The inputs with ones for zeros, and zeros for ones, in what has nothing else; None where nothing has."""
    inputs = make()
    return None if inputs is None else turn_flags(inputs)


def _write_at(leaf: torch.Tensor, *, place: int, value: torch.Tensor) -> None:
    leaf.view(-1)[place] = value


def _code_constants(module: torch.nn.Module) -> Iterator[float]:
    """The numbers in the forward code of the module's own classes, those of torch left out."""
    kinds = {type(child) for child in module.modules() if not type(child).__module__.startswith("torch.")}
    for kind in sorted(kinds, key=lambda one: one.__qualname__):
        code = getattr(getattr(kind, "forward", None), "__code__", None)
        if code is not None:
            yield from _constants_of(code)


def _constants_of(code: CodeType) -> Iterator[float]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _constants_of(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield float(value)
