"""From sets of shims that cure to a prescription: its proof, its steps, and the alternatives. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from exportdoctor.core.records.outcome import OF_OTHER_SIZES, Agreement, Ground
from exportdoctor.core.run.report import Alternative, Prescription, Proof
from exportdoctor.engine.cure.catalogue import ShimCatalogue
from exportdoctor.engine.cure.trial import CuringSet, has_no_file
from exportdoctor.report.wording.shim_tries import (
    STRUCTURE_ALONE,
    layout_condition,
    not_chosen_note,
    reasons_of_refusals,
)


def prescription_of(
    cures: Sequence[CuringSet],
    catalogue: ShimCatalogue,
    *,
    ground: Ground | None,
    stages: Mapping[str, str],
) -> Prescription:
    """The first of them, with the others as alternatives; `ground` is what the compared outputs can show, `stages` how
    the part with the first gets on behind what it cures."""
    best, *others = cures
    return Prescription(
        shims=best.shims,
        soundness=catalogue.shown_soundness(best.shims, best.outcome),
        proof=msgspec.structs.replace(proof_of(best), ground=ground),
        steps=catalogue.steps(best.shims, best.outcome),
        alternatives=tuple(_alternative(one, best, catalogue) for one in others),
        stages=dict(stages),
    )


def proof_of(cured: CuringSet) -> Proof:
    """What the comparison with eager showed."""
    found = proof_of_rows(cured.outcome.numbers, refused=lambda row: row.refused)
    return msgspec.structs.replace(found, on=cured.on if found.inputs_tried else STRUCTURE_ALONE)


def proof_of_rows(numbers: Sequence[Agreement], *, refused: Callable[[Agreement], bool]) -> Proof:
    """The comparisons with eager in one record; `refused` says which sets the program may refuse."""
    only_layout = [layout_condition(row) for row in numbers if row.kind == "layout" and not row.holds]
    rows = [row for row in numbers if not row.trouble and (row.holds or row.kind != "layout")]
    reasons = reasons_of_refusals(row for row in numbers if refused(row))
    largest = max(rows, key=lambda row: (row.max_abs, -row.tolerance), default=None)
    notes = dict.fromkeys((*only_layout, *(row.note for row in rows if row.note)))
    return Proof(
        inputs_tried=len(rows),
        max_abs_diff=largest.max_abs if largest else None,
        max_rel_diff=max((row.max_rel for row in rows), default=None),
        tolerance=largest.tolerance if largest else None,
        stage="run" if rows else "export",
        kinds=dict(Counter(row.kind for row in rows if row.kind)),
        refused=tuple(row.inputs for row in numbers if refused(row)),
        refused_by=tuple(why for _, why in reasons),
        refused_at=tuple(inputs for inputs, _ in reasons),
        refuses_values=any(refused(row) and row.kind not in OF_OTHER_SIZES for row in numbers),
        notes=tuple(
            note for note in notes if not any(note != other and f"; {note}; " in f"; {other}; " for other in notes)
        ),
    )


def _alternative(cured: CuringSet, best: CuringSet, catalogue: ShimCatalogue) -> Alternative:
    shown = proof_of(cured)
    mine, others = ({*(one.outcome.fixed or ())} for one in (cured, best))
    known = None not in (cured.outcome.fixed, best.outcome.fixed)
    return Alternative(
        shims=cured.shims,
        soundness=catalogue.shown_soundness(cured.shims, cured.outcome),
        why=not_chosen_note(
            cured.shims,
            best.shims,
            less_sound=catalogue.shown_rank(cured.shims, cured.outcome)
            > catalogue.shown_rank(best.shims, best.outcome),
            more=sorted(mine - others) if known else (),
            fewer=sorted(others - mine) if known else (),
            file=has_no_file(best.outcome) or not has_no_file(cured.outcome),
            conditions=all(
                catalogue.shown_soundness(one.shims, one.outcome) == "precondition" for one in (cured, best)
            ),
        ),
        proof=shown if cured.proved else None,
        compared=None if cured.proved else shown,
        steps=catalogue.steps(cured.shims, cured.outcome),
    )
