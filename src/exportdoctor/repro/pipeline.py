"""From a finding of a run to its verified script: harvest, first draft that fails, reduce, verify."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.finding import Finding
from exportdoctor.core.protocol.repro import DraftRequest, ReproducedFailure, ScriptDraft
from exportdoctor.reduce import Verdict
from exportdoctor.reduce.source.passes.script_sizes import shorten_embeddings, shorten_lists
from exportdoctor.repro.candidate_runner import Bench
from exportdoctor.repro.draft_client import Harvesting
from exportdoctor.repro.find_probe import changes_since, finding_of, probe_of, same_failure
from exportdoctor.repro.incidental_failures import Circumstances, Met, Other, others_of
from exportdoctor.repro.reduction import Budget, Reducer, Reduction
from exportdoctor.repro.repro_signature import Trait
from exportdoctor.repro.script import Header, code_lines, imports_of, origin_of, with_header
from exportdoctor.repro.verdict_log import VerdictLog
from exportdoctor.repro.verify import Sighting, verify
from exportdoctor.store.runs import StoredRun

Told = Callable[[str], None]
_SHORTEST = 8.0  # seconds
_WIDTH = 2  # more candidates beside each other cost memory, and a wrong bet costs a question


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is asked for. `made_by` is the command line that a script's header tells."""

    run: StoredRun
    finding: str
    budget: Budget = field(default_factory=Budget)
    made_by: str = ""


@dataclass(kw_only=True)
class Made:
    """A script and what is known of it. `notes` are for the user; `draft` says how the source was obtained.

    `eager` is whether its module runs without export, `exporter` the way that fails, `others` are the other failures
    that were met on the way.
    """

    finding: Finding
    trait: Trait
    text: str
    source: str
    draft: str
    reduction: Reduction
    sighting: Sighting
    eager: bool
    environment: dict[str, str]
    exporter: str = "export"
    others: tuple[Other, ...] = ()
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
    run, finding = order.run, finding_of(order.run, order.finding)
    state = run.state
    assert state.started is not None  # read_run refuses others
    probe = probe_of(run.events, finding)
    for note in changes_since(run):
        tell(note)
    talk = _writable(run.path / "logs" / f"repro-{finding.id}.log")
    command = DraftRequest(target=state.started.target, probe=probe, signature=finding.signature,
                      shim_files=state.started.options.shim_files)  # fmt: skip
    tell(f"seeing {finding.id} fail again")
    with Bench(talk=talk) as bench, Harvesting(command, talk=talk) as harvesting:  # each warms up on a core of its own
        seen = harvesting.again()
        notes = list(changes_since(run, seen.environment))
        trait = same_failure(seen, finding, notes)
        _limit(bench, trait)
        path = run.path / "repros" / f"{finding.id}.verdicts.jsonl"
        log = VerdictLog(path, holds_for=f"{trait} {seen.environment}")
        reducer = Reducer(bench, trait, seen.exporter, order.budget, tell, log)
        reducer.met = Met(trait, seen.exporter, log)
        draft = _first(harvesting, reducer, tell)
        harvesting.close()  # the model is not needed any more, and its memory is
        return _finished(_Course(order, finding, seen, trait, draft, reducer, notes))


def _limit(bench: Bench, trait: Trait) -> None:
    """What a candidate may take. Two beside each other only where that cannot change a verdict."""
    bench.timeout = 4.0 if trait.kind is FailureKind.TIMEOUT else 30.0
    bench.memory_mb = 400.0 if trait.kind is FailureKind.OUT_OF_MEMORY else 2500.0
    bench.width = 1 if trait.kind is FailureKind.OUT_OF_MEMORY else min(_WIDTH, os.cpu_count() or 1)


def _first(harvesting: Harvesting, reducer: Reducer, tell: Told) -> ScriptDraft:
    """The first draft that shows the same bug. Raises UsageError with the reasons where none does.

    One that kills or hangs its process must do so only when it is exported, as the user's model does: what kills any
    process is nobody's bug. Other drafts end where the failure was, and cannot run in eager yet.
    """
    drafts: list[ScriptDraft] = []
    for eager in (True, False) if reducer.wanted.kind.ends_the_process else (False,):
        reducer.eager = eager
        for draft in drafts if drafts else _collected(harvesting.drafts(), drafts):
            lighter = shorten_embeddings(draft.source)
            for source in dict.fromkeys((*shorten_lists(lighter), lighter, draft.source)):
                if _shows(reducer, source):
                    tell(f"{code_lines(source)} lines fail in the same way: {draft.what}")
                    return msgspec.structs.replace(draft, source=source)
    reasons = [f"{draft.what}: {_seen(reducer, draft.source)}" for draft in drafts]
    why = "; ".join((*reasons, *harvesting.notes)) or "no draft could be written"
    raise UsageError(f"no script without the model shows this failure ({why})", hint="The report's stack stands")


