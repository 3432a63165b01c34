"""A graph as steps that can be run one by one, whatever it was made of: an exported program or an ONNX file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from exportdoctor.worker.translate.failed_node import NodeFact

Effect = Literal["new", "view", "inplace", "random"]
"""What a step does: makes a new value, looks at a part of an old one, changes one, or draws random numbers."""

AxisOfChoice = int | Literal["flat", "unknown"]
"""The dimension along which elements are chosen; `flat`: among all elements."""

Float64Run = Callable[[], Any]
"""The value that a step has in float64, for the inputs that it just had. Raises where it has none."""


class UnrunnableStep(Exception):
    """A step that cannot be run by itself; nothing is known of what follows."""


@dataclass(frozen=True, kw_only=True)
class GraphStep:
    """One node. `run` takes the values of `inputs` by name and gives those of `outputs`, in order.

    `node` is what a graph's `join` needs of it; None for one that always runs alone. `reads`: the lowest dtype of fewer
    than 32 bits in which what it takes was computed, where that is known. `axis` is that of one that chooses elements.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[[Mapping[str, Any]], Sequence[Any]]
    fact: Callable[[], NodeFact]
    run_in_float64: Callable[[Mapping[str, Any]], Any] | None = None
    effect: Effect = "new"
    node: Any = None
    reads: torch.dtype | None = None
    axis: AxisOfChoice = "unknown"


Join = Callable[[Sequence[GraphStep], Sequence[str], Mapping[str, Any]], Sequence[Any]]
"""Runs steps in a row as one; gives the named outputs. Raises what it cannot do."""


@dataclass(kw_only=True)
class StepGraph:
    """Steps in an order in which they can run. `weights` gives for a parameter's or buffer's FQN its value's name.

    `constants` may read a value each time that it is asked for.
    """

    steps: list[GraphStep]
    constants: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: dict[str, str] = field(default_factory=dict)
    join: Join | None = None

    def __post_init__(self) -> None:
        self.producer = {name: place for place, step in enumerate(self.steps) for name in step.outputs}

    @property
    def lowest(self) -> torch.dtype | None:
        """The lowest dtype of fewer than 32 bits in which any of it computes, where that is known."""
        return lowest_of(step.reads for step in self.steps)

    def reshape_patterns(self) -> set[str]:
        """The constants that are nothing but the shape for a Reshape, in which 0 stands for the input's size and -1 for
        what is left: other numbers of the same meaning."""
        takers: dict[str, list[GraphStep]] = {}
        for step in self.steps:
            for name in step.inputs:
                takers.setdefault(name, []).append(step)
        return {
            name
            for name, steps in takers.items()
            if name in self.constants
            and name not in self.outputs
            and all(step.op == "Reshape" and step.inputs[1:2] == (name,) for step in steps)
            and bool((self.constants[name] <= 0).any())
        }

    @property
    def changes_values(self) -> bool:
        """Whether some step changes a value in place, so that the order of steps matters."""
        return any(step.effect == "inplace" for step in self.steps)

    def written_constants(self) -> set[str]:
        """The constants that some step changes in place, directly or through a view of them."""
        found: set[str] = set()
        for step in self.steps:
            one: GraphStep | None = step if step.effect == "inplace" else None
            while one is not None and one.effect in ("inplace", "view"):
                found.update(name for name in one.inputs if name in self.constants)
                one = self.step_of(one.inputs[0]) if one.inputs else None
        return found

    def step_of(self, name: str) -> GraphStep | None:
        """The step that makes a value."""
        place = self.producer.get(name)
        return None if place is None else self.steps[place]

    def axis_of(self, step: GraphStep) -> AxisOfChoice:
        """That of the choice which a step makes, or of which it gives a part."""
        source = self.step_of(step.inputs[0]) if "getitem" in step.op and step.inputs else None
        return step.axis if source is None else source.axis

    def without_dead_steps(self, wanted: Iterable[str]) -> set[int]:
        """The places of steps that `wanted`, the outputs, or a change in place need."""
        needed = {*wanted, *self.outputs}
        kept = set()
        for place in reversed(range(len(self.steps))):
            step = self.steps[place]
            if step.effect == "inplace" or needed.intersection(step.outputs):
                kept.add(place)
                needed.update(step.inputs)
        return kept


def lowest_of(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    """The one of the largest unit in the last place, None for none."""
    found = [one for one in dtypes if one is not None]
    return max(found, key=lambda one: torch.finfo(one).eps, default=None)


OnValue = Callable[[str, Any, GraphStep, Float64Run | None], None]


def stream_values(
    graph: StepGraph, inputs: Mapping[str, Any], on_value: OnValue, *, wanted: Container[str] | None = None
) -> list[Any]:
    """Run a graph, tell each value as soon as it is there, keep only what is still needed; returns the outputs.

    With `wanted` only these values are told, and steps in a row that lead to one of them run joined where they can.
    """
    alive = graph.without_dead_steps(name for step in graph.steps for name in step.outputs)
    uses = Counter(name for place in alive for name in graph.steps[place].inputs)
    uses.update(graph.outputs)
    values: dict[str, Any] = {name: graph.constants[name] for name in graph.outputs if name in graph.constants}
    values.update(inputs)
    row: list[GraphStep] = []
    for place in sorted(alive):
        step = graph.steps[place]
        told = wanted is None or any(name in wanted for name in step.outputs)
        if row and (step.node is None or told):
            _run_row(graph, row, values, uses)
            row = []
        if not told and wanted is not None and graph.join is not None and step.node is not None:
            row.append(step)
            continue
        values.update({name: graph.constants[name] for name in step.inputs if name not in values})
        before = {name: values[name] for name in step.inputs}
        for name, value in zip(step.outputs, step.run(before), strict=False):
            values[name] = value
            high = None if step.run_in_float64 is None or step.effect != "new" else _in_float64(step, before)
            if wanted is None or name in wanted:
                on_value(name, value, step, high)
        _forget(values, uses, step)
    _run_row(graph, row, values, uses)
    return [values.get(name) for name in graph.outputs]


def _run_row(graph: StepGraph, row: Sequence[GraphStep], values: dict[str, Any], uses: Counter[str]) -> None:
    """Run steps whose values nobody asks for, as one if they can be joined; what later steps take stays."""
    inside = Counter(name for step in row for name in step.inputs)
    made = {name for step in row for name in step.outputs}
    taken = dict.fromkeys(name for step in row for name in step.inputs if name not in made)
    values.update({name: graph.constants[name] for name in taken if name not in values})
    before = {name: values[name] for name in taken}
    later = [name for step in row for name in step.outputs if uses[name] > inside[name]]
    joined = False
    if len(row) > 1 and graph.join is not None:
        with suppress(Exception):
            values.update(zip(later, graph.join(row, later, before), strict=True))
            joined = True
    for step in row:
        if not joined:
            given = {name: values[name] for name in step.inputs}
            values.update(zip(step.outputs, step.run(given), strict=False))
        _forget(values, uses, step)


def _forget(values: dict[str, Any], uses: Counter[str], step: GraphStep) -> None:
    """Drop what no later step takes."""
    for name in step.inputs:
        uses[name] -= 1
    for name in (*step.inputs, *step.outputs):
        if not uses[name]:
            values.pop(name, None)


def _in_float64(step: GraphStep, values: Mapping[str, Any]) -> Float64Run:
    def run() -> Any:
        assert step.run_in_float64 is not None
        return step.run_in_float64(values)

    return run


def to_float64(value: Any) -> Any:
    """A floating-point tensor in float64; anything else as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
