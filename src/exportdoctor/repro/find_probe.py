"""From a finding of a run to the probe that shows it, what has changed since, and the failure as it is today."""

from __future__ import annotations

import msgspec

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import NameFreeSignature, name_free_signature
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.protocol.repro import ReproducedFailure
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run import events as ev
from exportdoctor.report import wording
from exportdoctor.repro.kind_limits import reproduction_limits
from exportdoctor.store.digest import name_changes, sources_of, without_temporary
from exportdoctor.store.runs import StoredRun

_NAMED = 3


def finding_of(run: StoredRun, name: str) -> Finding:
    """The finding called `name`. Raises UsageError that lists the findings if there is none."""
    findings = run.state.findings
    found = findings.get(name) or findings.get(name.upper())
    if found is None:
        known = f"Its findings: {', '.join(findings)}" if findings else "It has no findings"
        raise UsageError(f"{run.run} has no finding {name!r}", hint=known)
    return found


def probe_of(events: tuple[ev.AnyEvent, ...], finding: Finding) -> Probe:
    """The probe that showed the finding, with limits of its own; rather a plain one of the model itself, without shims.

    What only the search for a cure met may be known of the small model alone.
    """
    if not finding.may_have_script:
        hint = f"Run {finding.locate}" if finding.locate else f"See exportdoctor explain {finding.id}"
        raise UsageError(f"{finding.id} exports, so that no script fails in the same way", hint=hint)
    found = [
        event for event in events
        if isinstance(event, ev.ProbeFinished)
        and event.probe.part.removesuffix(SMALL_MODEL_SUFFIX) == finding.part
        and (signature := signature_of(event.outcome)) is not None
        and signature.key == finding.signature
    ]  # fmt: skip
    if not found:
        raise UsageError(f"the run does not record which export showed {finding.id}", hint="Scan again with --no-cache")

    def rank(event: ev.ProbeFinished) -> tuple[bool, bool, bool, bool, int]:
        probe = event.probe
        special = bool(probe.watch or probe.opaque or probe.dynamic is not None)
        is_small = probe.part.endswith(SMALL_MODEL_SUFFIX)
        return bool(probe.shims), is_small, special, probe.fqn != finding.module, -probe.fqn.count(".")

    best = min(found, key=rank)
    timeout, memory_mb = reproduction_limits(best.outcome.status, best.probe.timeout)
    return msgspec.structs.replace(best.probe, watch=(), timeout=timeout, memory_mb=memory_mb)


def changes_since(run: StoredRun, environment: dict[str, str] | None = None) -> tuple[str, ...]:
    """Notes on changes since the run was made: of sources and, if `environment` is given, of versions."""
    changed = changed_sources_of(run)
    notes = [f"{changed}; reproducing the failure as it is now"] if changed else []
    then = next((event.opened.environment for event in run.events if isinstance(event, ev.TargetOpened)), {})
    others = [
        (name, then.get(name, "missing"), now)
        for name, now in (environment or {}).items()
        if then and then.get(name) != now and name != "exportdoctor"
    ]
    if others:
        notes.append(wording.repro_versions_changed(others))
    return tuple(notes)


def changed_sources_of(run: StoredRun) -> str:
    """Which sources have changed since the run was made, in words; empty where none has."""
    changed = name_changes(without_temporary(sources_of(run.events)))
    return wording.sources_changed(changed[:_NAMED], more=len(changed) > _NAMED) if changed else ""


def identify_failure(seen: ReproducedFailure, finding: Finding, notes: list[str]) -> NameFreeSignature:
    """The signature to reproduce: that of the failure as it is now; adds a note where that differs from the run's."""
    wanted = name_free_signature(seen.outcome, exporter=seen.exporter)
    assert wanted is not None
    signature = signature_of(seen.outcome)
    if seen.outcome.status == OutcomeStatus.FAILED and signature is not None and signature.key != finding.signature:
        where, first = signature.function or "the call", first_line(signature.message, 120)
        line = signature.source if signature.source != (finding.source or "").strip() else ""
        notes.append(wording.repro_failure_changed(wanted.kind, where, first, line))
    return wanted


def as_it_is_now(finding: Finding, outcome: Outcome) -> Finding:
    """The finding with the line at which it fails now: its file may have been edited since the run."""
    culprit = outcome.failure.culprit if outcome.failure is not None else None
    if culprit is None or (culprit.file, culprit.function) != (finding.file, finding.function):
        return finding
    return msgspec.structs.replace(finding, line=culprit.line, source=culprit.source)
