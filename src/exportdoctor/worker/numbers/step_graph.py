"""A graph as steps that can be run one by one, whatever it was made of: an exported program or an ONNX file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from exportdoctor.worker.translate.failed_node import NodeFact

Effect = Literal["new", "view", "inplace", "random"]
"""What a step does: makes a new value, looks at a part of an old one, changes one, or draws random numbers."""

Float64Run = Callable[[], Any]
"""The value that a step has in float64, for the inputs that it just had. Raises where it has none."""


class UnrunnableStep(Exception):
    """A step that cannot be run by itself; nothing is known of what follows."""


@dataclass(frozen=True, kw_only=True)
class GraphStep:
    """One node. `run` takes the values of `inputs` by name and gives those of `outputs`, in order."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[[Mapping[str, Any]], Sequence[Any]]
    fact: Callable[[], NodeFact]
    run_in_float64: Callable[[Mapping[str, Any]], Any] | None = None
    effect: Effect = "new"


@dataclass(kw_only=True)
class StepGraph:
    """Steps in an order in which they can run. `weights` gives for a parameter's or buffer's FQN its value's name."""

    steps: list[GraphStep]
    constants: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producer = {name: place for place, step in enumerate(self.steps) for name in step.outputs}

    @property
    def changes_values(self) -> bool:
        """Whether some step changes a value in place, so that the order of steps matters."""
        return any(step.effect == "inplace" for step in self.steps)

    def step_of(self, name: str) -> GraphStep | None:
        """The step that makes a value."""
        place = self.producer.get(name)
        return None if place is None else self.steps[place]

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


OnValue = Callable[[str, Any, GraphStep, Float64Run | None], None]


def stream_values(graph: StepGraph, inputs: Mapping[str, Any], on_value: OnValue) -> list[Any]:
    """Run a graph, tell each value as soon as it is there, keep only what is still needed; returns the outputs."""
    alive = graph.without_dead_steps(name for step in graph.steps for name in step.outputs)
    uses = Counter(name for place in alive for name in graph.steps[place].inputs)
    uses.update(graph.outputs)
    values: dict[str, Any] = {**graph.constants, **inputs}
    for place in sorted(alive):
        step = graph.steps[place]
        before = {name: values[name] for name in step.inputs}
        for name, value in zip(step.outputs, step.run(before), strict=False):
            values[name] = value
            high = None if step.run_in_float64 is None or step.effect != "new" else _in_float64(step, before)
            on_value(name, value, step, high)
        for name in step.inputs:
            uses[name] -= 1
        for name in (*step.inputs, *step.outputs):
            if not uses[name] and name in values and name not in graph.constants:
                del values[name]
    return [values.get(name) for name in graph.outputs]


def _in_float64(step: GraphStep, values: Mapping[str, Any]) -> Float64Run:
    def run() -> Any:
        assert step.run_in_float64 is not None
        return step.run_in_float64(values)

    return run


def to_float64(value: Any) -> Any:
    """A floating-point tensor in float64; anything else as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
