"""The target of a worker: import it, build it, warm up, capture its parts, and name what the outcomes depend on."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from operator import itemgetter

import msgspec
import torch

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import ExportdoctorError, StoreError, TargetError
from exportdoctor.core.exception_text import class_name, summary
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX, Capture, Captured, Open, Opened, Prepare, Prepared
from exportdoctor.core.records.target import TargetRef
from exportdoctor.process.group import name_exit
from exportdoctor.report.wording import capture as wording
from exportdoctor.report.wording import missing_internals, substitutions, unrecorded_note
from exportdoctor.targets import (
    Plan,
    build,
    build_small_model,
    check_operations,
    has_small_model,
    plan_small_models,
    resolve,
)
from exportdoctor.targets.built import BuiltPart, BuiltTarget
from exportdoctor.targets.configuration import ConfigurationPlan
from exportdoctor.targets.eager import blame_running_code, run_once
from exportdoctor.targets.factory.factory_plan import FactoryPlan
from exportdoctor.targets.model.weights import plan_random_values
from exportdoctor.torch_internals.fake_cuda import keep_driver_out, start_autograd_without_threads, without_context
from exportdoctor.torch_internals.fake_tensors import has_fakes, is_fake
from exportdoctor.torch_internals.hook_table import missing_hooks
from exportdoctor.torch_internals.tracing_modes import has_global_hooks
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker import environment
from exportdoctor.worker.capture.carried_capture import pack_capture, unpack_capture
from exportdoctor.worker.capture.eager_failure import eager_failure, wants_values
from exportdoctor.worker.capture.session import (
    PartCapture,
    capture_part,
    capture_root_only,
    captured_fact,
    complete_capture,
)
from exportdoctor.worker.child import fork
from exportdoctor.worker.describe.own_fault import own_fault
from exportdoctor.worker.held_target import take_held
from exportdoctor.worker.placement import ChildPlacement, Placement, forks_can_open, plan_placement, replace_device
from exportdoctor.worker.read_log import LOG
from exportdoctor.worker.translate.onnx_program import warm_up_translation

_MANY_ELEMENTS = 2_000_000
"""Of the inputs of a part: an image of 800 by 800. On more, a small model's forward may take long."""


@contextmanager
def _without_timers() -> Iterator[None]:
    """Take back the alarms that the target's code sets: they would end this process later. A fork has none."""
    try:
        yield
    finally:
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)


