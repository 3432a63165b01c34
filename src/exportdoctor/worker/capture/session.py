"""A captured part: its modules, the distinct calls of each, and their digests."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.protocol.scan import CallFact, Captured, EquivalenceGroup, ModuleFact
from exportdoctor.core.records.probe import Probe
from exportdoctor.report.wording import capture as wording
from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.eager import needs_gradients
from exportdoctor.targets.training_mode import in_training_mode
from exportdoctor.torch_internals.fake_tensors import has_fakes
from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.torch_internals.pytree_registry import names_registered_in
from exportdoctor.torch_internals.trees import tree_flatten
from exportdoctor.worker.capture.dim_names import declared_dims, dims_of_submodule, name_axes, select_dims
from exportdoctor.worker.capture.dynamic_dims import dynamic_shapes_of, input_facts, leaves_of
from exportdoctor.worker.capture.fingerprint import Fingerprints, Question
from exportdoctor.worker.capture.forward_hooks import CALLS_KEPT, Call, ModuleCalls, add_dims, record_calls
from exportdoctor.worker.capture.outside_mentions import find_mentioned
from exportdoctor.worker.capture.snapshot import CopyBudget

Shapes = dict[str, Any] | tuple[Any, ...] | list[Any] | None
"""`dynamic_shapes` of `torch.export.export`."""


@dataclass
class PartCapture:
    """A part after its forward has run: its modules by FQN, and the distinct calls of each.

    `registered` are the classes that are pytree nodes only while the part is exported. `fixed` gives the modules that
    are asked at fixed sizes although the part has dynamic ones, each with the reason. `at_one_size` holds every call
    until the forward has run at other sizes, where it has not yet. `returned` is as in Captured.
    """

    built: BuiltPart
    fqns: dict[str, torch.nn.Module]
    names: Mapping[int, str]
    registered: tuple[str, ...] = ()
    distinct: dict[str, list[Call]] = field(default_factory=dict)
    questions: dict[str, list[Question]] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fixed: dict[str, str] = field(default_factory=dict)
    root: Call = field(default_factory=lambda: Call((), {}))
    at_one_size: dict[int, ModuleCalls] | None = None
    returned: tuple[str, ...] | None = None

    @property
    def prefix(self) -> str:
        """The FQN of the part's root."""
        return self.built.prefix

    @property
    def dynamic_shapes(self) -> Any:
        """The dynamic shapes that the target declares for the root's inputs."""
        return self.built.dynamic_shapes

    @property
    def prepare(self) -> Callable[[], AbstractContextManager[Any]]:
        """A context manager for every attempt."""
        return self.built.prepare

    def note(self, text: str) -> None:
        """Add what a reader of the report should know of this part."""
        self.notes.append(f"{self.built.name}: {text}")

    def module_at(self, fqn: str) -> torch.nn.Module:
        """The submodule of that FQN."""
        return self.fqns[fqn]

    def by_id(self) -> dict[int, tuple[str, torch.nn.Module]]:
        """Maps id(module) to (first FQN, module)."""
        return {id(module): (self.names[state_id(module)], module) for module in self.fqns.values()}

    def calls_of(self, fqn: str) -> list[Call]:
        """Its distinct calls."""
        return self.distinct[fqn]


def capture_root_only(built: BuiltPart) -> PartCapture:
    """The part with the root's own inputs only; its forward is not run."""
    part = _new_capture(built)
    part.root = Call(built.args, built.kwargs)
    part.distinct[built.prefix] = [part.root]
    part.questions[built.prefix] = [_question(part, built.prefix, built.module, part.root, Fingerprints())]
    return part


def _new_capture(built: BuiltPart) -> PartCapture:
    fqns = {_join(built.prefix, path): m for path, m in built.module.named_modules(remove_duplicate=False)}
    names: dict[int, str] = {}
    for fqn, module in fqns.items():
        names.setdefault(state_id(module), fqn)
    registered = names_registered_in(built.prepare())
    part = PartCapture(built, fqns, names, registered=registered)
    if registered:
        part.note(wording.registered_classes(registered))
    for paths in _one_tensor_twice(built):
        part.note(wording.one_tensor_twice(paths))
    if layers := in_training_mode(built.module):
        part.note(wording.training_mode(layers))
    if built.left_out:
        part.note(wording.inputs_left_out(built.left_out, built.because))
    if built.not_made:
        part.note(wording.inputs_not_made(built.not_made))
    if built.unused:
        part.note(wording.other_sizes_unused(built.unused))
    if built.alone:
        part.note(wording.captured_alone(built.alone))
    return part


def _one_tensor_twice(built: BuiltPart) -> list[list[str]]:
    """The paths of the inputs that are one tensor."""
    found: dict[int, list[str]] = {}
    for path, leaf in leaves_of(built.args, built.kwargs):
        if isinstance(leaf, torch.Tensor):
            found.setdefault(id(leaf), []).append(path)
    return [paths for paths in found.values() if len(paths) > 1]


