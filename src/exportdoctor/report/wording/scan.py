"""Sentences about a scan: what was scanned, the verdicts, what it cost, how far it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.limits import LOG_MB
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import FAILING, FalseEquality, PartRecord, Report, SeenCure
from exportdoctor.core.run.run_state import RunState
from exportdoctor.report.wording.cures import numbers_of_pass
from exportdoctor.report.wording.findings import culprit_line
from exportdoctor.report.wording.formatting import count, duration, finding_count, module_name, parameters

_MOST_REASONS = 3
_SHARE_FOR_AN_ESTIMATE = 0.05  # of the modules; an earlier estimate of the time left is too far off


def headline(report: Report) -> tuple[str, ...]:
    """What was scanned, and with which packages: the pieces of a report's first line."""
    target = report.target
    pieces = [target.ref or report.run or "a run"]
    if target.parameters:
        pieces.append(parameters(target.parameters) + _weights(target.weights))
    pieces += [piece for piece in (target.device, target.dtype) if piece]
    pieces += [f"{name} {report.environment[name]}" for name in ("torch", "transformers") if name in report.environment]
    return tuple(pieces)


_PARTS = {
    "vision": "the image encoder: patches and their grid",
    "text": "the whole model on text alone",
    "decode": "one new token, with a filled cache",
    "prefill": "the whole model on text, with the cache that it fills",
    "full": "the whole model on all that it takes",
    "video": "the whole model on text with a video",
    "default": "the whole model in one forward",
    "projector": "what leads from the encoder's features to the text model",
    "encoder": "the encoder, as the whole model calls it",
    "decoder": "the decoder, as the whole model calls it",
    "heads": "what stands behind the base model, on its output",
}
_SUBMODULE = "the submodule of its configuration, as the whole model calls it"


def part_line(name: str, *, scanned: bool) -> str:
    """A line of `exportdoctor parts`: its name, what it is, whether a scan takes it by default."""
    return f"{name:<9} {_PARTS.get(name, _SUBMODULE)}{'' if scanned else ' (only with --part)'}"


def part_left_out(name: str, why: str) -> str:
    """The note on a part that nobody asked for, and that the model does not have."""
    return f"The part {name} was left out: {why.rstrip('.')}."


def substitution(what: str, because: str) -> str:
    """The note on a model that was built or run in another form than its configuration says."""
    return f"The model was scanned {what}, because of this: {because.rstrip('.')}."


def substitutions(forms: Iterable[Any]) -> tuple[str, ...]:
    """The notes on all of them: each has `what` was built or run, and `because`."""
    return tuple(substitution(one.what, one.because) for one in forms)


def _weights(kind: str) -> str:
    """The kind of weights; empty for those of a user's own module."""
    return {"": "", "as built": "", "checkpoint": ", checkpoint weights"}.get(kind, f", {kind} weights")


def verdict(part: PartRecord, findings: int) -> str:
    """A part's verdict in a few words."""
    if not part.complete:
        if not findings and any(module.status in FAILING for module in part.modules):
            return "fails; cut off before it was known which submodule is to blame"
        return f"cut off, {finding_count(findings)} so far{_seen_cure(part.seen_cure)}"
    if part.only:
        scanned = part.only[0] if len(part.only) == 1 else count(len(part.only), "submodule")
        return f"only {scanned}: {finding_count(findings) if findings else 'exports as is; numbers not compared'}"
    match part.verdict:
        case "passes":
            return f"exports as is{with_registered(part)}{_later_stages(part)}{numbers_of_pass(part)}"
        case "cured":
            return finding_count(findings)
        case "unknown":
            return "unknown: see the notes"
        case _:
            return finding_count(findings) if findings else "fails"


