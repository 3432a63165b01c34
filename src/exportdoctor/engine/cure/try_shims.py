"""Some shims on a target's parts: what each part does without them, and with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.failure.finding import Finding, ShimResult
from exportdoctor.core.failure.identity import same_failure
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.limits import UNMEASURED_ATTEMPT
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX, Capture, Captured, Open, Opened
from exportdoctor.core.records.outcome import Agreement, Frame, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe, probe_template
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.cure.catalogue import ShimCatalogue
from exportdoctor.engine.cure.trial import SEARCHED_STAGES, is_later_failure
from exportdoctor.engine.pool.worker_pool import Pool
from exportdoctor.process.launcher import Launcher, Spawn
from exportdoctor.report.wording.shim_tries import OF_SMALL_MODEL, layout_condition, outcome_line
from exportdoctor.shims import find


class PartTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One part. `before` and `after` are sentences; `numbers` are the part's own or its small model's.

    `at` is the line that fails without the shims, `next_at` the one that fails with them; `later` is set where that is
    further on in the forward. `signature` is that of the failure without the shims. Of a cure, `soundness` is what its
    proof leaves of that of the shims, `condition` what no shim says of the inputs for which it holds. Where
    `says_nothing` is set, code of exportdoctor failed, or there was no device: nothing is known of the shims.
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
    later: bool = False
    signature: str = ""
    numbers: tuple[Agreement, ...] = ()
    soundness: str = ""
    condition: str = ""
    says_nothing: bool = False


def try_shims(
    target: TargetRef, options: ScanOptions, shims: tuple[str, ...], launcher: Launcher | None = None
) -> Iterator[PartTrial]:
    """What each part of `target` does under `shims`: how far it gets, at most to `options.to`, or to the stage at which
    it fails without them, and whether it computes the same. Raises TargetError and UsageError."""
    opening = Open(target=target, shim_files=options.shim_files)
    by_cpu_time = options.timeout is None
    with closing(Pool(launcher or Spawn(), opening, jobs=2, log=None, by_cpu_time=by_cpu_time)) as pool:
        opened = pool.open()
        for name in opened.parts:
            part = pool.capture_part(Capture(part=name, exporter=options.exporter))
            yield _try_on_part(pool, opened, part, options, shims)


def try_sets(
    target: TargetRef,
    options: ScanOptions,
    sets: Sequence[tuple[str, ...]],
    *,
    finding: Finding,
    launcher: Launcher | None = None,
) -> Iterator[tuple[PartTrial, PartTrial | None]]:
    """What the part of `finding` does under each of `sets`; where it ends in another failure, also what the module of
    `finding` alone does."""
    part, module = finding.part, finding.module
    opening = Open(target=msgspec.structs.replace(target, parts=(part,)), shim_files=options.shim_files)
    by_cpu_time = options.timeout is None
    with closing(Pool(launcher or Spawn(), opening, jobs=2, log=None, by_cpu_time=by_cpu_time)) as pool:
        opened = pool.open()
        captured = pool.capture_part(Capture(part=part, exporter=options.exporter))
        for shims in sets:
            tried = _try_on_part(pool, opened, captured, options, shims)
            alone = None
            if (tried.result == "moved" or not meets(tried, finding)) and module != captured.prefix:
                alone = _try_on_part(pool, opened, captured, options, shims, fqn=module)
            yield tried, alone


def meets(tried: PartTrial, finding: Finding) -> bool:
    """Whether the failure of `finding` is what ends the export without the shims."""
    at = tried.at
    same_place = at is not None and (at.file, at.line) == (finding.file, finding.line)
    return not tried.exports and (same_place or tried.signature == finding.signature)


def _try_on_part(
    pool: Pool,
    opened: Opened,
    captured: Captured,
    options: ScanOptions,
    shims: tuple[str, ...],
    *,
    fqn: str | None = None,
) -> PartTrial:
    values = opened.weights != "fake"
    template, timeout = probe_template(captured.part, options), options.timeout or UNMEASURED_ATTEMPT
    plain = msgspec.structs.replace(template, fqn=captured.prefix if fqn is None else fqn, timeout=timeout)
    treated = msgspec.structs.replace(plain, shims=shims, to="run" if values else "export")
    before, after = (future.result() for future in [pool.submit(plain), pool.submit(treated)])
    goal = options.to if options.to != "export" else SEARCHED_STAGES.get(_stage(before), "export")
    if after.passed and goal != "export":
        further = pool.submit(msgspec.structs.replace(treated, to=goal)).result()
        after = after if further.passed else further
    shown: Outcome | None = after
    if after.passed and not values and opened.has_small_model and fqn is None:
        shown = _try_on_small_model(pool, treated)
    catalogue = _catalogue_of(shims, options, captured)
    specialised = catalogue.soundness(shims) == "specialised"
    proved = shown is not None and (shown.passed or shown.agrees_but_for_layout(may_refuse=specialised))
    numbers = shown.numbers if shown is not None else ()
    cured = proved and not before.passed
    wrong = shown.wrong_layout if shown is not None else None
    return PartTrial(
        part=captured.part,
        shims=shims,
        exports=before.passed,
        cured=cured,
        before=outcome_line(before),
        after=outcome_line(after) + (OF_SMALL_MODEL if numbers and not values else ""),
        result=_result(before, after, exporter=options.exporter, proved=proved),
        at=before.failure.culprit if before.failure else None,
        says_nothing=after.status.says_nothing,
        next_at=after.failure.culprit if after.failure else None,
        later=not before.passed and not after.passed and is_later_failure(before, after, exporter=options.exporter),
        signature=found.key if (found := signature_of(before)) else "",
        numbers=numbers,
        soundness=catalogue.shown_soundness(shims, shown) if cured and shown is not None else "",
        condition=layout_condition(wrong) if cured and wrong is not None else "",
    )


def _catalogue_of(shims: tuple[str, ...], options: ScanOptions, captured: Captured) -> ShimCatalogue:
    """These shims alone, for how sound they are."""
    found = [find(name, files=options.shim_files, axes=captured.axes) for name in shims]
    return ShimCatalogue(shims=found, versions={}, axes=captured.axes, allow=(), exporter=options.exporter)


def _try_on_small_model(pool: Pool, treated: Probe) -> Outcome | None:
    try:
        found = pool.capture_part(Capture(part=treated.part + SMALL_MODEL_SUFFIX, exporter=treated.exporter))
    except ExportdoctorError:
        return None
    return pool.submit(msgspec.structs.replace(treated, part=found.part, fqn=found.prefix, to="run")).result()


def _stage(outcome: Outcome) -> str:
    """The stage at which it failed; empty where it did not."""
    return outcome.failure.stage if outcome.failure is not None else ""


def _result(before: Outcome, after: Outcome, *, exporter: str, proved: bool) -> ShimResult:
    if after.status == OutcomeStatus.NOT_APPLICABLE:
        return "not_applicable"
    if after.stages.get("export") == "pass" and _stage(after) not in SEARCHED_STAGES:
        return "cured" if proved else "error"
    if after.status != OutcomeStatus.FAILED or before.status != OutcomeStatus.FAILED:
        return "error"
    return "same" if same_failure(before, after, exporter=exporter) else "moved"
