"""What is said of shims that were tried, of searches that found none, and of probes that could not be made."""

from __future__ import annotations

from collections.abc import Sequence

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.outcome import Outcome, OutcomeStatus

PART_ITSELF = "the part itself"
SMALL_MODEL = "a small twin with random weights"
STRUCTURE_ALONE = "structure alone, no values"
OF_SMALL_MODEL = " (numbers of a small twin)"

MET_BEFORE = "a failure that was met before"
NONE_CURES = "none of the shims that fit cures it"
NONE_FITS = "no shim fits its failure"
NOT_AT_FULL_SIZE = "what cures the small twin does not cure the part at its full size"
NOT_COMPARED_ON_SMALL_MODEL = "its numbers could not be compared with eager's on the small twin"
NO_VALUES = "it exports, but no values were at hand to compare its numbers with eager's"

NO_OPAQUE_OPERATOR = "its own code was not asked: the legacy exporter knows no opaque operator"


def try_note(outcome: Outcome) -> str:
    """What there is to say of a try beyond its result."""
    if outcome.status == OutcomeStatus.NOT_APPLICABLE:
        return outcome.note.partition(": ")[2] or outcome.note  # it begins with the shim's own name
    if outcome.note or outcome.signal:
        return outcome.note or (outcome.signal or "")
    wrong = next((row for row in outcome.numbers if not row.holds), None)
    if wrong is not None:
        what = wrong.trouble or f"differs from eager by {wrong.max_abs:.1e} (allowed {wrong.tolerance:.0e})"
        return f"exports, but on inputs {wrong.inputs}: {what}"
    if outcome.status.ended_the_process:
        return outcome.status.replace("_", " ")
    return ""


def raised_note(outcome: Outcome) -> str:
    """What a try raised that leads nowhere, in a line."""
    facts = outcome.failure.exceptions if outcome.failure is not None else ()
    return f"raises {facts[0].name}: {first_line(facts[0].message, 120)}".rstrip(": ") if facts else ""


def outcome_line(outcome: Outcome) -> str:
    """What happened in an attempt, in a line."""
    if outcome.stages.get("export") == "pass":
        if outcome.passed:
            return "exports"
        refuses = outcome.agrees_at_its_size
        return "exports, but " + ("refuses other sizes or values" if refuses else "its numbers differ from eager's")
    if outcome.note:
        return f"{outcome.status.replace('_', ' ')}: {outcome.note}"
    failure = outcome.failure
    if failure is None or not failure.exceptions:
        return outcome.status.replace("_", " ") + (f" ({outcome.signal})" if outcome.signal else "")
    first, culprit = failure.exceptions[0], failure.culprit
    where = f" at {culprit.file.rpartition('/')[2]}:{culprit.line} in {culprit.function}" if culprit else ""
    return f"fails{where}: {first.name}: {first_line(first.message, 200)}"


def not_chosen_note(soundness: str, shims: Sequence[str], best: Sequence[str], *, less_sound: bool) -> str:
    """Why a set of shims that cures as well as `best` was not chosen."""
    if less_sound:
        return f"less sound: {soundness}"
    if len(shims) > len(best):
        return f"as sound, and needs {len(shims)} shims"
    return "as sound, and found later"


def no_opaque_note(outcome: Outcome) -> str:
    """Why a module's own code could not be exported without its children."""
    return f"its own code could not be asked: no opaque operator stands here ({outcome.note})"


def kept_children_note(outcome: Outcome) -> str:
    """Which children ran as they are while their parent's own code was exported."""
    return f"its own code was asked without replacing {'; '.join(outcome.kept_children)}"
