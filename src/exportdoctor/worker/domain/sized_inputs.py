"""The inputs of a part with other sizes: cut or repeated from the example, or hollow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.targets.built import Inputs
from exportdoctor.targets.input_objects import InputLayout, flatten_inputs
from exportdoctor.targets.sizes.dynamic_shapes import map_inputs
from exportdoctor.targets.sizes.other_sizes import repeat_to
from exportdoctor.torch_internals.program_checks import input_shapes
from exportdoctor.torch_internals.pytree_registry import inputs_in_traced_order
from exportdoctor.worker.domain.described_sizes import DescribedSize, find_described

Place = tuple[int, int | None]
"""A leaf of the inputs by number, and its dimension; None for a number that is its own size."""


@dataclass(kw_only=True)
class SizedInputs:
    """The example's inputs. `paths` names each leaf; `order` has the leaves as the program takes them, None where some
    of its inputs are made from others; `shapes` are the program's, by leaf that it takes. `described` are sizes that
    the values of other inputs say; `declared` has the bounds of each `Dim` that has some, by its name."""

    example: Inputs
    leaves: list[Any]
    layout: InputLayout
    paths: list[str]
    order: list[int] | None = None
    shapes: dict[int, Any] = field(default_factory=dict)
    described: tuple[DescribedSize, ...] = ()
    declared: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def place_name(self, place: Place) -> str:
        """The place as users write it: `x[0]`."""
        leaf, dimension = place
        return self.paths[leaf] if dimension is None else f"{self.paths[leaf]}[{dimension}]"

    def places(self) -> dict[str, Place]:
        """Every size of the inputs by its name."""
        found: dict[str, Place] = {}
        for number, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor):
                found |= {self.place_name((number, at)): (number, at) for at in range(leaf.dim())}
            elif isinstance(leaf, int) and not isinstance(leaf, bool):
                found[self.paths[number]] = (number, None)
        return found

    def size_at(self, place: Place) -> int:
        """The example's size there."""
        leaf, dimension = place
        return int(self.leaves[leaf] if dimension is None else self.leaves[leaf].shape[dimension])

    def sizes_of(self, other: Inputs) -> dict[Place, int] | None:
        """All sizes of other inputs; None where they have another structure."""
        leaves, layout = flatten_inputs(other)
        if layout != self.layout:
            return None
        found: dict[Place, int] = {}
        for number, (leaf, mine) in enumerate(zip(leaves, self.leaves, strict=True)):
            if isinstance(mine, torch.Tensor):
                if not isinstance(leaf, torch.Tensor) or leaf.dim() != mine.dim():
                    return None
                found |= {(number, at): int(size) for at, size in enumerate(leaf.shape)}
            elif isinstance(leaf, int) and not isinstance(leaf, bool):
                found[number, None] = leaf
        return found

    def with_described(self, sizes: Mapping[Place, int]) -> dict[Place, int]:
        """These sizes, with those that the whole numbers describe whose count changes."""
        found = dict(sizes)
        for one in self.described:
            if (rows := sizes.get((one.by, 0))) is not None and (one.leaf, 0) not in sizes:
                found[one.leaf, 0] = one.size(self.leaves, rows)
        return found

    def described_by(self, place: Place) -> DescribedSize | None:
        """Which whole numbers say the size at this place."""
        return next((one for one in self.described if (one.leaf, 0) == place), None)

    def resize(self, sizes: Mapping[Place, int], *, alone: bool = False) -> Inputs:
        """The example with these sizes; values are cut, or repeated from the start.

        Whole numbers that describe a size are changed with it, if one of them can be, and not if `alone`.
        """
        leaves = list(self.leaves)
        for (leaf, dimension), size in sizes.items():
            leaves[leaf] = size if dimension is None else repeat_to(leaves[leaf], dimension, size)
        for place, size in sizes.items() if not alone else ():
            described = self.described_by(place)
            if described is None or (described.by, 0) in sizes:
                continue
            if (numbers := described.numbers(leaves, size)) is not None:
                leaves[described.by] = numbers
        made: Inputs = self.layout.unflatten(leaves)
        return made

    def hollow(self, sizes: Mapping[Place, int]) -> list[Any]:
        """The program's inputs with these sizes, in its order; tensors have one element of memory."""
        assert self.order is not None
        shapes = {number: list(leaf.shape) for number, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)}
        leaves = list(self.leaves)
        for (leaf, dimension), size in sizes.items():
            if dimension is None:
                leaves[leaf] = size
            else:
                shapes[leaf][dimension] = size
        for number, shape in shapes.items():
            leaves[number] = torch.empty((), dtype=leaves[number].dtype).expand(shape)
        return [leaves[number] for number in self.order]


def sized_inputs(
    module: torch.nn.Module,
    example: Inputs,
    shapes: Any,
    program: Any,
    given: Inputs | None = None,
    *,
    others: Sequence[Inputs] = (),
) -> SizedInputs:
    """The inputs of a part. `program` takes them as they are, or those that were made of them: `given`.

    `others` are sets of other sizes: what describes a size in the example does so in these.
    """
    leaves, layout = flatten_inputs(example)
    paths: list[str] = []

    def note(path: str, leaf: Any, _: Any) -> Any:
        paths.append(path)
        return leaf

    try:
        map_inputs(note, module, example, shapes)
    except TypeError:  # a signature that does not fit
        paths = []
    if len(paths) != len(leaves):
        paths = [f"input {number}" for number in range(len(leaves))]
    made = SizedInputs(example=example, leaves=leaves, layout=layout, paths=paths)
    further = [flat for flat, form in map(flatten_inputs, others) if form == layout]
    made.described = tuple(find_described([leaves, *further]))
    if program is not None:
        made.order = _traced_order(program, example, leaves)
        numbers = made.order if made.order is not None else _kept_leaves(program, given, leaves)
        shapes_taken = zip(numbers, input_shapes(program), strict=False)
        made.shapes = {number: shape for number, shape in shapes_taken if number is not None}
    return made


def _kept_leaves(program: Any, given: Inputs | None, leaves: list[Any]) -> list[int | None]:
    """For each input of the program the number of the tensor that it is; None for one that was made of others."""
    try:
        traced = inputs_in_traced_order(program, *given) if given is not None else []
    except (ValueError, TypeError, KeyError):
        return []
    tensors = {id(leaf): number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    return [tensors.get(id(leaf)) for leaf in traced]


def _traced_order(program: Any, example: Inputs, leaves: list[Any]) -> list[int] | None:
    """The leaves' numbers as the program takes them; None where it takes others."""
    try:
        traced = inputs_in_traced_order(program, *example)
    except (ValueError, TypeError, KeyError):  # it has other keywords
        return None
    free, order = list(range(len(leaves))), []
    for leaf in traced:
        number = next((one for one in free if leaves[one] is leaf), None)
        if number is None:
            return None
        free.remove(number)
        order.append(number)
    return order if len(order) == len(input_shapes(program)) else None
