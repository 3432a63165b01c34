"""Some shims on a target's parts, asked once: what each part does without them, and with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing

import msgspec

from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.finding import ShimResult
from exportdoctor.core.outcome import Agreement, Frame, Outcome, OutcomeStatus
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol.scan import SMALL_MODEL, Capture, Captured, Open, Opened
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.core.target import TargetRef
from exportdoctor.engine.cure.trial import right_at_its_size
from exportdoctor.engine.pool.launch import Launcher, Spawn
from exportdoctor.engine.pool.replies import accepted, captured
from exportdoctor.engine.pool.worker_pool import Pool
from exportdoctor.shims import SOUNDNESS, find

_PATIENCE = 600.0
"""Seconds for one attempt unless the user says otherwise; it ends sooner where it makes no progress."""


class PartTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One part. `before` and `after` are sentences; `numbers` are the part's own or its small twin's.

    `at` is the line that fails without the shims, `next_at` the one that fails with them.
    """

    part: str
    shims: tuple[str, ...]
    exports: bool
    cured: bool
    before: str
    after: str
    result: ShimResult
    at: Frame | None = None
    next_at: Frame | None = None
    numbers: tuple[Agreement, ...] = ()


def try_shims(
    target: TargetRef, options: ScanOptions, shims: tuple[str, ...], launcher: Launcher | None = None
) -> Iterator[PartTrial]:
    """What each part of `target` does under `shims`. Raises TargetError and UsageError."""
    opening = Open(target=target, shim_files=options.shim_files)
    patient = options.timeout is None
    with closing(Pool(launcher or Spawn(sys.executable), opening, jobs=2, log=None, patient=patient)) as pool:
        opened = accepted(pool.open())
        assert isinstance(opened, Opened)
        for name in opened.parts:
            part = captured(pool, Capture(part=name, exporter=options.exporter))
            yield _tried(pool, opened, part, options, shims)


def _tried(pool: Pool, opened: Opened, captured: Captured, options: ScanOptions, shims: tuple[str, ...]) -> PartTrial:
    values = opened.weights != "fake"
    plain = Probe(
        part=captured.part, fqn=captured.prefix, exporter=options.exporter, timeout=options.timeout or _PATIENCE
    )
    treated = msgspec.structs.replace(plain, shims=shims, to="run" if values else "export")
    flights = [pool.submit(plain), pool.submit(treated)]
    before, after = (flight.result() for flight in flights)
    shown: Outcome | None = after
    if after.passed and not values and opened.has_small_model:
        shown = _on_the_twin(pool, treated)
    specialised = _are_specialised(shims, options.shim_files, captured)
    proved = shown is not None and (shown.passed or (specialised and right_at_its_size(shown)))
    numbers = shown.numbers if shown is not None else ()
    return PartTrial(
        part=captured.part,
        shims=shims,
        exports=before.passed,
        cured=proved and not before.passed,
        before=_said(before),
        after=_said(after) + (" (numbers of a small twin)" if numbers and not values else ""),
        result=_result(before, after, proved=proved),
        at=before.failure.culprit if before.failure else None,
        next_at=after.failure.culprit if after.failure else None,
        numbers=numbers,
    )


def _are_specialised(shims: tuple[str, ...], files: tuple[str, ...], captured: Captured) -> bool:
    """Whether the set says of itself that other sizes or values may be refused."""
    found = (find(name, files=files, axes=captured.axes) for name in shims)
    return max(SOUNDNESS.index(shim.soundness) for shim in found) == SOUNDNESS.index("specialised")


def _on_the_twin(pool: Pool, treated: Probe) -> Outcome | None:
    try:
        found = pool.capture(Capture(part=treated.part + SMALL_MODEL, exporter=treated.exporter))
    except WorkerLost:
        return None
    if not isinstance(found, Captured):
        return None
    return pool.submit(msgspec.structs.replace(treated, part=found.part, fqn=found.prefix, to="run")).result()


def _result(before: Outcome, after: Outcome, *, proved: bool) -> ShimResult:
    if after.status == OutcomeStatus.NOT_APPLICABLE:
        return "not_applicable"
    if after.stages.get("export") == "pass":
        return "cured" if proved else "error"
    if after.status != OutcomeStatus.FAILED or before.status != OutcomeStatus.FAILED:
        return "error"
    one, other = (outcome.failure.culprit if outcome.failure else None for outcome in (before, after))
    return "same" if one == other else "moved"


def _said(outcome: Outcome) -> str:
    """What happened, in a line."""
    if outcome.stages.get("export") == "pass":
        if outcome.passed:
            return "exports"
        fault = "refuses other sizes or values" if right_at_its_size(outcome) else "its numbers differ from eager's"
        return f"exports, but {fault}"
    if outcome.note:
        return f"{outcome.status.replace('_', ' ')}: {outcome.note}"
    failure = outcome.failure
    if failure is None or not failure.exceptions:
        return outcome.status.replace("_", " ") + (f" ({outcome.signal})" if outcome.signal else "")
    first, culprit = failure.exceptions[0], failure.culprit
    where = f" at {culprit.file.rpartition('/')[2]}:{culprit.line} in {culprit.function}" if culprit else ""
    return f"fails{where}: {first.name}: {first_line(first.message, 200)}"