def _seen_cure(seen: SeenCure | None) -> str:
    """What a search for a cure had found; empty if it had found nothing."""
    if seen is None:
        return ""
    what = "its small model" if seen.on_small_model else "it"
    compared = f", with eager's numbers on {count(seen.compared, 'input set')}" if seen.compared else ""
    return f"; {what} exported with {'+'.join(seen.shims)}{compared}, and the search for a cure had not ended"


def _later_stages(part: PartRecord) -> str:
    """The stages after the export that a part passed; empty where none was asked."""
    if "run" in part.root_stages:
        return "; ONNX Runtime runs it, and draws other random numbers" if part.is_random else "; ONNX Runtime runs it"
    if "decompose" in part.root_stages:
        return "; its program decomposes into core operators"
    return "; translates to ONNX, not run in ONNX Runtime" if "translate" in part.root_stages else ""


def with_registered(part: PartRecord) -> str:
    """The classes without whose registration the part does not export; empty where there are none."""
    return f", with {', '.join(part.registered)} registered" if part.registered else ""


def coverage(part: PartRecord) -> str:
    """How many modules there are, and how each got its verdict."""
    by = [module.evidence for module in part.modules]
    itself = by.count("asked")
    pieces = [f"{itself} tried in {part.asked} calls" if part.asked > itself > 0 else f"{part.asked or itself} tried"]
    if identical := by.count("equal"):
        pieces.append(f"{identical} identical to one of those{_audit_counts(part)}")
    if inside := by.count("parent"):
        pieces.append(f"{inside} covered by a parent that exports")
    fixed = [module for module in part.modules if module.at_fixed_sizes and module.status == "pass"]
    for why in dict.fromkeys(module.at_fixed_sizes for module in fixed):
        many = sum(module.at_fixed_sizes == why for module in fixed)
        pieces.append(f"{many} {'passes' if many == 1 else 'pass'}, asked at fixed sizes only ({why})")
    return f"{count(part.called, 'module')}: {', '.join(pieces)}"


def _audit_counts(part: PartRecord) -> str:
    return f" ({part.audit.asked} of {count(part.audit.of, 'such call')} checked)" if part.audit else ""


def false_equality_note(fault: FalseEquality, told: Outcome, seen: Outcome, members: int) -> str:
    """What an audit found to be wrong: a fault of exportdoctor, of which its makers should hear."""
    return (
        f"A fault of exportdoctor: {_call(fault.module, fault.call)} was taken for equal to "
        f"{_call(fault.told_as, fault.told_as_call)}, which {_end_of(told)}, but itself it {_end_of(seen)}. "
        f"{count(members, 'call')} that were told that answer were then asked themselves. "
        "Please report it with this run's folder"
    )


def varying_answer_note(module: str, first: Outcome, again: Outcome) -> str:
    """A module whose export ends in another way each time it is attempted."""
    return f"{module or '(root)'} does not answer alike each time: first it {_end_of(first)}, then it {_end_of(again)}"


def _call(module: str, call: int) -> str:
    return f"{module or '(root)'}, call {call + 1}" if call else module or "(root)"


def _end_of(outcome: Outcome) -> str:
    if outcome.passed:
        return "exports"
    raised = outcome.failure.exceptions if outcome.failure is not None else ()
    return f"fails ({raised[0].name}: {first_line(raised[0].message, 120)})" if raised else f"fails ({outcome.status})"


PARTS_HEADER = ("part", "dynamic", "verdict", "cure", "proof")
"""The columns of a table of parts."""


class HookFacts(Protocol):
    """What is said of a private part of torch."""

    @property
    def id(self) -> str: ...
    @property
    def lost(self) -> str: ...


def missing_internals(hooks: Sequence[HookFacts]) -> str:
    """The note on private parts of torch that the installed one has not; empty where it has all."""
    if not hooks:
        return ""
    lost = "; ".join(dict.fromkeys(hook.lost for hook in hooks))
    names = ", ".join(hook.id for hook in hooks)
    return f"This torch lacks internals that exportdoctor uses ({names}): {lost}. See exportdoctor version --internals"


