"""From a finding of a run to its verified script: harvest, first draft that fails, reduce, verify."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from exportdoctor.core import event as ev
from exportdoctor.core.candidate import Draft, Harvest, Harvested
from exportdoctor.core.errors import UsageError
from exportdoctor.core.finding import Finding
from exportdoctor.core.probe import Probe
from exportdoctor.core.signature import signature_of
from exportdoctor.reduce import Verdict
from exportdoctor.repro.bench import Bench
from exportdoctor.repro.harvesting import Harvesting
from exportdoctor.repro.reduction import Budget, Reducer, Reduction, code_lines
from exportdoctor.repro.sameness import DEAD, Trait, trait_of
from exportdoctor.repro.script import imports_of, with_header
from exportdoctor.repro.verdict_log import VerdictLog
from exportdoctor.repro.verify import Sighting, verify
from exportdoctor.store.digest import changed_sources, sources_of
from exportdoctor.store.runs import StoredRun

Told = Callable[[str], None]
_LIMITS = {"crashed": (60.0, None), "timed_out": (15.0, None), "out_of_memory": (60.0, 1000.0)}
_MEMORY_MB = 4000.0
_SHORTEST = 8.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is asked for. `made_by` is the command line that a script's header tells."""

    run: StoredRun
    finding: str
    budget: Budget = field(default_factory=Budget)
    made_by: str = ""


@dataclass(kw_only=True)
class Made:
    """A script and what is known of it. `notes` are for the user; `draft` says how the source was obtained."""

    finding: Finding
    trait: Trait
    text: str
    source: str
    draft: str
    reduction: Reduction
    sighting: Sighting
    eager: bool
    environment: dict[str, str]
    notes: list[str] = field(default_factory=list)

    @property
    def lines(self) -> int:
        """Lines of code, header left out."""
        return code_lines(self.source)

    @property
    def imports(self) -> tuple[str, ...]:
        """Packages that the script needs."""
        return imports_of(self.source)


def make(order: Order, tell: Told) -> Made:
    """The script of a finding. Raises UsageError where there is no such finding, or it does not fail any more."""
    state = order.run.state
    finding = state.findings.get(order.finding) or state.findings.get(order.finding.upper())
    if finding is None:
        known = ", ".join(state.findings) or "none"
        raise UsageError(f"{order.run.run} has no finding {order.finding!r}", hint=f"Its findings: {known}")
    if state.started is None:
        raise UsageError(f"{order.run.run} was cut off before its first event", hint="Scan again")
    probe, outcome_status = probe_of(order.run.events, finding)
    notes = _changes(order.run)
    for note in notes:
        tell(note)
    timeout, memory = _LIMITS.get(outcome_status, (max(60.0, probe.timeout), _MEMORY_MB))
    probe = msgspec.structs.replace(probe, timeout=timeout, memory_mb=memory or _MEMORY_MB)
    talk = order.run.path / "logs" / f"repro-{finding.id}.log"
    options = state.started.options
    command = Harvest(target=state.started.target, probe=probe, shim_files=options.shim_files)
    tell(f"seeing {finding.id} fail again")
    with Harvesting(command, talk=_writable(talk)) as harvesting:
        seen = harvesting.again()
        trait = _trait(seen, finding, notes)
        with Bench(talk=_writable(talk), **_bench_limits(trait)) as bench:
            log = VerdictLog(
                order.run.path / "repros" / f"{finding.id}.verdicts.jsonl", holds_for=f"{trait} {seen.environment}"
            )
            reducer = Reducer(bench, trait, seen.exporter, order.budget, tell, log)
            draft = _first(harvesting, reducer, tell)
            return _finished(order, finding, seen, trait, draft, reducer, notes)


def _bench_limits(trait: Trait) -> dict[str, float]:
    if trait.kind == "timed_out":
        return {"timeout": 4.0}
    return {"timeout": 30.0, "memory_mb": 400.0 if trait.kind == "out_of_memory" else 2500.0}


def probe_of(events: tuple[ev.AnyEvent, ...], finding: Finding) -> tuple[Probe, str]:
    """The question whose answer the finding tells, and that answer's status; a plain one before a special one."""
    found = [
        event for event in events
        if isinstance(event, ev.ProbeFinished)
        and event.probe.part == finding.part
        and (signature := signature_of(event.outcome)) is not None
        and signature.key == finding.signature
    ]  # fmt: skip
    if not found:
        raise UsageError(f"the run does not say which attempt showed {finding.id}", hint="Scan again with --no-cache")

    def rank(event: ev.ProbeFinished) -> tuple[bool, bool, int]:
        asked = event.probe
        special = bool(asked.watch or getattr(asked, "opaque", False) or getattr(asked, "dynamic", None) is not None)
        return special, asked.fqn != finding.module, -asked.fqn.count(".")

    best = min(found, key=rank)
    return msgspec.structs.replace(best.probe, watch=()), best.outcome.status


