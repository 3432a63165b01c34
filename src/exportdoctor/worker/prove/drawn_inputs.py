"""Draws input sets that may break a cure: other sizes, values, numbers, segments, padding, and other branches.

Each set is a change of the example or of another known set. Eager must take it, and say something other than NaN.
"""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Any

import torch

from exportdoctor.core.records.outcome import SetKind
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import CallResult, same_values
from exportdoctor.targets.sizes.other_sizes import resize_inputs, same_shapes
from exportdoctor.worker.prove.allowed_error import is_fill_value
from exportdoctor.worker.prove.compare_outputs import compare_outputs, tensors_in
from exportdoctor.worker.prove.eager_trace import EagerTrace, RoundingNoise
from exportdoctor.worker.prove.input_meaning import WholeNumbers, mask_among, meaning_of, redraw_numbers
from exportdoctor.worker.prove.input_set import InputSet, named_path, run_in_eager, sizes_of
from exportdoctor.worker.prove.object_walk import map_tensors

MOST_SETS = 24
"""Sets drawn for one proof, those in which eager decides otherwise included."""

_TRIES_PER_SET = 4
_SEED = 20
_MOST_CONSTANTS = 16
_BRANCH_TRIES = 16
"""Inputs made to flip a decision of eager. They cost a run of eager each, and count where they do."""
_MOST_SHRUNK = 10
_FEW, _FEW_INPUTS = 8, 3
_ROUNDING_UNITS = 16
"""Inputs of extreme size are also run with each operator's result off by up to so many units in the last place: where
eager's own answer moves too far, no program can be held to it."""


