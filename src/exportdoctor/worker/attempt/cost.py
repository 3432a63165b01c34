"""Where an attempt spends its time and memory: its stack, sampled by a thread beside it.

An attempt that passes but takes more than the user allows becomes a failure whose stack is the one in which most of the
cost came up; the search for a failing submodule then locates it like any other.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import msgspec
import sympy  # type: ignore[import-untyped]
import torch

from exportdoctor.core.failure.frames import is_our_file
from exportdoctor.core.failure.kinds import HEAVY_EXPORT, SLOW_EXPORT
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, Stage
from exportdoctor.core.records.probe import Probe
from exportdoctor.process.supervise import resident_mb
from exportdoctor.report import wording
from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.torch_internals.shape_env import expression_in
from exportdoctor.worker.describe.python_frames import is_user_frame, source_line

_EVERY = 0.01
"""Seconds between two samples."""
_MODULE_CALL = torch.nn.Module.__call__.__code__
_MOST_TERMS = 40
_OWN_CODE = "the model's own code"
_SYMBOLIC = ("symbolic algebra", "guards on symbolic sizes")
# the work of a tracer by the file that does it, innermost frame first
_WORK = (
    ("sympy", _SYMBOLIC[0]),
    ("torch/utils/_sympy", _SYMBOLIC[0]),
    ("torch/fx/experimental/symbolic_shapes.py", _SYMBOLIC[1]),
    ("torch/_dynamo", "dynamo"),
    ("torch/_functorch", "functionalisation"),
    ("torch/_decomp", "decompositions"),
    ("torch/_refs", "decompositions"),
    ("torch/_meta_registrations.py", "fake kernels"),
    ("torch/_subclasses", "fake kernels"),
    ("torch/fx/experimental/proxy_tensor.py", "recording of operators"),
    ("torch/fx/passes", "passes over the graph"),
    ("torch/_export", "passes over the graph"),
    ("torch/fx", "the graph"),
    ("torch/onnx", "translation"),
    ("onnxscript", "translation"),
)


@dataclass
class _Place:
    """One line of a stack, below the lines that called it. `weights`: seconds and MiB that came up in or below it."""

    code: CodeType | None = None
    line: int = 0
    user: bool = False
    weights: list[float] = field(default_factory=lambda: [0.0, 0.0])
    modules: set[int | None] = field(default_factory=set)
    below: dict[tuple[CodeType, int], _Place] = field(default_factory=dict)


@dataclass
class CostSamples:
    """The cost of the code inside `watch_cost` up to now. `seconds` are of processor time; MiB on top of the start."""

    probe: Probe
    thread: int
    base: FrameType
    started: float = field(default_factory=time.process_time)
    start_mb: float = field(default_factory=lambda: resident_mb(os.getpid()))
    peak_mb: float = 0.0
    root: _Place = field(default_factory=_Place)
    work: tuple[dict[str, float], dict[str, float]] = field(default_factory=lambda: ({}, {}))
    expression: Any = None
    _last: float = field(default_factory=time.process_time)
    _lock: Any = field(default_factory=threading.Lock)

    @property
    def seconds(self) -> float:
        """Processor time since the start."""
        return time.process_time() - self.started

    def take(self) -> None:
        """Note the thread's stack, with the time and the memory since the last look."""
        now, grown = time.process_time(), resident_mb(os.getpid()) - self.start_mb
        weights = (now - self._last, max(0.0, grown - self.peak_mb))
        self._last, self.peak_mb = now, max(self.peak_mb, grown)
        stack: list[tuple[FrameType, int]] = []
        frame = sys._current_frames().get(self.thread)
        while frame is not None and frame is not self.base:
            stack.append((frame, frame.f_lineno))
            frame = frame.f_back
        if frame is None:
            return  # it has left the export
        with self._lock:
            self._add(stack[::-1], weights)

    def _add(self, stack: list[tuple[FrameType, int]], weights: tuple[float, float]) -> None:
        place, module, work = self.root, None, ""
        for frame, line in stack:
            if frame.f_code is _MODULE_CALL:
                owner = frame.f_locals.get("self")
                module = state_id(owner) if isinstance(owner, torch.nn.Module) else module
            if frame.f_code is _MODULE_CALL or is_our_file(frame.f_code.co_filename):
                continue
            key = (frame.f_code, line)
            if key not in place.below:
                place.below[key] = _Place(code=frame.f_code, line=line, user=is_user_frame(frame))
            place = place.below[key]
            place.modules.add(module)
            for axis, weight in enumerate(weights):
                place.weights[axis] += weight
            work = _OWN_CODE if is_user_frame(frame) else _work_of(frame.f_code.co_filename) or work
        for axis, weight in enumerate(weights):
            self.root.weights[axis] += weight
            self.work[axis][work] = self.work[axis].get(work, 0.0) + weight
        expressions = (expression_in(frame) for frame, _ in reversed(stack))
        self.expression = next((one for one in expressions if one is not None), self.expression)

    def excess(self, names: Mapping[int, str], stage: Stage) -> Failure | None:
        """The failure that the cost is, where it is more than the probe allows."""
        slow, heavy, seconds = self.probe.slow, self.probe.heavy, self.seconds
        with self._lock:
            if slow is not None and seconds > slow:
                more = wording.heavy_too(self.peak_mb, heavy) if heavy is not None and self.peak_mb > heavy else ""
                return self._failure(0, SLOW_EXPORT, wording.slow_export(seconds, slow), names, stage, more)
            if heavy is not None and self.peak_mb > heavy:
                return self._failure(1, HEAVY_EXPORT, wording.heavy_export(self.peak_mb, heavy), names, stage)
        return None

    def _failure(
        self, axis: int, kind: str, said: str, names: Mapping[int, str], stage: Stage, more: str = ""
    ) -> Failure:
        work, part = max(self.work[axis].items(), key=lambda one: one[1], default=("", 0.0))
        share = part / max(self.root.weights[axis], 1e-9)
        where = wording.cost_share(work, share, _text(self.expression) if work in _SYMBOLIC else "")
        fact = ExceptionFact(type=kind, message=said + where + more)
        frames = list(self._frames(axis, names))
        last = max((place for place, frame in enumerate(frames) if frame.user), default=None)
        if last is not None:  # many calls of a submodule cost what each of them does not: its caller's line is told
            below = [msgspec.structs.replace(frame, module=frames[last].module) for frame in frames[last + 1 :]]
            frames[last + 1 :] = below
        return Failure(stage=stage, exceptions=(fact,), frames=tuple(frames))

    def _frames(self, axis: int, names: Mapping[int, str]) -> Iterator[Frame]:
        """The lines in each of which at least half of the whole cost came up, outermost first."""
        place, module, enough = self.root, None, self.root.weights[axis] / 2
        while place.below:
            place = max(place.below.values(), key=lambda one: one.weights[axis])
            if place.weights[axis] < enough or not enough or place.code is None:
                return
            if len(place.modules) == 1:
                (found,) = place.modules
                module = names.get(found, module) if found is not None else module
            file = place.code.co_filename
            yield Frame(
                file=file,
                line=place.line,
                function=place.code.co_qualname,
                source=source_line(file, place.line),
                module=module,
                user=place.user,
            )


def _text(expression: Any) -> str:
    """A symbolic expression; only how long it is where it is long."""
    terms = list(islice(sympy.preorder_traversal(expression), _MOST_TERMS + 1)) if expression is not None else []
    return str(expression) if len(terms) <= _MOST_TERMS else f"an expression of more than {_MOST_TERMS} terms"


def _work_of(file: str) -> str:
    path = file.replace("\\", "/").rpartition("site-packages/")[2]
    return next((work for start, work in _WORK if path.startswith(start)), "")


@contextmanager
def watch_cost(probe: Probe, base: FrameType) -> Iterator[CostSamples | None]:
    """Sample what the calling thread runs below `base`, if the probe has a limit of cost and no shims; else None."""
    if probe.shims or (probe.slow is None and probe.heavy is None):
        yield None
        return
    samples = CostSamples(probe=probe, thread=threading.get_ident(), base=base)
    over = threading.Event()

    def run() -> None:
        while not over.wait(_EVERY):
            samples.take()

    sampler = threading.Thread(target=run, daemon=True)
    sampler.start()
    try:
        yield samples
    finally:
        over.set()
        sampler.join()