def _collected(drafts: Iterator[ScriptDraft], into: list[ScriptDraft]) -> Iterator[ScriptDraft]:
    for draft in drafts:
        into.append(draft)
        yield draft


def _shows(reducer: Reducer, source: str) -> bool:
    """Whether a draft is the same bug; later candidates are smaller, and get no more time than it takes."""
    began = time.monotonic()
    if reducer.judge(source) is not Verdict.YES:
        return False
    bench = reducer.bench
    bench.timeout = min(bench.timeout, max(_SHORTEST, 4 * (time.monotonic() - began)))
    return True


def _seen(reducer: Reducer, source: str) -> str:
    """How a draft that is not the same bug ends, in a few words."""
    outcome = reducer.bench.run(source)
    if outcome.failure is None or not outcome.failure.exceptions:
        return outcome.status
    fact = outcome.failure.exceptions[0]
    return f"{fact.name}: {first_line(fact.message, 120)}"


@dataclass(frozen=True)
class _Course:
    """All that leads to a script."""

    order: Order
    finding: Finding
    seen: ReproducedFailure
    trait: Trait
    draft: ScriptDraft
    reducer: Reducer
    notes: list[str]


def _finished(course: _Course) -> Made:
    reduction = _reduced(course)
    sighting = _verified(reduction.source, course.trait)
    if not sighting.verified and reduction.source != course.draft.source:
        again = _verified(course.draft.source, course.trait)
        if again.verified:
            course.notes.append("the reduced script does not fail so in a fresh process; this is the unreduced one")
            reduction.source, sighting = course.draft.source, again
    used = {*imports_of(reduction.source)}
    needless = [note for note in course.draft.notes if "imported from" in note and not used & set(note.split())]
    course.notes.extend(note for note in course.draft.notes if note not in needless)
    header = Header(
        origin=origin_of(course.finding),
        expected=_expected(course.seen, sighting),
        environment=course.seen.environment,
        made_by=course.order.made_by,
        remarks=tuple(note for note in course.notes if "no source" in note),
    )
    return Made(
        finding=course.finding, trait=course.trait, text=with_header(reduction.source, header),
        source=reduction.source, draft=course.draft.what, reduction=reduction, sighting=sighting,
        eager=course.reducer.eager, exporter=course.seen.exporter, environment=course.seen.environment,
        others=_others(course, reduction), notes=course.notes,
    )  # fmt: skip


def _verified(source: str, trait: Trait) -> Sighting:
    match trait.kind:
        case FailureKind.OUT_OF_MEMORY:
            return verify(source, trait, memory_mb=900.0)
        case FailureKind.TIMEOUT:
            return verify(source, trait, timeout=40.0)  # a repro that does not hang ends within a tenth of that
        case _:
            return verify(source, trait)


def _reduced(course: _Course) -> Reduction:
    """Reduced, without idle statements, with sizes that run in eager, and seen again."""
    reducer = course.reducer
    reduction = reducer.reduce(course.draft.source)
    if not reduction.interrupted:
        reduction = reducer.tidied(reduction)
        if not course.trait.kind.ends_the_process:
            reduction = reducer.tidied(reducer.polish(reduction))
        reducer.confirm(reduction)
    if reduction.flaky:
        course.notes.append(
            f"this failure is flaky: the same script showed it in {reduction.same} of its last {reduction.runs} runs"
        )
    reducer.tell(f"{code_lines(reduction.source)} lines after {reduction.asked} candidates; verifying")
    return reduction


def _others(course: _Course, reduction: Reduction) -> tuple[Other, ...]:
    """None where Ctrl-C ended it: the same command goes on, and looks at them then."""
    met = course.reducer.met
    if reduction.interrupted or met is None:
        return ()
    told = Circumstances(
        finding=course.finding,
        findings=tuple(course.order.run.state.findings.values()),
        environment=course.seen.environment,
        made_by=course.order.made_by,
    )
    return others_of(course.reducer, met, told)


def _expected(seen: ReproducedFailure, sighting: Sighting) -> str:
    """What a user of the script will see, in one line."""
    if sighting.died:
        return sighting.died.replace("_", " ")
    if sighting.exception:
        name = sighting.exception.rpartition(".")[2]
        line = first_line(sighting.message, 200)
        return f"{name}: {line}" if line else name
    failure = seen.outcome.failure
    return failure.exceptions[0].name if failure and failure.exceptions else seen.outcome.status


def _writable(path: Path) -> Path | None:
    """`path`, if its folder is there to write in."""
    return path if path.parent.is_dir() else None