def unknown_notes(part: str, unknown: Sequence[tuple[str, Outcome]]) -> list[str]:
    """Why nothing is known of modules: exportdoctor itself failed on one, and where; or the GPU could not take them."""
    notes = []
    for reason in dict.fromkeys(outcome.note for _, outcome in unknown if outcome.status == OutcomeStatus.NO_DEVICE):
        names = [
            module_name(fqn) for fqn, one in unknown if one.status == OutcomeStatus.NO_DEVICE and one.note == reason
        ]
        more = f" and {count(len(names) - 1, 'other module')}" if len(names) > 1 else ""
        notes.append(f"{part}: {names[0]}{more}: unknown, because a GPU is needed that does not answer ({reason})")
    for fqn, outcome in unknown:
        if outcome.status != OutcomeStatus.NO_DEVICE:
            log = f"; stack in {outcome.log}" if outcome.log else ""
            why = f"exportdoctor itself failed ({outcome.note}{log}). Report it"
            notes.append(f"{part}: {module_name(fqn)} is unknown, because {why}")
    return notes


def unrecorded_note(reasons: tuple[str, ...]) -> str | None:
    """One line on why answers are not kept."""
    if not reasons:
        return None
    more = f"; and {count(len(reasons) - _MOST_REASONS, 'other')}" if len(reasons) > _MOST_REASONS else ""
    told = "; ".join(reasons[:_MOST_REASONS])
    return f"Not kept for later scans, because the target may use what cannot be compared: {told}{more}"


def long_log_note() -> str:
    """One line on why a log is not all that was printed."""
    return f"The target prints more than {LOG_MB:.0f} MiB; of its log the beginning and the end are kept"


def cost(report: Report) -> str:
    """What the run took."""
    stats = report.stats
    cached = f" ({stats.answered_from_cache} from the cache)" if stats.answered_from_cache else ""
    pieces = [count(stats.probes, "attempt") + cached, duration(stats.seconds)]
    if stats.asked_twice:
        pieces.insert(1, f"{stats.asked_twice} made twice ({stats.in_flight} ran when the run was cut off)")
    if stats.peak_rss_mb:
        pieces.append(f"peak memory {stats.peak_rss_mb / 1024:.2g} GiB")
    return ", ".join(pieces)


def findings_in_both(number: int, *, same_verdicts: bool) -> str:
    """How many findings two runs share."""
    if same_verdicts:
        return f"Same verdicts; {finding_count(number)} in {'both' if number else 'either'}."
    return f"In both runs: {finding_count(number)}." if number else "No finding is unchanged in both runs."


def moved_finding(finding: str, after: str) -> str:
    """A finding that is the same failure in the second run, of another line or message; `after` is its place there."""
    return f"finding in both, with another line or message: {finding}; in the second run at {after}"


def unfinished_run(run: str) -> str:
    """Said of a run that is compared with another one."""
    return f"{run} did not come to its end: what it has not asked is not compared."


def cut_off_note(report: Report) -> str:
    """How to continue a run that was cut off, or why it ended; empty for a complete one."""
    if report.error:
        return f"This run ended with an error: {report.error}"
    return "" if report.complete else f"This run was cut off. Continue with: {resume_command(report.run)}"


def changed_meanwhile(files: Sequence[str]) -> str:
    """Files that were saved anew while a scan ran."""
    more = f" and {count(len(files) - 1, 'other file')}" if len(files) > 1 else ""
    return f"{files[0]}{more} changed while the scan ran: the report is of what was imported. Scan again"


def resume_command(run: str) -> str:
    """The command that continues a run."""
    return f"exportdoctor scan --resume {run}"