def capture_part(built: BuiltPart, *, exporter: str, at_one_size: bool = False) -> PartCapture:
    """Run the part's forward once, and once more at other sizes where it has dynamic dimensions.

    With `at_one_size` the second time waits until `complete_capture`. Raises what the eager forward raises.
    """
    part, budget = _new_capture(built), CopyBudget()
    with built.prepare():
        calls = record_calls(built.module, built.args, built.kwargs, budget=budget)
        if needs_gradients(built.module):
            part.note(wording.COMPUTES_GRADIENTS)
        if budget.faked:
            part.note(wording.inputs_without_values(budget.faked))
        scripted = sum(isinstance(module, torch.jit.ScriptModule) for module in built.module.modules())
        if scripted:
            part.note(wording.scripted_modules(scripted))
        more = built.dynamic_shapes is not None and bool(built.more_inputs)
        if built.dynamic_shapes is not None and not more and len(part.fqns) > 1:
            part.fixed = _all_below(part, wording.NO_OTHER_SIZES)
            part.note(wording.ASKED_WITHOUT_OTHER_SIZES)
        part.at_one_size = calls if more else None
        if at_one_size or not more:
            _keep_calls(part, calls, exporter=exporter)
    return part if at_one_size else complete_capture(part, exporter=exporter)


def complete_capture(part: PartCapture, *, exporter: str) -> PartCapture:
    """The part after a second forward pass, at other sizes."""
    calls, part.at_one_size = part.at_one_size, None
    if calls is None:
        return part
    args, kwargs = part.built.more_inputs[0]
    with part.prepare():
        try:
            apart = add_dims(calls, record_calls(part.built.module, args, kwargs, budget=CopyBudget(), behaves=False))
            fixed = [fqn for fqn, module in part.fqns.items() if id(module) in apart and fqn != part.prefix]
            part.fixed = dict.fromkeys(fixed, wording.NOT_COMPARABLE)
            if fixed:
                part.note(wording.incomparable_modules(fixed))
            _fix_packed_sequences(part, calls)
        except Exception as error:  # the first capture stands; only what is dynamic in submodules stays unknown
            part.fixed = _all_below(part, wording.FAILS_AT_OTHER_SIZES)
            part.note(wording.failed_at_other_sizes(type(error).__name__))
        _keep_calls(part, calls, exporter=exporter)
    return part


def _fix_packed_sequences(part: PartCapture, calls: dict[int, ModuleCalls]) -> None:
    """Ask submodules that are given a PackedSequence at fixed sizes: torch takes no `dynamic_shapes` for one."""
    for fqn, module in part.fqns.items():
        kept = calls.get(id(module), ModuleCalls()).kept if fqn != part.prefix else []
        if any(map(_takes_packed_sequence, kept)):
            part.fixed[fqn] = wording.PACKED_SEQUENCE
            for call in kept:
                call.dims = {}


def _takes_packed_sequence(call: Call) -> bool:
    kind = torch.nn.utils.rnn.PackedSequence
    leaves, _ = tree_flatten((call.args, call.kwargs), is_leaf=lambda value: isinstance(value, kind))
    return any(isinstance(leaf, kind) for leaf in leaves)


def _all_below(part: PartCapture, reason: str) -> dict[str, str]:
    return {fqn: reason for fqn in part.fqns if fqn != part.prefix}


def _keep_calls(part: PartCapture, calls: dict[int, ModuleCalls], *, exporter: str) -> None:
    """Name the axes of all calls, and keep each module's distinct ones."""
    part.root = Call(part.built.args, part.built.kwargs)
    if id(part.built.module) in calls:  # a ScriptModule tells of no call
        part.returned = calls[id(part.built.module)].returned
        seen = calls[id(part.built.module)].kept[0]
        part.root = dataclasses.replace(part.root, inner=seen.inner, inner_there=seen.inner_there)
    name_axes(part.built, part.root, (call for one in calls.values() for call in one.kept))
    mentioned = find_mentioned(part.fqns.values())
    _keep_distinct(part, calls, Fingerprints(values_matter=EXPORTERS[exporter].bakes_values, mentioned=mentioned))
    if many := [fqn for fqn, count in part.left_out.items() if count]:
        part.note(wording.calls_left_out(many, kept=CALLS_KEPT))


def _keep_distinct(part: PartCapture, calls: dict[int, ModuleCalls], fingerprints: Fingerprints) -> None:
    for fqn, module in part.fqns.items():
        found: dict[str, tuple[Call, Question]] = {}
        for call in calls.get(id(module), ModuleCalls()).kept:
            question = _question(part, fqn, module, call, fingerprints)
            if question.full in found:
                found[question.full][0].times += 1
            else:
                found[question.full] = (dataclasses.replace(call, times=1), question)
        if not found and fqn != part.prefix:
            continue
        kept = list(found.values())[:CALLS_KEPT]
        if fqn == part.prefix:
            kept = [(part.root, _question(part, fqn, module, part.root, fingerprints))]
        part.distinct[fqn] = [call for call, _ in kept]
        part.questions[fqn] = [question for _, question in kept]
        if fqn != part.prefix:
            unseen = max(0, calls[id(module)].seen - len(calls[id(module)].kept))
            part.left_out[fqn] = len(found) - len(kept) + unseen


