"""Changes of known inputs: other sizes, values, rows, whole numbers, segments, padding. Eager is not asked here."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from exportdoctor.core.records.outcome import SetKind
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import copy_inputs
from exportdoctor.targets.sizes.other_sizes import Growth, following_sizes, resize_inputs
from exportdoctor.worker.prove.drawn_values import EXTREMES, FloatDraw, draw_like, write
from exportdoctor.worker.prove.input_meaning import WholeNumbers, redraw_numbers
from exportdoctor.worker.prove.object_walk import is_whole, map_tensors, tensors_by_path

_BRANCH_TRIES = 16
_FEW_NUMBERS = 4
"""Inputs made to flip a decision of eager. They cost a run of eager each, and count where they do."""

_NUMBER, _MASK = WholeNumbers(meaning="number"), WholeNumbers(meaning="mask")

Recipe = tuple[SetKind, Callable[[], Inputs | None]]
"""A kind of set, and what makes one; None where it does not fit."""


@dataclass(kw_only=True)
class InputRecipes:
    """Ways to change `known` inputs of a module; `leaves` are the first's tensors by path."""

    module: torch.nn.Module
    known: Sequence[Inputs]
    leaves: Mapping[str, torch.Tensor]
    meanings: Mapping[str, WholeNumbers]
    mask_path: str | None
    shapes: Any
    chance: random.Random

    def __post_init__(self) -> None:
        self._styles = itertools.count()
        known = self.known if self.shapes is not None else ()
        self._following = following_sizes(known, self.module, self.shapes)

    def every(self) -> list[Recipe]:
        """Each kind of set that can be made of these inputs, with what makes one."""
        floats = any(leaf.is_floating_point() for leaf in self.leaves.values())
        found: list[Recipe] = []
        if floats:
            found += [("values", partial(self._with_values, draw_like)), ("rows", self._with_rows)]
        if self.meanings:
            found += [("whole_numbers", self._with_numbers), ("whole_numbers", self._with_numbers_alike)]
        if any(known.meaning in ("boundaries", "lengths", "factors") for known in self.meanings.values()):
            found += [("segments", self._with_segments)] * 2
        if self.mask_path is not None:
            found += [("padding", self._with_padding)]
        if self.shapes is not None:
            found += [("sizes", self._with_sizes)]
            found += [("size_one_or_zero", self._with_one)]
        if floats:
            extremes = itertools.cycle(EXTREMES)
            found += [("extreme_values", lambda: self._with_values(next(extremes)))]
        return found

    def _base(self) -> Inputs:
        """A copy of the example or of another known set, more often of the example."""
        return copy_inputs(self.known[0] if self.chance.random() < 0.5 else self.chance.choice(self.known))

    def _with_values(self, draw: FloatDraw) -> Inputs | None:
        return self._change_floats(self._base(), draw)

    def _change_floats(self, base: Inputs, draw: FloatDraw) -> Inputs:
        def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
            if not leaf.is_floating_point() or not leaf.numel():
                return leaf
            return write(leaf, lambda seen: draw(seen, self.chance))

        changed: Inputs = map_tensors(base, change)
        return changed

    def with_one_for_two(self) -> Inputs | None:
        """The first two inputs of fractions that have one shape and dtype with the same values; None if there are no
        two."""
        floats = {path: leaf for path, leaf in self.leaves.items() if leaf.is_floating_point() and leaf.numel()}
        for (_, one), (path, other) in itertools.combinations(floats.items(), 2):
            if one.shape == other.shape and one.dtype == other.dtype:

                def change(found: str, leaf: torch.Tensor, path: str = path, one: torch.Tensor = one) -> torch.Tensor:
                    return write(leaf, lambda _: one) if found == path else leaf

                changed: Inputs = map_tensors(copy_inputs(self.known[0]), change)
                return changed
        return None

    def _with_rows(self) -> Inputs | None:
        """Rows in another order, or one row repeated, in one of the dimensions."""
        repeat, dim = self.chance.random() < 0.5, self.chance.randrange(3)

        def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
            if dim >= leaf.dim() or (is_whole(leaf) and self.meanings.get(path, _NUMBER).meaning != "index"):
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

    def _with_numbers_alike(self) -> Inputs | None:
        """One whole-number input with one of its values in all places, the smallest or any."""
        path, smallest = self.chance.choice(list(self.meanings)), self.chance.random() < 0.5

        def change(found: str, leaf: torch.Tensor) -> torch.Tensor:
            if found != path or not leaf.numel():
                return leaf
            value = min(leaf.flatten().tolist()) if smallest else self.chance.choice(leaf.flatten().tolist())
            return write(leaf, lambda seen: torch.full_like(seen, value))

        changed: Inputs = map_tensors(self._base(), change)
        return changed

    def _total(self, known: WholeNumbers, path: str, leaf: torch.Tensor, leaves: dict[str, torch.Tensor]) -> int:
        """What cumulated lengths reach in this set: the size that they reach in the example, of the same dimension."""
        for other, seen in self.leaves.items():
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
            self.module,
            copy_inputs(self.known[0]),
            self.shapes,
            (*growths[start:], *growths[:start]),
            following=self._following,
        )
        return None if made is None else self._fit_numbers(self._change_floats(made, draw_like))

    def _with_one(self) -> Inputs | None:
        """One or none in a dynamic dimension, and in those that go with it."""
        size = int(self.chance.random() < 0.6)
        return self.with_size(self.chance.randrange(4), size)

    def with_size(self, place: int, size: int) -> Inputs | None:
        """The example with this size in a dynamic dimension, and in those that go with it; `place` says which."""
        made = resize_inputs(
            self.module,
            copy_inputs(self.known[0]),
            self.shapes,
            (lambda old: size,),
            least=0,
            only=place,
            following=self._following,
        )
        return None if made is None else self._fit_numbers(made)

    def with_other_size(self, place: int, growths: tuple[Growth, ...]) -> Inputs | None:
        """The example with another size in a dynamic dimension alone, and in those that go with it."""
        example = copy_inputs(self.known[0])
        made = resize_inputs(self.module, example, self.shapes, growths, only=place, following=self._following)
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

    def places_of_constants(self, constants: Sequence[float], compared: Set[float]) -> list[tuple[str, float, int]]:
        """Inputs that may decide a branch, with a number to be near to, and which side of it; at random, a few."""
        paths = [
            path
            for path, leaf in self.leaves.items()
            if leaf.numel() and (leaf.is_floating_point() or self._is_free(path))
        ]
        every = [(path, constant, side) for path in paths for constant in constants for side in range(4)]
        self.chance.shuffle(every)
        return sorted(every, key=lambda one: one[1] not in compared)[:_BRANCH_TRIES]

    def _is_free(self, path: str) -> bool:
        return self.meanings.get(path, _MASK).meaning in ("number", "index", "lengths")

    @property
    def free_numbers(self) -> list[str]:
        """The inputs of few whole numbers that may be others."""
        return [path for path, leaf in self.leaves.items() if 0 < leaf.numel() <= _FEW_NUMBERS and self._is_free(path)]

    def with_number(self, where: str, number: int) -> Inputs | None:
        """The example with this number as the first one in an input; None where its dtype has no such number."""
        if number > torch.iinfo(self.leaves[where].dtype).max:
            return None

        def draw(seen: torch.Tensor) -> torch.Tensor:
            changed = seen.clone().flatten()
            changed[0] = number
            return changed.reshape(seen.shape)

        def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
            return write(leaf, draw) if path == where else leaf

        changed: Inputs = map_tensors(copy_inputs(self.known[0]), change)
        return changed

    def with_constant(self, where: str, constant: float, side: int) -> Inputs:
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

        changed: Inputs = map_tensors(copy_inputs(self.known[0]), change)
        return changed