def probe_note(probe: Probe) -> str:
    """How a module is exported where that is not the plain way; else empty."""
    how = []
    if probe.shims:
        how.append(f"with {' + '.join(probe.shims)}")
    if probe.part.endswith(SMALL_MODEL_SUFFIX):
        how.append("on a small model")
    if probe.to == "compare" and not probe.shims:
        how.append("and compared with eager")
    if probe.to == "ground":
        how.append("with each submodule disturbed")
    if probe.fresh:
        how.append("as an audit")
    if probe.opaque:
        how.append("with its children replaced")
    if probe.dynamic is not None:
        how.append(f"with {', '.join(probe.dynamic)} dynamic" if probe.dynamic else "with all sizes fixed")
    return ", ".join(how)


def progress_counts(state: RunState) -> str:
    """How far a run is: its phase and parts, modules with a verdict or sets of shims tried, attempts, failures."""
    parts = tuple(state.parts.values())
    phases = 3 if _searches_cures(state) else 2
    if not parts:
        return f"1/{phases} build: {state.step or 'starting'}"
    judged, called = _judged_modules(state)
    # copied first: the live display reads this while the scan goes on
    failing = sum(1 for part in parts for verdict in list(part.judged.values()) if verdict.status in FAILING)
    cures = judged == called and phases == 3
    left = ", ".join(part.captured.part for part in parts if part.finished is None) or "finishing"
    pieces = (
        f"3/3 cure: {left}" if cures else f"2/{phases} diagnose: {left}",
        shim_sets_tried(len(state.shim_sets)) if cures else f"{judged} of {count(called, 'module')}",
        count(len(state.answers), "attempt"),
        finding_count(len(state.findings)) if state.findings else f"{failing} failing",
    )
    return " · ".join(pieces)


def shim_sets_tried(number: int) -> str:
    """How far the search for a cure is: nobody knows how many sets it will try."""
    return f"{count(number, 'set')} of shims tried"


def time_left(state: RunState, elapsed: float) -> str:
    """`~40 s left` for a run that has taken `elapsed` seconds; empty while there is no basis for an estimate."""
    judged, called = _judged_modules(state)
    return time_left_of_share(judged / max(1, called), elapsed, searches=_searches_cures(state))


def time_left_of_share(share: float, elapsed: float, *, searches: bool) -> str:
    """`~40 s left` if the other modules get their verdicts at the same pace; empty if too few have one.

    `share` is the share of modules with a verdict. If a scan `searches` shims after that, only this phase is meant.
    """
    if not _SHARE_FOR_AN_ESTIMATE <= share < 1:
        return ""
    return f"~{duration(elapsed * (1 - share) / share)} left{' in this phase' if searches else ''}"


def _searches_cures(state: RunState) -> bool:
    return state.started is None or state.started.options.cure


def _judged_modules(state: RunState) -> tuple[int, int]:
    """How many modules have a verdict, of how many that are called."""
    parts = tuple(state.parts.values())
    called = [(part, fact.fqn) for part in parts for fact in part.captured.modules if fact.calls]
    return sum(1 for part, fqn in called if fqn in part.judged), len(called)


def event_line(event: ev.AnyEvent, state: RunState) -> str | None:
    """The line that progress shows for an event; None for most of them. `state` includes the event."""
    match event:
        case ev.RunStarted():
            return f"run {event.run}"
        case ev.RunResumed():
            return f"resumed with {count(len(state.answers), 'known result')}"
        case ev.StepStarted() | ev.NoteAdded():
            return event.text
        case ev.TargetOpened(opened=opened):
            return f"built: {parameters(opened.parameters)} on {opened.device}, {opened.dtype}"
        case ev.PartCaptured(captured=captured):
            return f"{captured.part}: {count(sum(1 for fact in captured.modules if fact.calls), 'module')} captured"
        case ev.FindingMade(finding=finding):
            return f"{finding.id}  {culprit_line(finding)}"
        case ev.PartFinished():
            here = sum(1 for finding in state.findings.values() if finding.part == event.part)
            return f"{event.part}: {event.verdict}, {finding_count(here)}, {duration(event.seconds)}"
        case _:
            return None
