"""From a finding of a run to its verified script: drafts, the first of them that fails, reduction, verification."""

from __future__ import annotations

import ast
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import NameFreeSignature
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import first_line, summary_line
from exportdoctor.core.limits import SHORTEST_CANDIDATE
from exportdoctor.core.protocol.repro import DraftRequest, ReproducedFailure, ScriptDraft
from exportdoctor.process.supervise import Limits, build_limits
from exportdoctor.reduce import Verdict
from exportdoctor.reduce.source.passes.script_sizes import shorten_embeddings, shorten_lists
from exportdoctor.report import wording
from exportdoctor.repro.candidates.budget import BudgetClock, ReductionBudget
from exportdoctor.repro.candidates.candidate_judge import JUDGED_BY, CandidateJudge
from exportdoctor.repro.candidates.candidate_runner import CandidateRunner
from exportdoctor.repro.candidates.dynamic_inputs import violated_inputs
from exportdoctor.repro.candidates.incidental_failures import (
    FailureCollector,
    IncidentalFailure,
    find_incidental_failures,
)
from exportdoctor.repro.candidates.other_causes import fails_earlier, without_other_causes
from exportdoctor.repro.candidates.reduction import Reducer, ReductionResult, Tell
from exportdoctor.repro.candidates.verdict_log import VerdictLog
from exportdoctor.repro.draft_client import DraftClient
from exportdoctor.repro.find_probe import as_it_is_now, changes_since, finding_of, identify_failure, probe_of
from exportdoctor.repro.kind_limits import candidate_limits
from exportdoctor.repro.script import Header, code_lines, imports_of, origin_of, with_header
from exportdoctor.repro.verify import Sighting, verify
from exportdoctor.store.runs import StoredRun, target_again

_DRAFTS_WITH_CAUSES = 3
_WRITTEN_WRONGLY = frozenset({"NameError", "SyntaxError", "UnboundLocalError"})
_NOT_LOADED = re.compile(r"^module '([\w.]+)' has no attribute '(\w+)'")
_KEPT = (re.compile(r"rtol=0, atol=[^)]*"), re.compile(r"^torch\.manual_seed\(0\)$", re.M))
_MOST_IMPORTS = 3
_WIDTH = 2  # more candidates beside each other cost memory, and a wrong bet costs a question


@dataclass(frozen=True, kw_only=True)
class ReproRequest:
    """Which finding of which run. `made_by` is the command line for the script's header, `building` what building the
    target may take; by default as in the run."""

    run: StoredRun
    finding: str
    budget: ReductionBudget = field(default_factory=ReductionBudget)
    made_by: str = ""
    building: Limits | None = None


@dataclass(frozen=True, kw_only=True)
class ReproResult:
    """A script and what is known of it. `notes` are for the user.

    `exporter` is the way that fails, `others` are the other failures that candidates showed.
    """

    finding: Finding
    signature: NameFreeSignature
    text: str
    source: str
    reduction: ReductionResult
    sighting: Sighting
    environment: dict[str, str]
    exporter: str
    others: tuple[IncidentalFailure, ...]
    notes: tuple[str, ...]

    @property
    def eager(self) -> bool:
        """Whether the script's module runs without export."""
        return self.reduction.eager

    @property
    def lines(self) -> int:
        """Lines of code, header left out."""
        return code_lines(self.source)

    @property
    def imports(self) -> tuple[str, ...]:
        """Packages that the script needs."""
        return imports_of(self.source)


