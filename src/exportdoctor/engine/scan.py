"""A scan, as an iterator of events: open the target, capture its parts, ask, judge, localise.

The first module asked of a part is its root; below a module that fails its submodules are asked, below one that
passes none needs to be. Each event is complete in itself: whoever stops listening has lost nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing

import msgspec
import psutil

from exportdoctor.core import events as ev
from exportdoctor.core.errors import ExitCode, UsageError, did_you_mean
from exportdoctor.core.protocol.scan import Capture, Captured, Open, Opened
from exportdoctor.engine.part.part_scan import PartScan
from exportdoctor.engine.pool.launch import Launcher, Spawn
from exportdoctor.engine.pool.limits import Limits
from exportdoctor.engine.pool.replies import accepted, captured
from exportdoctor.engine.pool.worker_pool import Pool
from exportdoctor.engine.scan_request import ScanRequest
from exportdoctor.engine.scheduler import ProbeScheduler

_SHARE_OF_MEMORY = 0.8


def scan(request: ScanRequest, launcher: Launcher | None = None) -> Generator[ev.AnyEvent]:
    """The events of a scan, from what follows RunStarted to RunFinished.

    Raises TargetError or UsageError where the target cannot be diagnosed, after the events that came before.
    Closing the iterator kills every process of the scan.
    """
    for event in _events(request, launcher or Spawn(request.python or sys.executable)):
        yield msgspec.structs.replace(event, at=time.time())


def _events(request: ScanRequest, launcher: Launcher) -> Iterator[ev.AnyEvent]:
    started = time.monotonic()
    options = request.options
    opening = Open(
        target=request.target,
        isolation=options.isolation,
        logs=str(request.logs) if request.logs else None,
        shim_files=options.shim_files,
    )
    log = request.logs / "worker.log" if request.logs else None
    with ExitStack() as stack:
        pool = stack.enter_context(
            closing(Pool(launcher, opening, jobs=options.jobs, log=log, patient=options.timeout is None))
        )
        yield ev.Stepped(text=f"importing torch and building {request.target.ref}")
        opened = accepted(pool.open())
        assert isinstance(opened, Opened)
        yield ev.TargetOpened(opened=opened)
        yield from (ev.Noted(text=text) for text in opened.notes)
        limits = Limits(fixed=options.timeout, memory_mb=options.memory_mb or _fair_share_mb(options.jobs))
        asking = stack.enter_context(closing(ProbeScheduler(pool, request, opened, limits)))
        waiting: list[Captured] = []
        for name in opened.parts:
            yield ev.Stepped(text=f"capturing {name}")
            asking.begin_early(name)
            root_first = opened.isolation == "fork" and not options.exhaustive and not options.modules
            waiting.append(captured(pool, Capture(part=name, exporter=options.exporter, at_one_size=root_first)))
            yield ev.PartCaptured(captured=waiting[-1])
            yield from (ev.Noted(text=text) for text in waiting[-1].notes)
            if opened.isolation == "fork":  # one part's attempts run while the next part is captured
                yield from _begin(asking, waiting.pop(), opened)
        while waiting:
            yield from _begin(asking, waiting.pop(0), opened)
        _refuse_unknown(options.modules, asking)
        yield from asking.run()
        yield from asking.look_deeper()
    parts = list(asking.parts.values())
    for part in parts:
        yield from part.telling.conclude()
    code = ExitCode.FINDINGS if any(part.chart.failing for part in parts) else ExitCode.EXPORTS
    seconds = round(time.monotonic() - started, 3)
    yield ev.RunFinished(exit_code=int(code), seconds=seconds, peak_rss_mb=asking.peak_rss_mb)


def _begin(asking: ProbeScheduler, found: Captured, opened: Opened) -> Iterator[ev.AnyEvent]:
    part = PartScan(found, options=asking.request.options, versions=opened.environment)
    yield from asking.add(part, forward_seconds=found.seconds)
    yield from asking.step()


def _refuse_unknown(modules: tuple[str, ...], asking: ProbeScheduler) -> None:
    """A submodule that no part calls cannot be asked."""
    called = {fqn for part in asking.parts.values() for fqn in part.chart.facts}
    unknown = next((fqn for fqn in modules if fqn not in called), None)
    if unknown is not None:
        hint = did_you_mean(unknown, called) or "Scan without --module to see them all"
        raise UsageError(f"No part calls a submodule {unknown!r}", hint=hint)


def _fair_share_mb(jobs: int) -> float:
    return _SHARE_OF_MEMORY * psutil.virtual_memory().available / 2**20 / jobs
