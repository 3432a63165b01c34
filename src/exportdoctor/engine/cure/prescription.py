"""From sets of shims that cure to the prescription that is told: its proof, its steps, and what else would do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from exportdoctor.core.outcome import Outcome
from exportdoctor.core.report import Alternative, Prescription, Proof
from exportdoctor.engine.cure.catalogue import Ids, ShimCatalogue
from exportdoctor.engine.cure.trial import Cured, SearchTarget

STRUCTURE_ALONE = "structure alone, no values"


def prescription_of(cures: Sequence[Cured], stock: ShimCatalogue, *, on: SearchTarget) -> Prescription:
    """The first of them, with the others as alternatives."""
    best, *others = cures
    return Prescription(
        shims=best.shims,
        soundness=stock.soundness(best.shims),
        proof=proof_of(best.outcome, on=on),
        steps=stock.steps(best.shims),
        alternatives=tuple(_alternative(one, best, stock, on=on) for one in others),
    )


def proof_of(outcome: Outcome, *, on: SearchTarget) -> Proof:
    """What the comparison with eager showed."""
    rows = [row for row in outcome.numbers if not row.trouble]
    return Proof(
        inputs_tried=len(rows),
        max_abs_diff=max((row.max_abs for row in rows), default=None),
        max_rel_diff=max((row.max_rel for row in rows), default=None),
        tolerance=min((row.tolerance for row in rows), default=None),
        stage="run" if rows else "export",
        on=on.said if rows else STRUCTURE_ALONE,
    )


def _alternative(cured: Cured, best: Cured, stock: ShimCatalogue, *, on: SearchTarget) -> Alternative:
    return Alternative(
        shims=cured.shims,
        soundness=stock.soundness(cured.shims),
        why=_why(cured.shims, best.shims, stock),
        proof=proof_of(cured.outcome, on=on),
        steps=stock.steps(cured.shims),
    )


def _why(shims: Ids, best: Ids, stock: ShimCatalogue) -> str:
    """Why it was not chosen."""
    if stock.rank(shims) > stock.rank(best):
        return f"less sound: {stock.soundness(shims)}"
    if len(shims) > len(best):
        return f"as sound, and needs {len(shims)} shims"
    return "as sound, and found later"