Recipe = tuple[SetKind, Callable[[], Inputs | None]]
"""A kind of set, and what makes one; None where it does not fit."""


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
        self._styles = itertools.count()
        self._leaves = tensors_by_path(self.known[0])
        self._met: list[Inputs] = list(self.known)
        self._traces, self._trace = True, None
        self._trace, _ = self._trace_run(self.known[0])
        self._traces = self._trace is not None
        bounds = self._trace.bounds if self._trace else {}
        self.meanings = {
            path: meaning_of(leaf, self._leaves.values(), bound=bounds.get(path))
            for path, leaf in self._leaves.items()
            if _is_whole(leaf) and leaf.numel()
        }
        compared = sorted(self._trace.constants) if self._trace else []
        self._constants = list(dict.fromkeys([*compared, *_code_constants(self.module)]))[:_MOST_CONSTANTS]
        self._decided = {self._trace.decisions} if self._trace else set()

    @property
    def mask_path(self) -> str | None:
        """The path of the input that masks positions of a batch."""
        return mask_among(self._leaves, self.meanings)

    def draw(self) -> Iterator[InputSet]:
        """Up to MOST_SETS sets of all kinds that apply, until the time is over."""
        end, found = time.process_time() + self.seconds, 0
        recipes = itertools.islice(itertools.cycle(self._recipes()), MOST_SETS * _TRIES_PER_SET)
        searches: list[Recipe] = [
            ("branches", partial(self._with_constant, *pair)) for pair in self._places_of_constants()
        ]
        for kind, make in itertools.chain(searches, recipes):
            if found == MOST_SETS or time.process_time() > end:
                return
            one = self._try(kind, make)
            if one is not None:
                found += 1
                yield one

    # --- what is drawn

    def _recipes(self) -> list[Recipe]:
        """Each kind of set that can be made of these inputs, with what makes one."""
        floats = any(leaf.is_floating_point() for leaf in self._leaves.values())
        found: list[Recipe] = []
        if floats:
            found += [("values", partial(self._with_values, draw_like)), ("rows", self._with_rows)]
        if self.meanings:
            found += [("whole_numbers", self._with_numbers)]
        if any(known.meaning in ("boundaries", "lengths", "factors") for known in self.meanings.values()):
            found += [("segments", self._with_segments)] * 2
        if self.mask_path is not None:
            found += [("padding", self._with_padding)]
        if self.shapes is not None:
            found += [("sizes", self._with_sizes)]
            found += [("size_one_or_zero", self._with_one)]
        if floats:
            extremes = itertools.cycle(_EXTREMES)
            found += [("extreme_values", lambda: self._with_values(next(extremes)))]
        return found

    def _base(self) -> Inputs:
        """A copy of the example or of another known set, more often of the example."""
        return copy.deepcopy(self.known[0] if self.chance.random() < 0.5 else self.chance.choice(self.known))

    def _with_values(self, draw: FloatDraw) -> Inputs | None:
        return self._change_floats(self._base(), draw)

    def _change_floats(self, base: Inputs, draw: FloatDraw) -> Inputs:
        def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
            if not leaf.is_floating_point() or not leaf.numel():
                return leaf
            return write(leaf, lambda seen: draw(seen, self.chance))

        changed: Inputs = map_tensors(base, change)
        return changed

    def _with_rows(self) -> Inputs | None:
        """Rows in another order, or one row repeated, in one of the dimensions."""
        repeat, dim = self.chance.random() < 0.5, self.chance.randrange(3)

        def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
            if dim >= leaf.dim() or (_is_whole(leaf) and self.meanings.get(path, _NUMBER).meaning != "index"):
                return leaf
            order = list(range(leaf.shape[dim]))
            self.chance.shuffle(order)
            picked = order[:1] * len(order) if repeat else order
            return write(leaf, lambda seen: seen[(slice(None),) * dim + (picked,)] if seen.dim() > dim else seen)

        changed: Inputs = map_tensors(self._base(), change)
        return changed

    def _with_numbers(self, *meanings: str) -> Inputs | None:
        """Other whole numbers in one input, or in all of the given meanings."""
        base = self._base()
        leaves = tensors_by_path(base)
        paths = [path for path, known in self.meanings.items() if not meanings or known.meaning in meanings]
        if not meanings or self.chance.random() < 0.5:
            paths = [self.chance.choice(paths)]
        style = next(self._styles)

        def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
            known = self.meanings.get(path)
            if path not in paths or known is None or not leaf.numel():
                return leaf
            total = self._total(known, path, leaf, leaves)
            return write(leaf, lambda seen: redraw_numbers(seen, known, self.chance, total=total, style=style))

        changed: Inputs = map_tensors(base, change)
        return changed

    def _total(self, known: WholeNumbers, path: str, leaf: torch.Tensor, leaves: dict[str, torch.Tensor]) -> int:
        """What cumulated lengths reach in this set: the size that they reach in the example, of the same dimension."""
        for other, seen in self._leaves.items():
            for dim, size in enumerate(seen.shape):
                if other != path and size == known.bound and other in leaves and dim < leaves[other].dim():
                    return leaves[other].shape[dim]
        return known.bound

    def _with_segments(self) -> Inputs | None:
        return self._with_numbers("boundaries", "lengths", "factors")

    def _with_padding(self) -> Inputs | None:
        base, where = self._base(), self.mask_path
        left, rows = self.chance.random() < 0.5, self.chance.random() < 0.5

        def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
            if path != where or leaf.dim() != 2 or leaf.shape[1] < 2:
                return leaf
            holes = torch.ones_like(leaf)
            for row in range(1 if rows else leaf.shape[0]):
                count = self.chance.randint(1, leaf.shape[1] - 1)
                holes[row, slice(0, count) if left else slice(leaf.shape[1] - count, None)] = 0
            return write(leaf, lambda _: holes)

        changed: Inputs = map_tensors(base, change)
        return changed

    def _with_sizes(self) -> Inputs | None:
        add = self.chance.choice((1, 2, 3, 5))
        growths = (lambda size: size + add, lambda size: 2 * size, lambda size: 3 * size, lambda size: size - 1)
        start = self.chance.randrange(len(growths))
        made = resize_inputs(
            self.module, copy.deepcopy(self.known[0]), self.shapes, (*growths[start:], *growths[:start])
        )
        return None if made is None else self._fit_numbers(self._change_floats(made, draw_like))

    def _with_one(self) -> Inputs | None:
        """One or none in a dynamic dimension, and in those that go with it."""
        size = int(self.chance.random() < 0.6)
        place = self.chance.randrange(4)
        made = resize_inputs(
            self.module, copy.deepcopy(self.known[0]), self.shapes, (lambda old: size,), least=0, only=place
        )
        return None if made is None else self._fit_numbers(made)

    def _fit_numbers(self, base: Inputs) -> Inputs:
        """Boundaries and lengths that reach the sizes of this set."""
        leaves = tensors_by_path(base)

        def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
            known = self.meanings.get(path)
            if known is None or known.meaning not in ("boundaries", "lengths") or not leaf.numel():
                return leaf
            total = self._total(known, path, leaf, leaves)
            return redraw_numbers(leaf, known, self.chance, total=total)

        changed: Inputs = map_tensors(base, change)
        return changed

    def _places_of_constants(self) -> list[tuple[str, float, int]]:
        """Inputs that may decide a branch, with a number to be near to, and which side of it; at random, a few."""
        free = ("number", "index", "lengths")
        paths = [
            path
            for path, leaf in self._leaves.items()
            if leaf.numel() and (leaf.is_floating_point() or self.meanings.get(path, _MASK).meaning in free)
        ]
        compared = self._trace.constants if self._trace else set()
        every = [(path, constant, side) for path in paths for constant in self._constants for side in range(4)]
        self.chance.shuffle(every)
        return sorted(every, key=lambda one: one[1] not in compared)[:_BRANCH_TRIES]

    def _with_constant(self, where: str, constant: float, side: int) -> Inputs:
        """A number that eager's code or one of its comparisons knows, or one beside it, in an input."""
        known = self.meanings.get(where)
        goal = constant + (0.0, 0.01 * abs(constant) + 0.01, 1.0, -1.0)[side]

        def draw(seen: torch.Tensor) -> torch.Tensor:
            if not seen.is_floating_point():
                most = known.bound - 1 if known and known.meaning == "index" else 4 * int(seen.abs().max()) + 64
                changed = seen.clone().flatten()
                changed[self.chance.randrange(changed.numel())] = max(0, min(int(goal), most))
                return changed.reshape(seen.shape)
            match self.chance.randrange(3):
                case 0:
                    return seen - seen.mean() + goal
                case 1:
                    return seen * (goal / (float(seen.sum()) or 1.0))
            return seen * (goal / (float(seen.abs().max()) or 1.0))

        def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
            return write(leaf, draw) if path == where else leaf

        changed: Inputs = map_tensors(copy.deepcopy(self.known[0]), change)
        return changed

    # --- whether eager takes it

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
        if kind in ("extreme_values", "branches") and not self._is_stable(inputs, results):
            return None
        mask = tensors_by_path(inputs).get(self.mask_path or "")
        return replace(
            self.first,
            title=self._title(inputs),
            kind=kind,
            calls=(inputs,),
            results=results,
            same=same,
            made_up=True,
            mask=mask,
        )

    def _title(self, inputs: Inputs) -> str:
        """The sizes, and what is other than in the example: few whole numbers are given, else an input is named."""
        words = []
        for path, leaf in tensors_by_path(inputs).items():
            if path in self._leaves and not equal_tensors(leaf, self._leaves[path]):
                name, few = named_path(path, self.first.names), _is_whole(leaf) and leaf.numel() <= _FEW
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

        results = run_in_eager(self.module, [inputs], how=call) if self._traces else None
        if results is not None:
            return trace, results
        plain = run_in_eager(self.module, [inputs]) if self._trace is None else None
        return None, plain

    def _is_stable(self, inputs: Inputs, results: tuple[CallResult, ...]) -> bool:
        """Whether rounding in each operator leaves eager's answer where it is."""

        def call(given: Inputs) -> Any:
            with RoundingNoise(_ROUNDING_UNITS, self.chance.randrange(2**31)):
                return self.module(*given[0], **given[1])

        again = run_in_eager(self.module, [inputs], how=call)
        if again is None:
            return False
        found, wanted = (tensors_in(one[0].output) for one in (again, results))
        return compare_outputs("", found, wanted).holds

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
            for place in places[:4] if len(places) > 1 and _is_whole(old) else ():
                yield _with_leaf(example, path, partial(_write_at, place=place, value=new[place]))
        for path in apart if len(apart) > 1 else ():
            yield _with_leaf(example, path, lambda leaf, path=path: leaf.copy_(found[path]))  # type: ignore[misc]


