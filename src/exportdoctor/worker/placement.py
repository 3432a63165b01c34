"""Where attempts run if the warm worker holds the model on the CPU: each child moves its own question to the GPU.

A CUDA context survives no fork, so the worker has none; a child opens its own where it needs values on the card. An
export needs none: its parameters, buffers and inputs become fake CUDA tensors, for which no context is opened.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.exception_text import summary
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.process.graphics_cards import Card, visible_cards
from exportdoctor.targets import Plan
from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.configuration import ConfigurationPlan
from exportdoctor.targets.model.device import no_such_card
from exportdoctor.targets.model.weights import SEED, RandomValues, move_buffers, replace_parameters
from exportdoctor.torch_internals.fake_cuda import FAKE_CUDA, is_shut_by_fork, stand_in_for_cuda, why_lost
from exportdoctor.torch_internals.fake_tensors import fake_tensor_class, is_fake, new_fake_mode
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.capture.call_shapes import CallShapes
from exportdoctor.worker.capture.session import PartCapture, capture_part
from exportdoctor.worker.capture.snapshot import CopyBudget, copy_view, is_plain, snapshot, with_grad_of
from exportdoctor.worker.child import fork

_CONTEXT_MB = 2048.0
"""MiB of a card that an attempt takes beside its values: the context, kernels, workspaces. Not measured."""
_CARD = torch.device("cuda:0")
_COPIES = 3
"""How often an attempt holds its values: as they are, in a copy, and as what it computes of them."""


_NEEDS_GPU = re.compile(
    r"CUDA error: |Found no NVIDIA driver|Torch not compiled with CUDA enabled|from the 'CUDA' backend|"
    r"not linked with support for cuda|libcuda\.so|No CUDA GPUs are available|no NVIDIA GPU"
)
"""What torch says where it asks for a driver or a kernel that is not there."""


class PlacementError(Exception):
    """The question could not be moved to the GPU, so nothing of it was attempted."""


@dataclass(kw_only=True)
class Placement:
    """The GPU of a worker's attempts. Without `cards` there is none, and only what needs no values can be attempted.

    `alone`: the machine shows one card to CUDA. `limit_mb`: what one attempt may take of a card. `device` is a card as
    a child sees it: of several it is shown one. `values` are what each child draws for fake parameters, by their ids.
    """

    cards: tuple[Card, ...]
    alone: bool = True
    limit_mb: float | None = None
    device: torch.device = _CARD
    values: dict[int, RandomValues] = field(default_factory=dict)

    def needed_mb(self, part: PartCapture, probe: Probe) -> float:
        """MiB of a card that the attempt may take; 0 where it needs no card."""
        if not self.cards or part.built.name.endswith(SMALL_MODEL_SUFFIX) or not self.needs_card(part, probe):
            return 0.0
        module = part.built.module if self.values else part.module_at(probe.fqn)  # its call may need the whole forward
        tensors = (*module.parameters(), *module.buffers())
        values = sum(_bytes(one) for one in tensors if not is_fake(one) or id(one) in self.values) / 2**20
        return self.limit_mb or _CONTEXT_MB + _COPIES * values

    def choose_card(self, needed_mb: float, taken_mb: Mapping[int, float]) -> int | None:
        """The card with most room for an attempt that needs so much, beside what is taken of each; None where it has to
        wait. A card of which nothing is taken is given to any."""
        room = {card: one.free_mb - taken_mb.get(card, 0.0) for card, one in enumerate(self.cards)}
        card = max(room, key=lambda one: room[one], default=0)
        return card if not taken_mb.get(card) or room[card] >= needed_mb else None

    def can_fill(self, built: BuiltPart) -> bool:
        """Whether a child has values for all that is fake in the part: parameters, and inputs that hold no indices."""
        if not self.values:
            return False
        state = (*built.module.parameters(), *built.module.buffers())
        inputs = (leaf for leaf in tree_leaves((built.args, built.kwargs)) if isinstance(leaf, torch.Tensor))
        return all(not is_fake(one) or one.is_floating_point() for one in (*state, *inputs)) and all(
            not is_fake(one) or id(one) in self.values for one in state
        )

    def needs_card(self, part: PartCapture, probe: Probe) -> bool:
        """Whether the attempt computes with values, or has tensors that no fake one can stand for."""
        if probe.to != "export" or probe.shims or EXPORTERS[probe.exporter].bakes_values:
            return True
        module, call = part.module_at(probe.fqn), part.calls_of(probe.fqn)[probe.call]
        if any(isinstance(one, torch.jit.ScriptModule) for one in module.modules()):
            return True
        if self.cards and not all(map(is_fake, part.built.module.parameters())):
            return True
        inputs = (leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor))
        return not all(is_fake(one) or is_plain(one) for one in (*module.parameters(), *module.buffers(), *inputs))


def plan_placement(plan: Plan, *, limit_mb: float | None) -> tuple[Plan, Placement | None]:
    """The plan on the CPU with the placement of its attempts, where a GPU is asked for and this process can do without.

    Raises UsageError for a card that is not there, and where the process cannot open one: its parent has asked CUDA.
    """
    options = plan.options
    cards = visible_cards() if torch.version.cuda else ()
    by_default = options.device == "auto" and options.weights != "fake" and bool(cards)
    if not (options.device.startswith("cuda") or by_default):
        return plan, None
    if not hasattr(os, "fork") or not FAKE_CUDA.is_supported() or torch.cuda.is_initialized():
        return plan, None
    if not cards and torch.cuda.is_available():  # a card of which NVML does not tell
        return plan, None
    if cards and is_shut_by_fork():
        raise UsageError(
            "This process has asked CUDA before it was forked, so that attempts cannot use the GPU",
            hint="Set PYTORCH_NVML_BASED_CUDA_CHECK=1 before torch is asked for a GPU, or write a factory and run: "
            "exportdoctor scan FILE.py:FACTORY --device cuda",
        )
    chosen = torch.device(options.device if not by_default else "cuda")
    index = chosen.index
    if index is not None and index >= len(cards) and (cards or index):
        raise no_such_card(chosen, len(cards))
    mine = cards if index is None else cards[index : index + 1]
    placement = Placement(cards=mine, alone=len(cards) == 1, limit_mb=limit_mb)
    plan = replace_device(plan, "cpu")
    if cards and isinstance(plan, ConfigurationPlan) and options.weights == "random":
        plan = dataclasses.replace(plan, without_values=True)
    return plan, placement


def forks_can_open() -> bool:
    """Whether a fork of this process could open a CUDA context: not once this one has asked CUDA for anything."""
    return fork(lambda _: b"" if is_shut_by_fork() else b"can").wait().data == b"can"


def replace_device(plan: Plan, device: str) -> Plan:
    """The plan with another device among its options."""
    return dataclasses.replace(plan, options=msgspec.structs.replace(plan.options, device=device))


@dataclass
class ChildPlacement:
    """The same in one child, which it changes for good: its card is open, or fake tensors stand in for it."""

    placement: Placement
    card: int = 0
    _mode: Any = field(default_factory=new_fake_mode)
    _made: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _opened: bool | None = None

    def place(self, part: PartCapture, probe: Probe) -> None:
        """Move the module and the call of the probe, in this process. Raises PlacementError."""
        if part.built.name.endswith(SMALL_MODEL_SUFFIX) or probe.part.endswith(SMALL_MODEL_SUFFIX):
            return
        with_values = self.placement.needs_card(part, probe)
        self._open(with_values=with_values)
        if with_values and self.placement.values and probe.fqn != part.prefix:
            self._capture_with_values(part, probe)
        module, calls, root = part.module_at(probe.fqn), part.calls_of(probe.fqn), probe.fqn == part.prefix
        try:
            self.place_module(module, with_values=with_values)
            mover = _Mover(self, with_values=with_values)
            call = calls[probe.call]
            args, kwargs = snapshot((call.args, call.kwargs), budget=mover)
            inner = [_outputs_on(mover, one) for one in call.inner]
            there = call.inner_there and [_outputs_on(mover, one) for one in call.inner_there]
            calls[probe.call] = dataclasses.replace(call, args=args, kwargs=kwargs, inner=inner, inner_there=there)
            if root:
                part.root = calls[probe.call]
                more = snapshot(part.built.more_inputs, budget=mover)
                part.built = dataclasses.replace(part.built, args=args, kwargs=kwargs, more_inputs=more)
        except RuntimeError as error:
            raise PlacementError(str(error)) from error

    def _capture_with_values(self, part: PartCapture, probe: Probe) -> None:
        """Where its call was captured with fake weights: capture the part once more, on the card, with values.

        Raises PlacementError.
        """
        call = part.calls_of(probe.fqn)[probe.call]
        if not any(is_fake(leaf) for leaf in tree_leaves((call.args, call.kwargs))):
            return
        part.built = self.place_part(part.built)
        try:
            again = capture_part(part.built, exporter=probe.exporter)
        except Exception as error:  # whatever the forward raises there, the module's call cannot be had
            raise PlacementError(f"Its inputs could not be computed on the GPU: {summary(error)}") from error
        if probe.call >= len(again.distinct.get(probe.fqn, ())):
            raise PlacementError("With values on the GPU the forward calls it in another way than with fake weights")
        part.distinct, part.root = again.distinct, again.root

    def judge(self, outcome: Outcome, *, plain_export: bool) -> Outcome:
        """The outcome; of one that failed because there is no GPU, or because its context was lost, nothing follows.

        `plain_export`: the attempt was an export and nothing else, so that its failure is the module's own.
        """
        failure = outcome.failure
        if self.placement.cards:
            lost = "" if outcome.passed or plain_export or not self._opened else why_lost()
            return Outcome(probe=outcome.probe, status=OutcomeStatus.NO_DEVICE, note=lost) if lost else outcome
        if failure is None:
            return outcome
        asked = next((one.message for one in failure.exceptions if _NEEDS_GPU.search(one.message)), None)
        if asked is None:
            return outcome
        return Outcome(probe=outcome.probe, status=OutcomeStatus.NO_DEVICE, note=asked.strip().partition("\n")[0][:300])

    def place_part(self, built: BuiltPart) -> BuiltPart:
        """The part with its inputs, for a forward on the card. Raises PlacementError."""
        self._open(with_values=True)
        try:
            self.place_module(built.module, with_values=True)
            given = built.args, built.kwargs, built.more_inputs
            args, kwargs, more = snapshot(given, budget=_Mover(self, with_values=True))
        except RuntimeError as error:
            raise PlacementError(str(error)) from error
        return dataclasses.replace(built, args=args, kwargs=kwargs, more_inputs=more)

    def _open(self, *, with_values: bool) -> None:
        """Once for all: the context that is opened here ends with the process."""
        if self._opened is not None:
            if self._opened != with_values:
                raise PlacementError("This process has its card in another way")
            return
        self._opened = with_values
        if self.placement.device.type == "cpu":
            return
        if not with_values:
            stand_in_for_cuda()
            return
        if not self.placement.cards:
            raise PlacementError("There is no GPU here, and this attempt computes with values")
        if not self.placement.alone:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.placement.cards[self.card].uuid
        os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")  # a kernel that fails is told of at its own line
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else its results differ from run to run
        torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False
        try:
            torch.empty(1, device=self.placement.device)
            if self.placement.limit_mb is not None:
                total_mb = torch.cuda.get_device_properties(0).total_memory / 2**20
                torch.cuda.set_per_process_memory_fraction(min(1.0, self.placement.limit_mb / total_mb), 0)
        except RuntimeError as error:
            raise PlacementError(str(error)) from error

    def place_module(self, module: torch.nn.Module, *, with_values: bool) -> None:
        """Its parameters and buffers, tied ones still tied."""
        if with_values and not any(map(is_fake, module.parameters())):
            module.to(self.placement.device)
            return
        replace_parameters(module, lambda _, parameter: self.once(parameter, with_values=with_values))
        if with_values:
            move_buffers(module, self.placement.device)
            return
        for one in module.modules():
            for name, buffer in one._buffers.items():
                if buffer is not None:
                    one._buffers[name] = self.once(buffer, with_values=False)

    def once(self, tensor: torch.Tensor, *, with_values: bool) -> torch.Tensor:
        """The tensor on the card, the same one each time it is asked for."""
        if id(tensor) not in self._made:
            self._made[id(tensor)] = tensor, self._on_card(tensor, with_values=with_values)
        return self._made[id(tensor)][1]

    def _on_card(self, tensor: torch.Tensor, *, with_values: bool) -> torch.Tensor:
        """A tensor of the same sizes on the card, fake where it was or where no values are needed; with the placement's
        values in place of a fake one."""
        if with_values and not is_fake(tensor):
            return tensor.detach().to(self.placement.device)
        if with_values and self.placement.values and tensor.is_floating_point():
            values = self.placement.values.get(id(tensor)) or RandomValues(seed=SEED + len(self._made))
            return values.fill(tensor, self.placement.device)
        if tensor.device == self.placement.device:
            return tensor
        meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        made: torch.Tensor = fake_tensor_class()(self._mode, meta, self.placement.device)
        return made


class _Mover(CopyBudget):
    """Copies inputs to the card; a device that they name becomes the card's, since they were made on the CPU."""

    def __init__(self, child: ChildPlacement, *, with_values: bool) -> None:
        super().__init__(left=0, mode=None)
        self.child, self.with_values = child, with_values

    def device(self, device: torch.device) -> torch.device:
        """The card in place of the CPU."""
        return self.child.placement.device if device.type == "cpu" else device

    def keep(self, tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
        """The tensor on the card. Raises PlacementError: what copies inputs goes on after a RuntimeError."""
        try:
            if self.with_values and is_plain(tensor):
                return copy_view(tensor, memo, self.child.placement.device)
            return with_grad_of(self.child.once(tensor, with_values=self.with_values), tensor)
        except RuntimeError as error:
            raise PlacementError(str(error)) from error


def _outputs_on(mover: _Mover, seen: CallShapes) -> CallShapes:
    """A child's call with outputs on the card, where an opaque operator makes them anew."""
    given = tuple(
        dataclasses.replace(
            leaf,
            device=leaf.device and mover.device(leaf.device),
            value=mover.device(leaf.value) if isinstance(leaf.value, torch.device) else leaf.value,
        )
        for leaf in seen.given
    )
    return dataclasses.replace(seen, given=given)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