@dataclass
class OpenTarget:
    """The target of this worker and its parts. `given` is a plan whose module is in memory already.

    `small_models` have the same architecture; each is built when its parts are first captured. With a `placement` the
    model is held on the CPU, and each attempt moves its own question to the GPU.
    """

    given: Plan | None = None
    plan: Plan | None = None
    built: BuiltTarget | None = None
    parts: dict[str, PartCapture] = field(default_factory=dict)
    shim_files: tuple[str, ...] = ()
    small_models: list[tuple[ConfigurationPlan, BuiltTarget | TargetError]] = field(default_factory=list)
    placement: Placement | None = None
    _prepared: dict[str, BuiltPart] = field(default_factory=dict)
    _sources: dict[str, str] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def open(self, command: Open) -> Opened:
        """Build the target. Raises UsageError and TargetError."""
        LOG.start()
        with LOG.watch(), _without_timers():
            return self._open(command)

    def _open(self, command: Open) -> Opened:
        started = time.perf_counter()
        if command.isolation != "process":
            # libgomp's threads do not survive a fork: with one thread no parallel region is ever entered
            torch.set_num_threads(1)
        keep_driver_out()
        target, self.shim_files = command.target, command.shim_files
        self.plan = self.given if self.given is not None or target is None else resolve(target)
        assert self.plan is not None
        if isinstance(self.plan, FactoryPlan):
            LOG.note_working_folder()
        asked = self.plan.options.device
        if command.isolation != "process":
            self.plan, self.placement = plan_placement(self.plan, limit_mb=command.gpu_memory_mb)
        with without_context():
            warm_up(command.to)  # before the target's code, which may replace parts of torch
        with blame_running_code(f"Building {self.plan.title} failed"):
            built = self.built = take_held(self.plan) or self._build()
            if self.placement is not None and _keeps_forks_off(self.placement):
                self.plan, self.placement = replace_device(_with_values(self.plan), asked), None
                built = self.built = build(self.plan)
            isolation = _isolation(command.isolation)
            if isolation == "fork":
                start_autograd_without_threads()  # before a forward that computes gradients starts it with some
            self._sources = sources = environment.sources(built.model)
            environment.hold_sources()
            return Opened(
                environment=environment.versions(),
                parameters=built.parameters,
                weights=built.weights,
                device=built.device if self.placement is None else "cuda" if asked == "auto" else asked,
                dtype=built.dtype,
                isolation=isolation,
                seconds=round(time.perf_counter() - started, 3),
                parts=tuple(self.plan.parts),
                sources=sources,
                notes=(
                    *substitutions(built.substitutions),
                    *((wording.NO_KERNEL_RUNS,) if self.runs_no_kernel else ()),
                    *(wording.replaced_function(*each) for each in environment.replaced_functions()),
                    *filter(None, [missing_internals(missing_hooks()), unrecorded_note(self._take_new_reasons())]),
                ),
                has_small_model=(built.weights == "fake" or _waits_for_values(self.plan))
                and has_small_model(self.plan),
                runs_kernels=not self.runs_no_kernel,
            )

    def _build(self) -> BuiltTarget:
        """The target. Weights that attempts could draw themselves are drawn here where it cannot be built without."""
        assert self.plan is not None
        if self.placement is None or not _waits_for_values(self.plan):
            return build(self.plan)
        try:
            built = build(self.plan)
        except TargetError:
            self.plan = _with_values(self.plan)
            return build(self.plan)
        self.placement.values = plan_random_values(built.model)
        return built

    def _make_part(self, name: str) -> BuiltPart:
        """The part; of a target with values where one without does not give it. Raises whatever making it raises."""
        assert self.built is not None
        assert self.plan is not None
        try:
            return self.built.part(name)
        except TargetError:
            if not _waits_for_values(self.plan):
                raise
            self.plan = _with_values(self.plan)
            self.built = build(self.plan)
            return self.built.part(name)

    @property
    def runs_no_kernel(self) -> bool:
        """Whether a GPU was asked for and there is none: attempts see fake CUDA tensors alone."""
        return self.placement is not None and not self.placement.cards

    def prepare(self, command: Prepare) -> Prepared:
        """Make a part's inputs; nothing of the part runs. Raises whatever making them raises."""
        assert self.built is not None
        with LOG.watch(), self._on_cpu(), blame_running_code(f"Making the inputs of part {command.part} failed"):
            entry = self._prepared[command.part] = self._make_part(command.part)
            self.parts[command.part] = root = capture_root_only(entry)
        return Prepared(part=command.part, prefix=entry.prefix, question=root.questions[entry.prefix][0].full)

    def capture(self, command: Capture) -> Captured:
        """Capture a part. Raises TargetError where its eager forward fails."""
        with LOG.watch(), _without_timers(), blame_running_code(f"Capturing part {command.part} failed"):
            return self._capture_with_sources(command)

    def _on_cpu(self) -> AbstractContextManager[None]:
        return without_context() if self.placement is not None else nullcontext()

    def _capture_with_sources(self, command: Capture) -> Captured:
        assert self.built is not None
        started = time.perf_counter()
        before = self.parts.get(command.part)
        part = self._capture_anywhere(self.built, command, before)
        self.parts[command.part] = part
        placement = self.placement
        with part.prepare():  # classes of inputs that are pytree nodes only now
            fills = placement is not None and placement.can_fill(part.built)
            if fills and has_fakes(torch.nn.Module(), (part.built.args, part.built.kwargs)):
                part.note(wording.INPUTS_DRAWN_ON_GPU)
        fact = captured_fact(part, seconds=time.perf_counter() - started)
        if fills:
            fact = msgspec.structs.replace(fact, has_values=True)
        environment.hold_sources()
        now = environment.sources(part.built.module)
        sources = {what: identity for what, identity in now.items() if self._sources.get(what) != identity}
        note = unrecorded_note(self._take_new_reasons())
        notes = (*fact.notes, wording.kept_by_programs(note)) if note else fact.notes
        return msgspec.structs.replace(fact, part=command.part, sources=sources, notes=notes)

    def _take_new_reasons(self) -> tuple[str, ...]:
        """Why not all is known of what was read, but for what this has said before."""
        found = tuple(reason for reason in LOG.reasons() if reason not in self._told)
        self._told.update(found)
        return found

    def _capture_anywhere(self, built: BuiltTarget, command: Capture, before: PartCapture | None) -> PartCapture:
        """On the CPU; where the forward fails there and a GPU was asked for, in a child on the GPU."""
        try:
            with self._on_cpu():
                return self._capture_here(built, command, before)
        except TargetError as error:
            if self.placement is None or not self.placement.cards or command.part.endswith(SMALL_MODEL_SUFFIX):
                raise
            with self._on_cpu():
                entry = self._make_part(command.part)
            part = capture_in_child(entry, self.placement, exporter=command.exporter)
            told = (
                wording.captured_with_values
                if any(map(is_fake, entry.module.parameters()))
                else wording.captured_on_gpu
            )
            part.note(told(first_line(error)))
            return part

    def _capture_here(self, built: BuiltTarget, command: Capture, before: PartCapture | None) -> PartCapture:
        if command.part.endswith(SMALL_MODEL_SUFFIX):
            return self._capture_small_model(command.part.removesuffix(SMALL_MODEL_SUFFIX))
        if before is not None and before.at_one_size is not None and not command.at_one_size:
            return complete_capture(before, exporter=command.exporter)
        return self._capture(built, command)

    def _capture(self, built: BuiltTarget, command: Capture) -> PartCapture:
        entry: BuiltPart | None = None
        try:
            entry = self._prepared.pop(command.part, None) or self._make_part(command.part)
            return capture_part(entry, exporter=command.exporter, at_one_size=command.at_one_size)
        except ExportdoctorError:
            raise
        except BaseException as error:  # also what would end the process
            rebuilt = self._rebuild_with_values(error)
            if rebuilt is not None:
                part = self._capture(rebuilt, command)
                part.note(wording.needs_values(class_name(type(error))))
                return part
            if own_fault(error):
                raise
            fake = built.weights == "fake" and wants_values(error)
            raise eager_failure(error, command.part, entry, fake=fake) from error

    def _capture_small_model(self, name: str) -> PartCapture:
        """The root alone; its submodules are never attempted.

        Raises TargetError where no small model runs, with what came of images of the usual size: a model that refuses
        small ones refuses them at any width.
        """
        assert self.plan is not None
        known = self.parts.get(name)
        large = known is not None and _count_elements(known.built) > _MANY_ELEMENTS
        errors: list[tuple[bool, Exception]] = []
        for plan in plan_small_models(self.plan, small_images=large):
            try:
                model = self._small_model(plan)
                if large:
                    check_operations(plan, name)
                entry = model.part(name)
                run_once(entry.module, (entry.args, entry.kwargs))
                return capture_root_only(entry)
            except Exception as error:
                errors.append((plan.options.image_size != self.plan.options.image_size, error))
        _, first = min(errors, key=itemgetter(0))
        why = first.message if isinstance(first, TargetError) else summary(first)
        raise TargetError(f"There is no small model: {why}") from first

    def _small_model(self, plan: ConfigurationPlan) -> BuiltTarget:
        """Built once for all parts. Raises TargetError where it cannot be built."""
        assert self.built is not None
        found = next((model for known, model in self.small_models if known == plan), None)
        if found is None:
            try:
                found = build_small_model(plan, like=self.built.model)
            except TargetError as error:
                found = error
            self.small_models.append((plan, found))
        if isinstance(found, TargetError):
            raise found
        return found

    def _rebuild_with_values(self, error: BaseException) -> BuiltTarget | None:
        """The same target with random weights, where the forward failed because of fake ones and memory suffices."""
        plan, built = self.plan, self.built
        if plan is None or built is None or built.weights != "fake" or not wants_values(error):
            return None
        if not environment.fits_in_memory(built.parameters):
            return None
        if not isinstance(plan.ref, str) or self.given is not None:
            return None
        options = msgspec.structs.replace(plan.options, weights="random")
        self.plan = resolve(TargetRef(ref=plan.ref, parts=tuple(plan.parts), options=options))
        self.built = build(self.plan)
        return self.built