def _changes(run: StoredRun) -> list[str]:
    changed = changed_sources(sources_of(run.events))
    if not changed:
        return []
    names = ", ".join(Path(path).name for path in changed[:3]) + (", …" if len(changed) > 3 else "")
    return [f"{names} changed since this run; the failure is looked at anew"]


def _trait(seen: Harvested, finding: Finding, notes: list[str]) -> Trait:
    trait = trait_of(seen.outcome, exporter=seen.exporter)
    assert trait is not None
    signature = signature_of(seen.outcome)
    if seen.outcome.status == "failed" and signature is not None and signature.key != finding.signature:
        notes.append("the failure that is seen now differs from the run's in message or place")
    return trait


def _first(harvesting: Harvesting, reducer: Reducer, tell: Told) -> Draft:
    """The first draft that shows the same bug. Raises UsageError with the reasons where none does."""
    reasons = []
    for draft in harvesting.drafts():
        if _shows(reducer, draft.source):
            tell(f"{code_lines(draft.source)} lines fail in the same way: {draft.what}")
            return draft
        reasons.append(f"{draft.what}: {_seen(reducer, draft.source)}")
    why = "; ".join((*reasons, *harvesting.notes)) or "no draft could be written"
    raise UsageError(f"no script without the model shows this failure ({why})", hint="The report's stack stands")


def _shows(reducer: Reducer, source: str) -> bool:
    """Whether a draft is the same bug. That it runs in eager is asked of its reduction: a draft ends at the failure."""
    began = time.monotonic()
    if reducer.judge(source) is not Verdict.YES:
        return False
    reducer.bench.timeout = min(reducer.bench.timeout, max(_SHORTEST, 4 * (time.monotonic() - began)))
    return True


def _seen(reducer: Reducer, source: str) -> str:
    """How a draft that is not the same bug ends, in a few words."""
    outcome = reducer.bench.run(source)
    if outcome.failure is None or not outcome.failure.exceptions:
        return outcome.status
    fact = outcome.failure.exceptions[0]
    return f"{fact.name}: {(fact.message.splitlines() or [''])[0][:120]}"


def _finished(
    order: Order, finding: Finding, seen: Harvested, trait: Trait, draft: Draft, reducer: Reducer, notes: list[str]
) -> Made:
    reduction = reducer.reduce(draft.source)
    reduction.source = reducer.tidy(reduction.source)
    if trait.kind not in DEAD and reduction.ended != "interrupted":
        reduction.source = reducer.mend(reduction.source)
    reducer.tell(f"{code_lines(reduction.source)} lines after {reduction.asked} candidates; verifying")
    source, sighting = reduction.source, _verified(reduction.source, trait)
    if not sighting.verified and source != draft.source:
        again = _verified(draft.source, trait)
        if again.verified:
            notes.append("the reduced script does not fail so in a fresh process; this is the unreduced one")
            source, sighting = draft.source, again
    notes += [note for note in draft.notes if any(name in imports_of(source) for name in note.split())]
    expected = _expected(seen, sighting)
    text = with_header(source, finding=finding, expected=expected, environment=seen.environment, made_by=order.made_by)
    return Made(
        eager=reducer.eager,
        finding=finding, trait=trait, text=text, source=source, draft=draft.what, reduction=reduction,
        sighting=sighting, environment=seen.environment, notes=notes,
    )  # fmt: skip


def _verified(source: str, trait: Trait) -> Sighting:
    return verify(source, trait)


def _expected(seen: Harvested, sighting: Sighting) -> str:
    """What a user of the script will see, in one line."""
    if sighting.died:
        return sighting.died.replace("_", " ")
    if sighting.exception:
        name = sighting.exception.rpartition(".")[2]
        lines = sighting.message.strip().splitlines()
        return f"{name}: {lines[0][:200]}" if lines else name
    failure = seen.outcome.failure
    return failure.exceptions[0].name if failure and failure.exceptions else seen.outcome.status


def _writable(path: Path) -> Path | None:
    """`path`, if its folder is there to write in."""
    return path if path.parent.is_dir() else None
