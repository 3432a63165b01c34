"""A scan, as an iterator of events: open the target, capture its parts, probe their modules, search for cures.

Each event is complete in itself: a reader that stops early has lost nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import psutil

from exportdoctor.core.errors import ExitCode, NoPartError, TargetError, UsageError, did_you_mean
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.frames import is_local_file
from exportdoctor.core.protocol.scan import Capture, Captured, Open, Opened
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.pool.attempt_limits import AttemptLimits
from exportdoctor.engine.pool.worker_pool import Pool
from exportdoctor.engine.scheduler import ProbeScheduler
from exportdoctor.process.launcher import WORKER_LOG, Launcher, Spawn
from exportdoctor.process.supervise import build_limits
from exportdoctor.report.wording import changed_meanwhile, part_left_out
from exportdoctor.store.digest import name_changes, sources_of, without_temporary
from exportdoctor.targets import resolve

_SHARE_OF_MEMORY = 0.8


@dataclass(frozen=True, kw_only=True)
class ScanRequest:
    """One scan. `answers` maps a probe's id to its outcome, from the same run before it was cut off (resume).

    `identity` is what the target says that its answers depend on, where it is a module in memory.
    """

    target: TargetRef
    options: ScanOptions = field(default_factory=ScanOptions)
    logs: Path | None = None
    answers: Mapping[str, Outcome] = field(default_factory=dict)
    identity: Mapping[str, object] | None = None


def scan(request: ScanRequest, launcher: Launcher | None = None) -> Generator[ev.AnyEvent]:
    """The events of a scan, from what follows RunStarted to RunFinished.

    Raises TargetError or UsageError where the target cannot be diagnosed, after the events that came before.
    Closing the iterator kills every process of the scan.
    """
    sources: dict[str, str] = {}
    for event in _events(request, launcher or Spawn()):
        if isinstance(event, ev.RunFinished) and (note := _changed_meanwhile(sources)):
            yield ev.NoteAdded(text=note, at=time.time())
        sources = sources_of([event]) | sources
        yield msgspec.structs.replace(event, at=time.time())


def _changed_meanwhile(sources: Mapping[str, str]) -> str:
    """What is said of the user's files that are others now than when they were read."""
    local = {path: identity for path, identity in sources.items() if os.path.isabs(path) and is_local_file(path)}
    changed = name_changes(without_temporary(local))
    return changed_meanwhile(changed) if changed else ""


def _events(request: ScanRequest, launcher: Launcher) -> Iterator[ev.AnyEvent]:
    started = time.monotonic()
    if request.options.exhaustive and not request.options.search:
        raise UsageError("--exhaustive asks every submodule, --no-search none", hint="Leave out one of them")
    with ExitStack() as stack:
        pool = stack.enter_context(closing(_open_pool(request, launcher)))
        yield ev.StepStarted(text=f"importing torch and building {request.target.ref}")
        opened = pool.open()
        request = answerable(request, opened)
        yield ev.TargetOpened(opened=opened)
        yield from (ev.NoteAdded(text=text) for text in opened.notes)
        scheduler = stack.enter_context(closing(_scheduler(pool, request, opened)))
        failed = yield from _capture_parts(scheduler, request, opened)
        if failed is None:
            _refuse_unknown(request.options.modules, scheduler)
        yield from scheduler.run_until_idle()
    parts = list(scheduler.parts.values())
    for part in parts:
        yield from part.conclude()
    if failed is not None:
        raise failed
    code = ExitCode.FINDINGS if any(part.diagnosis.failing for part in parts) else ExitCode.EXPORTS
    if code == ExitCode.EXPORTS and any(part.diagnosis.unknown for part in parts):
        code = ExitCode.INTERNAL
    seconds = round(time.monotonic() - started, 3)
    yield ev.RunFinished(exit_code=int(code), seconds=seconds, peak_rss_mb=scheduler.peak_rss_mb)


def answerable(request: ScanRequest, opened: Opened) -> ScanRequest:
    """The scan without the search for cures where no kernel can run: a cure is proved by one.

    Raises UsageError where more than an export is asked.
    """
    options = request.options
    if opened.runs_kernels:
        return request
    if options.to != "export" or EXPORTERS[options.exporter].bakes_values:
        raise UsageError(
            "There is no GPU here, and more than torch.export is asked: that computes with values",
            hint="Use --device cpu, or leave out --to and --exporter",
        )
    return replace(request, options=msgspec.structs.replace(options, cure=False))


def _open_pool(request: ScanRequest, launcher: Launcher) -> Pool:
    options = request.options
    opening = Open(
        target=request.target,
        isolation=options.isolation,
        logs=str(request.logs) if request.logs else None,
        shim_files=options.shim_files,
        gpu_memory_mb=options.gpu_memory_mb,
        to=options.to,
    )
    log = request.logs / WORKER_LOG if request.logs else None
    return Pool(
        launcher,
        opening,
        jobs=options.jobs,
        log=log,
        by_cpu_time=options.timeout is None,
        building=build_limits(options.build_timeout, options.build_memory_mb),
    )


def _scheduler(pool: Pool, request: ScanRequest, opened: Opened) -> ProbeScheduler:
    options = request.options
    fair_share = _SHARE_OF_MEMORY * psutil.virtual_memory().available / 2**20 / options.jobs
    limits = AttemptLimits(fixed=options.timeout, memory_mb=options.memory_mb or fair_share)
    target: Mapping[str, object] = request.identity or {}
    if options.use_cache and request.identity is None:
        target = resolve(request.target).identity() | {"ref": request.target.ref}
    ref = request.target if request.identity is None else None
    return ProbeScheduler(pool, opened, options, limits=limits, resumed=request.answers, target=target, ref=ref)


def _capture_parts(
    scheduler: ProbeScheduler, request: ScanRequest, opened: Opened
) -> Generator[ev.AnyEvent, None, TargetError | None]:
    """Capture each part; with forks, its attempts run while the next part is captured, else after the last.

    A part that nobody asked for by name and that the model turns out not to have is left out, and said so. Returns the
    error of the first part whose forward fails: the others keep their verdicts.
    """
    failed: TargetError | None = None
    options, missing = request.options, list[str]()
    forking = opened.isolation == "fork"
    root_first = forking and not options.exhaustive and not options.modules
    waiting: list[Captured] = []
    for name in opened.parts:
        yield ev.StepStarted(text=f"capturing {name}")
        scheduler.attempt_root_early(name)
        capture = Capture(part=name, exporter=options.exporter, at_one_size=root_first)
        try:
            found = scheduler.pool.capture_part(capture)
        except NoPartError as error:
            missing.append(name)
            if request.target.parts or len(missing) == len(opened.parts):
                raise  # the last one is the whole
            yield ev.NoteAdded(text=part_left_out(name, error.message))
            continue
        except TargetError as error:
            failed = failed or error
            continue
        yield ev.PartCaptured(captured=found)
        yield from (ev.NoteAdded(text=text) for text in found.notes)
        if forking:
            yield from scheduler.schedule_part(found)
        else:
            waiting.append(found)
    for found in waiting:
        yield from scheduler.schedule_part(found)
    return failed


def _refuse_unknown(modules: tuple[str, ...], scheduler: ProbeScheduler) -> None:
    """A submodule that no part calls cannot be asked."""
    called = {fqn for part in scheduler.parts.values() for fqn in part.diagnosis.facts}
    unknown = next((fqn for fqn in modules if fqn not in called), None)
    if unknown is not None:
        hint = did_you_mean(unknown, called) or "Scan without --module to see them all"
        raise UsageError(f"No part calls a submodule {unknown!r}", hint=hint)
