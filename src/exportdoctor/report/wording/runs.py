"""A run and its parts in sentences: what was scanned, the verdicts, what it cost, how far it is."""

from __future__ import annotations

from exportdoctor.core.report import FAILING, PartRecord, Prescription, Report
from exportdoctor.core.state import RunState
from exportdoctor.report.wording.pieces import count, elapsed, finding_count, parameters


def headline(report: Report) -> tuple[str, ...]:
    """What was scanned, and with what: the pieces of a report's first line."""
    target = report.target
    pieces = [target.ref or report.run or "a run"]
    if target.parameters:
        pieces.append(parameters(target.parameters) + _weights(target.weights))
    pieces += [piece for piece in (target.device, target.dtype) if piece]
    pieces += [f"{name} {report.environment[name]}" for name in ("torch", "transformers") if name in report.environment]
    return tuple(pieces)


def _weights(kind: str) -> str:
    """What the weights are; those that came with a user's own module need no word."""
    return {"": "", "as built": "", "checkpoint": ", weights of a checkpoint"}.get(kind, f", {kind} weights")


def verdict(part: PartRecord, findings: int) -> str:
    """A part's verdict in a few words."""
    if not part.complete:
        return f"cut off, {finding_count(findings)} so far"
    match part.verdict:
        case "passes":
            return "exports as it is"
        case "cured":
            return finding_count(findings)
        case _:
            return finding_count(findings) if findings else "fails"


def cure(part: PartRecord) -> str:
    """What makes a part export; empty where nothing does or nothing needs to."""
    if part.prescription is None:
        return ""
    return f"cured by {count(len(part.prescription.shims), 'shim')} ({part.prescription.soundness})"


def proof(prescription: Prescription | None, *, delta: str = "Δ") -> str:
    """The numbers that prove a cure; empty where there are none."""
    shown = prescription.proof if prescription else None
    if shown is None:
        return ""
    where = f"on {count(shown.inputs_tried, 'input set')}" + (f" ({shown.on})" if shown.on else "")
    return where if shown.max_abs_diff is None else f"max |{delta}| {shown.max_abs_diff:.0e} {where}"


def coverage(part: PartRecord) -> str:
    """How many modules there are, and how each came to its verdict."""
    by = [module.evidence for module in part.modules]
    pieces = [count(part.called, "module"), f"{part.asked or by.count('asked')} asked"]
    if equal := by.count("equal"):
        pieces.append(f"{equal} equal to one that was")
    if inside := by.count("parent"):
        pieces.append(f"{inside} inside one that passes")
    return ", ".join(pieces)


def cost(report: Report) -> str:
    """What the run took."""
    stats = report.stats
    pieces = [count(stats.probes, "attempt"), elapsed(stats.seconds)]
    if stats.answered_from_cache:
        pieces.insert(1, f"{stats.answered_from_cache} answered from the cache")
    if stats.peak_rss_mb:
        pieces.append(f"{stats.peak_rss_mb / 1024:.2g} GiB at most")
    return ", ".join(pieces)


def unfinished(report: Report) -> str:
    """Said of a run that did not come to its end; empty otherwise."""
    return "" if report.complete else f"This run was cut off. Go on with: exportdoctor scan --resume {report.run}"


def progress_counts(state: RunState) -> str:
    """How far a run is: the parts that are being asked, verdicts of modules, attempts, failures."""
    parts = tuple(state.parts.values())
    if not parts:
        return state.step or "starting"
    called = sum(1 for part in parts for fact in part.captured.modules if fact.calls)
    judged = sum(1 for part in parts for fact in part.captured.modules if fact.calls and fact.fqn in part.judged)
    # copied first: the live display reads this while the scan goes on
    failing = sum(1 for part in parts for verdict in list(part.judged.values()) if verdict.status in FAILING)
    pieces = (
        ", ".join(part.captured.part for part in parts if part.finished is None) or "finishing",
        f"{judged} of {count(called, 'module')}",
        count(len(state.answers), "attempt"),
        finding_count(len(state.findings)) if state.findings else f"{failing} failing",
    )
    return " · ".join(pieces)
