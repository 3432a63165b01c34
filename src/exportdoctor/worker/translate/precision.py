"""The error of a low precision: eager in it against eager in float32, and the ops that add most of the error."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from exportdoctor.core.protocol.export import Precision, PrecisionLoss
from exportdoctor.targets import BuiltPart, BuiltTarget, Plan, build
from exportdoctor.targets.eager import copy_inputs, run_once
from exportdoctor.torch_internals.trees import tree_leaves, tree_map
from exportdoctor.worker import environment
from exportdoctor.worker.prove.compare_outputs import LARGEST, largest_difference, tensors_in
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.translate.failed_node import fx_fact
from exportdoctor.worker.translate.onnx_program import runnable

LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_MOST_LOSSES = 3
_PARTS_AT = 0.25
"""Losses below this share of the largest one are left out."""


@dataclass(frozen=True, kw_only=True)
class Float32Model:
    """The same target in float32."""

    built: BuiltTarget

    def share_with(self, other: BuiltTarget) -> None:
        """Give `other` the reference's weights: random weights drawn in two dtypes would be two models."""
        values = dict(self.built.model.state_dict(keep_vars=True))
        with torch.no_grad():
            for name, tensor in other.model.state_dict(keep_vars=True).items():
                if name in values and values[name].shape == tensor.shape:
                    tensor.copy_(values[name])


def reference_for(plan: Plan) -> Float32Model | None:
    """The reference for a low precision; None for other dtypes, or if there is not enough memory."""
    if plan.options.dtype not in LOW:
        return None
    options = msgspec.structs.replace(plan.options, dtype="float32")
    built = build(dataclasses.replace(plan, options=options))
    return Float32Model(built=built) if environment.fits_in_memory(built.parameters) else None


def cost_of_dtype(
    reference: Float32Model, part: BuiltPart, one: InputSet, losses: tuple[PrecisionLoss, ...]
) -> Precision:
    """Eager in the low precision beside eager in float32, both on the inputs of the low one."""
    other = dataclasses.replace(part, module=_module_in(reference, part))
    inputs = tree_map(_to_float32, copy_inputs(one.inputs))
    with part.prepare():
        exact, found = tensors_in(run_once(other.module, inputs)), one.wanted
    pairs = [(low.to(high.dtype), high) for low, high in zip(found, exact, strict=True) if high.is_floating_point()]
    worst = max((_share(low, high) for low, high in pairs), default=(0.0, 0.0), key=lambda found: found[1])
    dtype = next((name for name, kind in LOW.items() if any(t.dtype == kind for t in found)), "")
    overflows = [loss for loss in losses if loss.after >= LARGEST]
    return Precision(
        dtype=dtype,
        max_abs=worst[0],
        share=worst[1],
        digits=round(-math.log10(worst[1]), 1) if 0 < worst[1] < 1 else 0.0,
        losses=tuple(loss for loss in losses if loss not in overflows),
        overflow=overflows[0] if overflows else None,
    )


def _module_in(reference: Float32Model, part: BuiltPart) -> torch.nn.Module:
    """The same part of the float32 model, with the same wrapper."""
    there = reference.built.part(
        part.name if part.name in reference.built.makers else next(iter(reference.built.makers))
    )
    rewrap = getattr(part.module, "around", None)
    return rewrap(there.module) if rewrap is not None else there.module


def _to_float32(value: Any) -> Any:
    low = isinstance(value, torch.Tensor) and value.dtype in LOW.values()
    return value.float() if low else value


def _share(low: torch.Tensor, high: torch.Tensor) -> tuple[float, float]:
    absolute, _, _ = largest_difference(low, high)
    largest = float(high.abs().max()) if high.numel() else 0.0
    return absolute, min(absolute / largest, LARGEST) if largest else 0.0


def losses_of(program: Any, inputs: list[Any]) -> tuple[PrecisionLoss, ...]:
    """The ops of a program at which most is lost on these inputs, in the order of the program.

    Each op runs twice: on low values as it is, and on float32 values that were carried along from the start.
    """
    shadow = _Float32Interpreter(runnable(program))
    shadow.run(*inputs)
    grown = sorted(shadow.found, key=lambda loss: loss.after - loss.before, reverse=True)
    if not grown:
        return ()
    limit = (grown[0].after - grown[0].before) * _PARTS_AT if grown[0].after < LARGEST else LARGEST
    kept = [loss for loss in grown[:_MOST_LOSSES] if loss.after - loss.before >= limit]
    return tuple(loss for loss in shadow.found if loss in kept)


class _Float32Interpreter(torch.fx.Interpreter):
    """Runs a graph in its own precision, with every value in float32 beside it."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.high: dict[torch.fx.Node, Any] = {}
        self.errors: dict[torch.fx.Node, float] = {}
        self.found: list[PrecisionLoss] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        """The low value; the high one and its distance are noted."""
        low = super().run_node(n)
        self.high[n] = self._high(n, low)
        self.errors[n] = _distance(low, self.high[n])
        before = max((self.errors.get(one, 0.0) for one in n.all_input_nodes), default=0.0)
        if n.op == "call_function" and self.errors[n] > before:
            fact = fx_fact(n)
            self.found.append(
                PrecisionLoss(node=fact.name, op=fact.op, module=fact.module, before=before, after=self.errors[n])
            )
        for done in self.user_to_last_uses.get(n, []):
            self.high.pop(done, None)
        return low

    def _high(self, n: torch.fx.Node, low: Any) -> Any:
        if n.op != "call_function":
            return tree_map(_to_float32, low)
        args, kwargs = torch.fx.node.map_arg((n.args, n.kwargs), lambda one: self.high[one])
        args, kwargs = tree_map(_no_low_dtype, (args, kwargs))
        try:
            return n.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # an op that knows its dtype only: float32 starts again from its low result
            return tree_map(_to_float32, low)


def _no_low_dtype(value: Any) -> Any:
    return torch.float32 if value in LOW.values() and isinstance(value, torch.dtype) else value


def _distance(low: Any, high: Any) -> float:
    """The largest difference over the largest value; LARGEST where only the low value is not finite."""
    worst = 0.0
    for one, other in zip(tree_leaves(low), tree_leaves(high), strict=False):
        if not isinstance(one, torch.Tensor) or not one.is_floating_point() or one.numel() == 0:
            continue
        one, other = one.double(), other.double()
        if bool((other.isfinite() & ~one.isfinite()).any()):
            return LARGEST
        seen = one.isfinite() & other.isfinite()
        largest = float(other[seen].abs().max()) if bool(seen.any()) else 0.0
        if largest:
            worst = max(worst, float((one - other)[seen].abs().max()) / largest)
    return worst