def make_repro(request: ReproRequest, tell: Tell) -> ReproResult:
    """The script of a finding. Raises UsageError where there is no such finding, or it does not fail any more."""
    run, finding = request.run, finding_of(request.run, request.finding)
    command = _draft_request(run, finding)
    for note in changes_since(run):
        tell(note)
    output = _if_writable(run.path / "logs" / f"repro-{finding.id}.log")
    tell(wording.repro_reproducing(finding.id))
    # each of the two processes warms up on a core of its own
    with (
        CandidateRunner(log=output) as runner,
        DraftClient(command, log=output, building=request.building or _limits_of(run)) as client,
    ):
        seen = client.reproduce()
        notes = list(changes_since(run, seen.environment))
        signature = identify_failure(seen, finding, notes)
        _limit(runner, signature)
        verdicts = run.path / "repros" / f"{finding.id}.verdicts.jsonl"
        log = VerdictLog(verdicts, holds_for=f"{JUDGED_BY} {signature} {seen.environment}")
        others = FailureCollector(signature, seen.exporter, log)
        judge = CandidateJudge(
            runner=runner, wanted=signature, exporter=seen.exporter, log=log,
            violated=violated_inputs(seen.outcome), on_other_failure=others.add,
        )  # fmt: skip
        draft, judge = _first_failing_draft(client, judge, tell)
        client.close()  # frees the memory of the model
        reduction = _reduce(Reducer(judge, BudgetClock(request.budget, runner), tell), draft.source)
        if reduction.flaky:
            notes.append(wording.repro_flaky(reduction.same, reduction.runs))
        source, sighting = _verify_either(reduction.source, draft.source, signature, notes)
        imported = needed_imports(draft, source)
        shims = command.probe.shims
        under = (wording.repro_under_shims(shims),) if shims else ()
        fails_in_eager = not reduction.eager and not signature.kind.ends_the_process
        sizes = (wording.repro_not_in_eager(),) if fails_in_eager else ()
        notes += (*draft.notes, *imported)
        header = Header(
            origin=origin_of(as_it_is_now(finding, seen.outcome)),
            expected=_expected_line(seen, sighting),
            environment=seen.environment,
            made_by=request.made_by,
            remarks=(*sizes, *under, *draft.remarks, *imported),
        )
        return ReproResult(
            finding=finding,
            signature=signature,
            text=with_header(source, header),
            source=source,
            reduction=reduction,
            sighting=sighting,
            environment=seen.environment,
            exporter=seen.exporter,
            # an interrupted reduction is resumed by the same command, which then looks for them
            others=() if reduction.interrupted else find_incidental_failures(judge, others, header, finding, run),
            notes=tuple(notes),
        )


def _limits_of(run: StoredRun) -> Limits:
    assert run.state.started is not None  # read_run refuses others
    options = run.state.started.options
    return build_limits(options.build_timeout, options.build_memory_mb)


def _draft_request(run: StoredRun, finding: Finding) -> DraftRequest:
    started = run.state.started
    assert started is not None  # read_run refuses others
    return DraftRequest(
        target=target_again(run),
        probe=probe_of(run.events, finding),
        signature=finding.signature,
        shim_files=started.options.shim_files,
    )


def _limit(runner: CandidateRunner, signature: NameFreeSignature) -> None:
    """What a candidate may take. Two beside each other only where that cannot change a verdict."""
    runner.timeout, runner.memory_mb = candidate_limits(signature.kind)
    runner.width = 1 if signature.kind is FailureKind.OUT_OF_MEMORY else min(_WIDTH, os.cpu_count() or 1)


def _first_failing_draft(client: DraftClient, judge: CandidateJudge, tell: Tell) -> tuple[ScriptDraft, CandidateJudge]:
    """The first draft that shows the same bug, and the judge that its reduction needs.

    Raises UsageError without one, or the error that kept further drafts from being written.

    One that kills or hangs its process must do so only when it is exported, as the user's model does, where there is
    such a draft: what kills any process is no bug of the exporter. Other drafts end where the failure was, and cannot
    run in eager mode yet.
    """
    drafts: list[ScriptDraft] = []
    for eager in (True, False) if judge.wanted.kind.ends_the_process else (False,):
        judge = judge.with_eager(eager)
        for draft in drafts if drafts else _remember(client.drafts(), drafts):
            lighter = shorten_embeddings(draft.source)
            for source in dict.fromkeys((*shorten_lists(lighter), lighter, draft.source)):
                if _shows_bug(judge, source):
                    tell(wording.repro_draft(code_lines(source), draft.what))
                    return msgspec.structs.replace(draft, source=source), replace(judge, kept=texts_to_keep(source))
    behind = [draft for draft in drafts if fails_earlier(judge, draft.source)]
    for draft in behind[:_DRAFTS_WITH_CAUSES]:
        found = without_other_causes(judge, draft.source)
        if found is not None:
            tell(wording.repro_draft(code_lines(found), wording.repro_other_causes()))
            return msgspec.structs.replace(draft, source=found), judge
    if client.error is not None:
        raise client.error
    ends = ends_of_drafts(judge, drafts)
    why = "; ".join((*ends, *client.notes)) or "no draft could be written"
    text = wording.repro_not_found(why, shims=client.request.probe.shims)
    raise UsageError(text, hint="See the stack in the report")


def texts_to_keep(source: str) -> tuple[str, ...]:
    """How near the numbers that a script compares have to be, as it writes that, and how it draws them; nothing where
    it compares none."""
    return tuple(found[0] for pattern in _KEPT if (found := pattern.search(source)))


