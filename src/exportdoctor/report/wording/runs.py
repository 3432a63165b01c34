"""A run and its parts in sentences: what was scanned, the verdicts, what it cost, how far it is."""

from __future__ import annotations

from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol.scan import SMALL_MODEL
from exportdoctor.core.report import FAILING, Alternative, PartRecord, Prescription, Proof, Report
from exportdoctor.core.run_state import RunState
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
    if part.only:
        asked = part.only[0] if len(part.only) == 1 else count(len(part.only), "submodule")
        return f"{asked} alone: {finding_count(findings) if findings else 'exports as it is'}"
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
    return proof_figures(prescription.proof if prescription else None, delta=delta)


def proof_figures(shown: Proof | None, *, delta: str = "Δ") -> str:
    """The largest difference to eager, and on how many input sets; empty where nothing was compared."""
    if shown is None:
        return ""
    where = f"on {count(shown.inputs_tried, 'input set')}"
    if shown.max_abs_diff is None:
        return shown.on or where
    return f"max |{delta}| {_small(shown.max_abs_diff)} {where}"


def _small(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def prescription(part: PartRecord, report: Report) -> tuple[str, ...]:
    """What to do so that the part exports, and why that may be trusted; nothing where there is no cure."""
    found = part.prescription
    if found is None:
        return ()
    sentences = []
    for number, step in enumerate(found.steps, start=1):
        condition = f" Holds where {step.precondition}." if step.precondition else ""
        sentences.append(f"{number}. {step.shim} ({step.soundness}): {step.title}.{condition}")
    if found.proof is not None and found.proof.max_abs_diff is not None:
        sentences.append(_proved(found.proof))
    sentences += map(_alternative, found.alternatives)
    if part.verdict == "cured":
        sentences.append(f"Make it: {export_command(part, report)}")
    return tuple(sentences)


def prescription_code(part: PartRecord) -> str:
    """The cure as Python to paste; empty where there is none. `module`, `kwargs` and `shapes` are the reader's own."""
    if part.prescription is None:
        return ""
    root = part.modules[0].fqn if part.modules else ""
    names = "".join(f'    find("{shim}"),\n' for shim in part.prescription.shims)
    return (
        "from exportdoctor.shims import ExportCall, apply_shims, export_program, find\n\n"
        f"call = ExportCall(module={f'model.{root}' if root else 'model'}, kwargs=inputs, dynamic_shapes=shapes)\n"
        f"shims = [\n{names}]\n"
        "with apply_shims(shims, call) as given:\n"
        "    program = export_program(given)\n"
        "outputs = program.module()(**given.convert(((), other_inputs))[1])"
    )


def _alternative(other: Alternative) -> str:
    """Another set that was shown to cure, and why it was not chosen."""
    numbers = proof_figures(other.proof)
    shown = f"; {numbers}, {other.proof.on}" if other.proof is not None and numbers else ""
    conditions = "".join(f" {step.shim} holds where {step.precondition}." for step in other.steps if step.precondition)
    return f"Also cures it: {' + '.join(other.shims)} ({other.soundness}), {other.why}{shown}.{conditions}"


def _proved(proof: Proof) -> str:
    if proof.max_abs_diff:
        numbers = f"differs from eager, which no shim touches, by at most {_small(proof.max_abs_diff)}"
        numbers += f" (allowed: {_small(proof.tolerance)})" if proof.tolerance else ""
    else:
        numbers = "gives the very numbers of eager, which no shim touches"
    sets = count(proof.inputs_tried, "input set")
    return f"Proved on {proof.on}: the exported program {numbers}, on {sets} that differ in sizes and values."


def export_command(part: PartRecord, report: Report) -> str:
    """The command that applies the prescription and writes the program; fake weights have no values to write."""
    weights = " --weights FOLDER" if report.target.weights == "fake" else ""
    chosen = f" --part {part.name}" if len(report.parts) > 1 or part.name != "default" else ""
    name = "model" if part.name == "default" else part.name
    return f"exportdoctor export {report.target.ref}{chosen}{weights} --to pt2 -o {name}.pt2"


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
        pieces.insert(1, f"{stats.answered_from_cache} answered before")
    if stats.peak_rss_mb:
        pieces.append(f"{stats.peak_rss_mb / 1024:.2g} GiB at most")
    return ", ".join(pieces)


def unfinished(report: Report) -> str:
    """Said of a run that did not come to its end; empty otherwise."""
    return "" if report.complete else f"This run was cut off. Go on with: exportdoctor scan --resume {report.run}"


def how_asked(probe: Probe) -> str:
    """How a module is tried, beyond that it is; empty for a plain attempt."""
    how = []
    if probe.shims:
        how.append(f"with {' + '.join(probe.shims)}")
    if probe.part.endswith(SMALL_MODEL):
        how.append("on its small twin")
    if probe.opaque:
        how.append("with its children replaced")
    if probe.dynamic is not None:
        how.append(f"with {', '.join(probe.dynamic)} dynamic" if probe.dynamic else "with every size fixed")
    return ", ".join(how)


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