def _question(part: PartCapture, fqn: str, module: torch.nn.Module, call: Call, fingerprints: Fingerprints) -> Question:
    root = fqn == part.prefix
    auto = [place for place, dim in dims_of_submodule(part.built, call).items() if dim == torch.export.Dim.AUTO]
    dims = f"dims {sorted(call.axes.items(), key=repr)!r} did {call.behaviour}{f' auto {auto!r}' if auto else ''}"
    extra = f"root {part.dynamic_shapes!r}" if root else dims
    return fingerprints.question(module, call.args, call.kwargs, extra, alone=call.reads_whole_state)


def captured_fact(part: PartCapture, *, seconds: float) -> Captured:
    """The part as it is sent to the engine."""
    groups, differing = _equivalence_groups(part)
    modules = []
    for fqn, module in part.fqns.items():
        first = part.names[state_id(module)]
        modules.append(
            ModuleFact(
                fqn=fqn,
                class_name=type(module).__name__,
                parameters=sum(p.numel() for p in module.parameters()),
                scripted=isinstance(module, torch.jit.ScriptModule),
                calls=tuple(
                    _call_fact(part, fqn, index, differing) for index in range(len(part.distinct.get(fqn, ())))
                ),
                same_object=first if first != fqn else None,
                calls_left_out=part.left_out.get(fqn, 0),
                at_fixed_sizes=part.fixed.get(fqn, ""),
            )
        )
    return Captured(
        part=part.built.name,
        title=part.built.title,
        prefix=part.prefix,
        seconds=round(seconds, 3),
        modules=tuple(modules),
        groups=groups,
        axes=dict(part.built.axes),
        notes=tuple(part.notes),
        at_one_size=part.at_one_size is not None,
        registered=part.registered,
        has_values=not has_fakes(part.built.module, (part.built.args, part.built.kwargs)),
        unnamed_inputs=_has_unnamed_inputs(part.built),
        returned=part.returned,
    )


def _has_unnamed_inputs(built: BuiltPart) -> bool:
    """Whether some of the inputs go to forward's `*args`, or to a parameter that takes no keyword."""
    try:
        bound = inspect.signature(built.module.forward).bind(*built.args, **built.kwargs)
    except (TypeError, ValueError):  # TorchScript has no signature
        return False
    given = bound.signature.parameters
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    return any(
        given[name].kind in unnamed and not (isinstance(value, tuple) and not value)
        for name, value in bound.arguments.items()
    )


def _equivalence_groups(part: PartCapture) -> tuple[tuple[EquivalenceGroup, ...], dict[str, tuple[int, ...]]]:
    """Groups of questions that differ only in values of plain attributes, each with those attributes."""
    by_group: dict[str, dict[str, Question]] = {}
    for questions in part.questions.values():
        for question in questions:
            by_group.setdefault(question.group, {})[question.full] = question
    groups, positions = [], {}
    for name, members in by_group.items():
        if len(members) < 2:
            continue
        columns = list(zip(*(question.scalars for question in members.values()), strict=True))
        places = tuple(i for i, column in enumerate(columns) if len({value for _, _, value in column}) > 1)
        positions[name] = places
        groups.append(EquivalenceGroup(id=name, differing=tuple(columns[i][0][:2] for i in places)))
    return tuple(groups), positions


def _call_fact(part: PartCapture, fqn: str, index: int, differing: dict[str, tuple[int, ...]]) -> CallFact:
    call, question = part.distinct[fqn][index], part.questions[fqn][index]
    return CallFact(
        question=question.full,
        group=question.group,
        times=call.times,
        inputs=input_facts(leaves_of(call.args, call.kwargs), call.axes),
        marks=tuple(question.scalars[i][2] for i in differing.get(question.group, ())),
    )


def _join(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path


def shapes_for(part: PartCapture, probe: Probe, module: torch.nn.Module) -> Shapes:
    """The target's own dynamic shapes for the root; for a submodule those that differ between two captures."""
    return shapes_of_call(part, probe, module, part.calls_of(probe.fqn)[probe.call])


def shapes_of_call(part: PartCapture, probe: Probe, module: torch.nn.Module, call: Call) -> Shapes:
    """As `shapes_for`, of this call."""
    root = probe.fqn == part.prefix
    if root and probe.dynamic is None:
        return part.dynamic_shapes
    dims = declared_dims(part.built) if root else dims_of_submodule(part.built, call)
    return dynamic_shapes_of(module, call.args, call.kwargs, select_dims(call, dims, probe.dynamic))