def _with_leaf(inputs: Inputs, where: str, change: Callable[[torch.Tensor], Any]) -> Inputs:
    def visit(path: str, leaf: torch.Tensor) -> torch.Tensor:
        if path == where:
            with torch.no_grad():
                change(leaf.detach())
        return leaf

    changed: Inputs = map_tensors(copy.deepcopy(inputs), visit)
    return changed


def _write_at(leaf: torch.Tensor, *, place: int, value: torch.Tensor) -> None:
    leaf.view(-1)[place] = value


# --- values


FloatDraw = Callable[[torch.Tensor, random.Random], torch.Tensor]


def draw_like(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Random values of about the mean and spread of those there; a constant gets a spread of its own size, or of one.

    Infinities, NaN and fill values of masks stay.
    """
    computed = seen.isfinite() & ~is_fill_value(seen)
    values = seen[computed].to(torch.float64)
    if not values.numel():
        return seen
    mean, spread = float(values.mean()), float(values.std(correction=0))
    if spread <= 1e-6 * abs(mean) or not spread:
        spread = abs(mean) or 1.0
    return torch.where(computed, (mean + spread * _noise(seen, chance)).to(seen.dtype), seen)


def _noise(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    return torch.randn(seen.shape, generator=generator, dtype=torch.float32).to(seen.device)


def _scale(seen: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.where(seen.isfinite() & ~is_fill_value(seen), seen * factor, seen)


def _enlarge(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return _scale(draw_like(seen, chance), 100.0)


def _shrink(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return _scale(draw_like(seen, chance), 1e-3)


def _negate(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    drawn = draw_like(seen, chance)
    return torch.where(seen.isfinite() & ~is_fill_value(seen), -drawn.abs(), seen)


def _set_constant(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return torch.full_like(seen, chance.choice((0.0, 1.0, -1.0, float(seen.flatten()[0]))))


def _spread_about_zero(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    computed = seen.isfinite() & ~is_fill_value(seen)
    most = float(torch.where(computed, seen, 0.0).abs().max()) or 1.0
    return torch.where(computed, (most * _noise(seen, chance)).to(seen.dtype), seen)


_EXTREMES = (_enlarge, _spread_about_zero, _negate, _set_constant, _shrink)


def write(leaf: torch.Tensor, draw: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The tensor with drawn values written into it, so that views of it and what it is a view of change along.

    Dimensions that repeat one element are drawn once.
    """
    seen = leaf.detach()
    for dim, (size, stride) in enumerate(zip(seen.shape, seen.stride(), strict=True)):
        if size > 1 and stride == 0:
            seen = seen.narrow(dim, 0, 1)
    with torch.no_grad():
        seen.copy_(draw(seen.clone()))
    return leaf


# --- what differs


_NUMBER, _MASK = WholeNumbers(meaning="number"), WholeNumbers(meaning="mask")


def tensors_by_path(inputs: Inputs) -> dict[str, torch.Tensor]:
    """The tensors of a call's arguments, also those in caches and objects."""
    found: dict[str, torch.Tensor] = {}

    def note(path: str, leaf: torch.Tensor) -> torch.Tensor:
        found[path] = leaf
        return leaf

    map_tensors(inputs, note)
    return found


def equal_inputs(one: Inputs, other: Inputs) -> bool:
    """Whether all tensors are equal."""
    left, right = tensors_by_path(one), tensors_by_path(other)
    return left.keys() == right.keys() and all(equal_tensors(leaf, right[path]) for path, leaf in left.items())


def equal_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether shapes and values are equal."""
    return one.shape == other.shape and same_values(one.detach(), other.detach())


def _is_whole(leaf: torch.Tensor) -> bool:
    return not leaf.is_floating_point() and not leaf.is_complex()


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
