"""Which values of an ONNX file are a program's, by numbers alone: for files without names or metadata of torch.

A step is known by the parameters that it takes, whatever their layout, and a value by what it is on the example. Only
what fits one value of the other side, and no other, is matched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.worker.numbers.step_graph import GraphStep, StepGraph, stream_values

_NEAR = 1e-4
"""How far the sums of two equal values may be apart, as a share of the sum of magnitudes."""
_SMALLEST_WEIGHT = 2
_LAYOUT_OPS = ("transpose", "permute", "reshape", "view", "identity", "squeeze", "unsqueeze", "cast", "t.default",
               "alias", "clone", "detach", "flatten", "to.dtype")  # fmt: skip


@dataclass(kw_only=True)
class _Side:
    """A graph that ran once: the size and sums of its values, and the parameters that each step takes."""

    graph: StepGraph
    sums: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    weights: dict[str, frozenset[tuple[float, ...]]] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, Any]) -> None:
        """Stream the values once; only their sums are kept."""
        held = {name: one for name, value in self.graph.constants.items() if (one := _print_of_weight(value))}
        sources: dict[str, frozenset[tuple[float, ...]]] = {name: frozenset([one]) for name, one in held.items()}

        def note(name: str, value: Any, step: GraphStep, _: Any) -> None:
            given = [sources.get(one, frozenset()) for one in step.inputs]
            taken = frozenset().union(*given)
            if any(word in step.op.lower() for word in _LAYOUT_OPS) and len(step.inputs) == 1:
                sources[name] = taken
            elif taken:
                self.weights[name] = taken
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                self.order.append(name)
                self.shapes[name] = tuple(value.shape)
                self.sums[name] = _sums(value)

        stream_values(self.graph, inputs, note)


def match_by_numbers(
    program: StepGraph, inputs: Mapping[str, Any], file: StepGraph, file_inputs: Mapping[str, Any]
) -> dict[str, str]:
    """For values of the program the file's. Raises what a step raises."""
    one, other = _Side(graph=program), _Side(graph=file)
    one.run(inputs)
    other.run(file_inputs)
    found = _by_weights(one, other)
    found |= {name: value for name, value in _by_values(one, other).items() if name not in found}
    taken: dict[str, str] = {}
    for name in one.order:
        if name in found and found[name] not in taken.values():
            taken[name] = found[name]
    return taken


def _by_weights(one: _Side, other: _Side) -> dict[str, str]:
    """Steps that take the same parameters, which no others take: the last of each side, such as the one with a bias."""
    found: dict[str, str] = {}
    mine, theirs = _last_users(one), _last_users(other)
    for weight, name in mine.items():
        value = theirs.get(weight)
        if name and value and one.shapes.get(name) == other.shapes.get(value):
            found[name] = value
    return found


def _last_users(side: _Side) -> dict[tuple[float, ...], str]:
    """For each parameter the one value that takes it; '' for several, as a shared one has."""
    found: dict[tuple[float, ...], str] = {}
    for name in side.order:
        for weight in side.weights.get(name, ()):
            found[weight] = "" if weight in found else name
    return found


def _by_values(one: _Side, other: _Side) -> dict[str, str]:
    """Values that are equal on these inputs, as far as sums show, and unlike all others of their shape."""
    rows: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in other.order:
        rows[other.shapes[name]].append(name)
    fits = {name: [each for each in rows[one.shapes[name]] if _alike(one.sums[name], other.sums[each])]
            for name in one.order}  # fmt: skip
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    for name, several in fits.items():
        for each in several:
            wanted[each].append(name)
    return {name: several[0] for name, several in fits.items() if len(several) == 1 and len(wanted[several[0]]) == 1}


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    room = _NEAR * max(one[1], other[1]) + 1e-9
    return all(abs(left - right) <= room for left, right in zip(one, other, strict=True))


def _sums(value: torch.Tensor) -> tuple[float, float, float]:
    """The sum, that of magnitudes, and one with weights that tell places apart."""
    wide = value.detach().double().flatten().nan_to_num()
    places = torch.cos(torch.arange(wide.numel(), dtype=torch.float64))
    return float(wide.sum()), float(wide.abs().sum()), float((wide * places).sum())


def _print_of_weight(value: Any) -> tuple[float, ...]:
    """What a parameter has in any layout: size, sum, magnitudes, extremes. Empty for what has too few numbers."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() < _SMALLEST_WEIGHT:
        return ()
    wide = value.detach().double()
    if not bool((wide != wide.flatten()[0]).any()):
        return ()  # ones or zeros, as many have
    numbers = (wide.sum(), wide.abs().sum(), wide.min(), wide.max())
    return (float(value.numel()), *(float(f"{float(one):.5g}") for one in numbers))
