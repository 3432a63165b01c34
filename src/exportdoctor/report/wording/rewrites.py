"""Sentences about the rewrites of a failing line: which were tried on the user's own code, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence

from exportdoctor.core.failure import explanations
from exportdoctor.core.failure.finding import Finding, TriedRewrite
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import without_hints
from exportdoctor.core.failure.statement_forms import statement_form
from exportdoctor.core.run.report import Report
from exportdoctor.report.wording import known_causes, operators
from exportdoctor.report.wording.cures import EXPORT_LABEL, cured_step, export_command, exports_with_shims, soundness
from exportdoctor.report.wording.formatting import count

WHY, ADVICE, OWN_LINE, REWRITES, EXAMPLES, EXAMPLE_FAILS, EXAMPLE_INSTEAD = (
    "Why", "What helps", "Your code", "Rewrites that work", "Examples", "This fails:", "In place of:"
)  # fmt: skip
_BY_FORM = {
    "while": "Run the loop as torch.while_loop, or as a fixed number of rounds whose results are masked.",
    "reads_state": (
        "Keep what the condition reads as a value of Python that is set before the export, or compute both branches "
        "and select."
    ),
}
DOCUMENTED = "torch documents this as not supported:"


def usual_step(finding: Finding) -> str:
    """What usually helps with a failure of this kind, in a statement of this form, or at this operator."""
    form = statement_form(finding) if finding.kind is FailureKind.DATA_DEPENDENT_GUARD else ""
    known = _BY_FORM.get(form) or known_causes.step(finding)
    return known or operators.step(finding) or explanations.next_step(finding.kind)


def rewrite_result(tried: TriedRewrite, finding: Finding) -> str:
    """What was seen of a rewrite of the finding's own line."""
    what = tried.module or (f"part {finding.part}" if finding.part != "default" else "the model")
    sets = count(tried.input_sets, "input set")
    close = "exactly" if not tried.max_abs_diff else f"within {tried.max_abs_diff:.0e}"
    further = f" The rest of {finding.part} still fails." if tried.module else ""
    match tried.result:
        case "exports":
            way = " None of them was seen to take another branch than the example." if tried.one_way else ""
            return f"Tried: with this change {what} exports, and computes the same on {sets} ({close}).{way}{further}"
        case "no_values":
            return (
                f"Tried: with this change {what} exports. Its outputs were not compared: the weights have no values. "
                f"Scan with --weights random to compare them.{further}"
            )
        case "not_tried":
            return f"Could not be tried: {tried.note}." if tried.note else "Not tried."
        case "differs":
            return f"Tried: {tried.title}. With this change {what} {tried.note}."
        case _:
            return _failure_of(tried, finding, what)


def _failure_of(tried: TriedRewrite, finding: Finding, what: str) -> str:
    """How the export ended with a rewrite under which it fails; only the same failure again is called in vain."""
    note = without_hints(tried.note)
    match tried.ended:
        case "same":
            return f"Tried in vain: {tried.title}: {note}"
        case "further":
            return f"Tried: with this change the export of {what} gets past this line. It then {note}"
        case "before":
            first = finding.behind or "Another failure"
            return f"Tried, but not judged: {first} ends the export of {what} before this line. It {note}"
        case _:
            return f"Tried: {tried.title}. With this change {what} {note}"


def failed_rewrites(tried: Sequence[TriedRewrite], finding: Finding) -> tuple[str, ...]:
    """A line for each rewrite that does not work; two that end alike have one, and another form of one that works has
    none."""
    works = {one.title for one in tried if one.works}
    failed = [one for one in tried if is_failed(one) and one.title not in works]
    return tuple(dict.fromkeys(rewrite_result(one, finding) for one in failed))


def is_failed(tried: TriedRewrite) -> bool:
    """Whether it was seen not to work; it may still help where another failure comes before it or after it."""
    return tried.result == "differs" or (tried.result == "fails" and tried.ended not in {"further", "before"})


def no_rewrite_works(tried: Sequence[TriedRewrite], *, examples: bool = True) -> str:
    """Said where none was tried, or none of them works."""
    if not examples:
        return "None of the rewrites that were tried on this line works." if tried else ""
    if any(one.result == "differs" for one in tried):
        return (
            "None of the rewrites that were tried on this line exports and computes the same on all inputs; the "
            "examples below show what to write."
        )
    if tried:
        return "None of the rewrites that were tried on this line works; the examples below show what to write."
    return "No rewrite could be applied to this line automatically; the examples below show what to write."


def cured_by_shims(finding: Finding, report: Report) -> str:
    """Said where the scan found shims for the finding's part; empty where it did not."""
    part = next((part for part in report.parts if part.name == finding.part), None)
    if part is None or part.verdict != "cured" or part.prescription is None:
        return ""
    shims, kind = " + ".join(part.prescription.shims), soundness(part.prescription.soundness)
    said = f"The scan found shims with which {part.name} {cured_step(part)}: {shims} ({kind})."
    shown = exports_with_shims(part) and not report.target.in_memory
    return f"{said} {EXPORT_LABEL}{export_command(part, report)}" if shown else said


def source_edited() -> str:
    """Said where the line is not the one that failed any more."""
    return "The file was edited since the scan: scan again to have the rewrites tried on it."
