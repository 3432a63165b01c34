"""Calls on which a program is compared with eager: their inputs, and what eager gave for them and left behind."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exportdoctor.core.records.outcome import SetKind
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.call_limit import NoEnd
from exportdoctor.targets.eager import CallResult, run_calls
from exportdoctor.targets.input_objects import flatten_inputs
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.prove.compare_outputs import are_nan, tensors_in
from exportdoctor.worker.prove.object_walk import is_whole


@dataclass(frozen=True, kw_only=True)
class InputSet:
    """`results` are eager's for each of the calls, which are made one after the other; at least one.

    `same`: it has the example's sizes. `made_up`: it was drawn; a program may refuse it, but not answer it wrongly.
    `mask_path` leads to the mask among its inputs whose zeros eager ignores, if there is one (masked_positions.py).
    `disturbed` are eager's outputs for the example with its own and with other weights and floating inputs, if they
    have whole numbers among others. `names` are those of the positional arguments. `with_gradients`: the results are
    eager's where gradients are recorded, which are others.
    """

    title: str
    kind: SetKind
    calls: tuple[Inputs, ...]
    results: tuple[CallResult, ...]
    same: bool = False
    made_up: bool = False
    mask_path: str | None = None
    disturbed: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    with_gradients: bool = False

    @property
    def inputs(self) -> Inputs:
        """Those of the first call."""
        return self.calls[0]

    @property
    def wanted(self) -> list[torch.Tensor]:
        """The tensors of eager's first output. Read it while the shims are active: one may register its class."""
        return tensors_in(self.results[0].output)

    @property
    def derived(self) -> frozenset[int]:
        """The leaves of eager's output, by number, that follow from the whole-number inputs alone.

        They are the same with other weights and other floating inputs. Whoever calls the program has what they are
        computed from. Read it while the shims are active.
        """
        first, *others = [tree_leaves(output) for output in self.disturbed] or [[]]
        if len(tree_leaves(self.results[0].output)) != len(first) or any(len(one) != len(first) for one in others):
            return frozenset()
        places = [place for place, leaf in enumerate(first) if isinstance(leaf, torch.Tensor) and is_whole(leaf)]
        found = frozenset(place for place in places if all(_equal(first[place], one[place]) for one in others))
        return found if len(found) < len(first) else frozenset()


def _equal(one: torch.Tensor, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)


_DISTURBANCES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.neg,
    lambda weight: weight.flip(tuple(range(weight.dim()))),
    lambda weight: -weight.flip(tuple(range(weight.dim()))),
)
"""Each gives the weight back if it is applied twice."""


def disturbed_outputs(
    module: torch.nn.Module, output: Any, make_variants: Callable[[], Sequence[Inputs]]
) -> tuple[Any, ...]:
    """The output, and those of other weights and of inputs with other floating values; nothing if it has no whole
    numbers among others, or if eager refuses one of them."""
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    if not 0 < sum(map(is_whole, leaves)) < len(leaves):
        return ()
    weights = [weight for weight in module.parameters() if weight.is_floating_point()]
    found = [output]
    for disturb, inputs in zip(_DISTURBANCES, itertools.cycle(make_variants()), strict=False):
        try:
            _change_weights(weights, disturb)
            results = run_in_eager(module, [inputs])
        finally:
            _change_weights(weights, disturb)
        if results is None:
            return ()
        found.append(results[0].output)
    return tuple(found)


def _change_weights(weights: Sequence[torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        for weight in weights:
            weight.copy_(change(weight))


def argument_names(module: torch.nn.Module, inputs: Inputs) -> tuple[str, ...]:
    """The parameter names of the positional arguments."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    return tuple(names[: len(inputs[0])]) if len(names) >= len(inputs[0]) else ()


def named_path(path: str, names: Sequence[str]) -> str:
    """A path in the inputs, with the name of its argument in place of its position."""
    if path.startswith("[1]"):
        return path.removeprefix("[1]").removeprefix(".")
    place, _, rest = path.removeprefix("[0]").removeprefix("[").partition("]")
    return f"{names[int(place)]}{rest}" if place.isdigit() and int(place) < len(names) else path.removeprefix("[0]")


def run_in_eager(
    module: torch.nn.Module,
    calls: Sequence[Inputs],
    *,
    how: Callable[[Inputs], Any] | None = None,
    notes_state: bool = False,
) -> tuple[CallResult, ...] | None:
    """What eager gives for the calls one after the other; None if it refuses one, says nothing but NaN, or comes to no
    end."""
    try:
        results = run_calls(module, calls, how=how, notes_state=notes_state, must_end=True)
    except (Exception, NoEnd):
        return None
    return None if any(says_nothing(result.output) for result in results) else results


def says_nothing(output: Any) -> bool:
    """Whether every number of the output is NaN; a wrong program may give the same."""
    found = are_nan(tree_leaves(output))
    return bool(found) and all(found)


def sizes_of(inputs: Inputs) -> str:
    """The shapes of the inputs' tensors, the first few, as a set's title."""
    found = [list(leaf.shape) for leaf in flatten_inputs(inputs)[0] if isinstance(leaf, torch.Tensor)]
    shapes = [" x ".join(map(str, shape)) or "scalar" for shape in found]
    return ", ".join(shapes[:6]) + (f" and {len(shapes) - 6} more" if len(shapes) > 6 else "")