def _waits_for_values(plan: Plan) -> bool:
    """Whether its random weights are drawn in each attempt."""
    return isinstance(plan, ConfigurationPlan) and plan.without_values


def _with_values(plan: Plan) -> Plan:
    return dataclasses.replace(plan, without_values=False) if isinstance(plan, ConfigurationPlan) else plan


def capture_in_child(built: BuiltPart, placement: Placement, *, exporter: str) -> PartCapture:
    """The part, captured on the GPU in a child, which alone opens it. Raises TargetError, as a capture here does."""

    def work(_: int) -> bytes:
        try:
            here = ChildPlacement(placement).place_part(built)
            return _CAPTURED + pack_capture(capture_part(here, exporter=exporter))
        except BaseException as error:  # also what would end the process
            told = eager_failure(error, built.name, built)
            return encode(Refused.from_error(told))

    child = fork(work)
    os.set_blocking(child.pipe, True)
    child.read()
    end = child.wait()
    if end.data.startswith(_CAPTURED):
        part = capture_root_only(built)
        unpack_capture(end.data.removeprefix(_CAPTURED), part)
        return part
    try:
        raise decode(end.data, Refused).to_error()
    except StoreError:
        raise TargetError(f"The eager forward of part {built.name} ends its process: {name_exit(end.code)}") from None


_CAPTURED = b"captured "


def _keeps_forks_off(placement: Placement) -> bool:
    """Whether building the target has opened CUDA, or asked it, so that no fork of this process could use the GPU."""
    return torch.cuda.is_initialized() or bool(placement.cards and not forks_can_open())


def _isolation(wanted: str) -> str:
    """Whether attempts may be forks: not without os.fork, nor beside a CUDA context, which survives none."""
    if wanted != "auto":
        return wanted
    return "fork" if hasattr(os, "fork") and not torch.cuda.is_initialized() else "process"


class _Idle(torch.nn.Module):
    """Calls nothing that a target may have patched."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def warm_up(to: str = "export") -> None:
    """A throwaway export: torch imports its tracer on first use, which would cost each child half a second.

    What attempts that go further import costs more. A target's hooks on all modules are not called, since they may keep
    what they see.
    """
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    if not has_global_hooks():
        with suppress(Exception):  # what a target did to torch is told by its attempts
            torch.export.export(_Idle(), (torch.zeros(3, 2),), dynamic_shapes=shapes, strict=False)
        if to in ("onnx", "ort"):
            warm_up_translation()


def _count_elements(part: BuiltPart) -> int:
    leaves = tree_leaves((part.args, part.kwargs))
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