def _remember(drafts: Iterator[ScriptDraft], into: list[ScriptDraft]) -> Iterator[ScriptDraft]:
    for draft in drafts:
        into.append(draft)
        yield draft


def _shows_bug(judge: CandidateJudge, source: str) -> bool:
    """Whether a draft is the same bug; later candidates are smaller, and get no more time than it takes."""
    began = time.monotonic()
    if judge(source) is not Verdict.YES:
        return False
    judge.runner.timeout = min(judge.runner.timeout, max(SHORTEST_CANDIDATE, 4 * (time.monotonic() - began)))
    return True


def ends_of_drafts(judge: CandidateJudge, drafts: list[ScriptDraft]) -> list[str]:
    """How drafts that are not the same bug end, in a few words; each way to make one is named once.

    A draft in which a name is not defined was written wrongly: it says nothing about the model.
    """
    ends: dict[str, dict[str, None]] = {}
    for draft in drafts:
        outcome = judge.runner.run(draft.source)
        fact = next(iter(outcome.failure.exceptions), None) if outcome.failure is not None else None
        if fact is None or fact.type not in _WRITTEN_WRONGLY:
            end = f"{fact.name}: {first_line(fact.message, 120)}" if fact is not None else outcome.status
            ends.setdefault(draft.what, {})[end] = None
    return [f"{what}: {', or '.join(found)}" for what, found in ends.items()]


def _reduce(reducer: Reducer, source: str) -> ReductionResult:
    """Reduced, without idle statements, with sizes that run in eager mode where there are some, and seen again."""
    reduction = reducer.reduce(source)
    if not reduction.interrupted:
        reduction = reducer.tidy(reduction)
        if not reducer.judge.wanted.kind.ends_the_process:
            reduction = reducer.tidy(reducer.cut_again(reducer.polish(reduction)))
        reduction = reducer.confirm(reducer.widen(reduction))
    reducer.tell(wording.repro_progress(code_lines(reduction.source), reduction.asked, verifying=True))
    return reduction


def _verify_either(reduced: str, draft: str, signature: NameFreeSignature, notes: list[str]) -> tuple[str, Sighting]:
    """The reduced script and what it shows; the unreduced one where only that is verified."""
    reduced, sighting = _verify_with_imports(reduced, signature)
    if not sighting.verified and reduced != draft:
        draft, again = _verify_with_imports(draft, signature)
        if again.verified:
            notes.append(wording.repro_not_reduced())
            return draft, again
    return reduced, sighting


def _verify_with_imports(source: str, signature: NameFreeSignature) -> tuple[str, Sighting]:
    """The script and what it shows. What it names of a package and a fresh process has not loaded is imported, such as
    `torch.nn.attention.flex_attention`."""
    first = sighting = verify(source, signature)
    changed = source
    for _ in range(_MOST_IMPORTS):
        found = _NOT_LOADED.search(sighting.message) if sighting.exception.endswith("AttributeError") else None
        if found is None:
            break
        changed = add_import(changed, ".".join(found.groups()))
        sighting = verify(changed, signature)
    return (changed, sighting) if sighting.verified else (source, first)


def add_import(source: str, name: str) -> str:
    """The script with `import name` behind its other imports."""
    last = max((one.end_lineno or 0 for one in ast.parse(source).body if isinstance(one, ast.Import)), default=0)
    lines = source.splitlines(keepends=True)
    return "".join((*lines[:last], f"import {name}\n", *lines[last:]))


def needed_imports(draft: ScriptDraft, source: str) -> tuple[str, ...]:
    """The notes on the draft's imports that the reduced source still has."""
    used = {*imports_of(source)}
    return tuple(note.text for note in draft.imports if note.module.partition(".")[0] in used)


def _expected_line(seen: ReproducedFailure, sighting: Sighting) -> str:
    """What a user of the script will see, in one line."""
    if sighting.died:
        return sighting.died.replace("_", " ")
    if sighting.exception:
        name = sighting.exception.rpartition(".")[2]
        line = summary_line(sighting.message, 240)
        return f"{name}: {line}" if line else name
    failure = seen.outcome.failure
    return failure.exceptions[0].name if failure and failure.exceptions else seen.outcome.status


def _if_writable(path: Path) -> Path | None:
    """`path`, if its folder is there to write in."""
    return path if path.parent.is_dir() else None
