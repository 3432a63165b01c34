"""Whether the program of a part that exports as it is computes what eager does: one more probe, once its root passes.

It is a probe of its own: what a program does when it runs is no answer to whether the part exports. A part without
values is compared on its small model, whose numbers leave the verdict as it is.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import msgspec

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.records.outcome import Agreement, Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run.report import NumbersCheck
from exportdoctor.engine.cure.prescription import proof_of_rows
from exportdoctor.engine.cure.trial import with_wrong_row
from exportdoctor.engine.part.part_diagnosis import PartDiagnosis
from exportdoctor.engine.probe_driver import ProbeSteps
from exportdoctor.engine.verdicts.judge import ModuleVerdict, SiteOutcome
from exportdoctor.report.wording import export as wording
from exportdoctor.report.wording.shim_tries import ON_SMALL_MODEL, reasons_of_refusals

_REFUSAL = re.compile(r"Guard failed|Expected input .* to be |Runtime assertion failed|[Ee]xpected .* but got")
"""What a program raises before it computes: sizes that its guards, ranges and assertions do not admit."""


def numbers_steps(part: PartDiagnosis, verdict: ModuleVerdict, template: Probe) -> ProbeSteps[None]:
    """Run the root's program beside eager, and note what came of it; a wrong one makes the root fail."""
    if not EXPORTERS[template.exporter].makes_program:
        part.numbers = NumbersCheck(verdict="unknown", note=wording.NO_PROGRAM)
        return
    if not part.captured.has_values:
        part.numbers = NumbersCheck(verdict="unknown", note=wording.NO_VALUES)
        return
    site = verdict.deciding.asked
    probe = msgspec.structs.replace(template, fqn=site.fqn, call=site.call, to="compare", slow=None, heavy=None)
    outcome = yield probe
    part.numbers = _judge_numbers(outcome)
    stages = {**verdict.outcome.stages, "numbers": {"agrees": "pass", "differs": "fail"}.get(part.numbers.verdict, "")}
    seen = msgspec.structs.replace(verdict.outcome, stages={name: end for name, end in stages.items() if end})
    if (wrong := _wrong_row(outcome)) is not None:
        seen = with_wrong_row(seen, wrong)
    part.verdicts[verdict.fqn] = dataclasses.replace(
        verdict,
        status="fails_own" if seen.failure is not None else verdict.status,
        deciding=SiteOutcome(site, seen),
    )


def numbers_steps_of_small_model(part: PartDiagnosis, small: Probe) -> ProbeSteps[None]:
    """The same with the program of the part's small model; `small` is the probe of its root."""
    outcome = yield msgspec.structs.replace(small, to="compare", slow=None, heavy=None)
    found = _judge_numbers(outcome)
    if found.verdict == "unknown":
        found = NumbersCheck(verdict="unknown", note=wording.no_values(found.note))
    elif found.proof is not None:
        found = msgspec.structs.replace(found, proof=msgspec.structs.replace(found.proof, on=ON_SMALL_MODEL))
    part.numbers = found


def _wrong_row(outcome: Outcome) -> Agreement | None:
    """The first row that is wrong. A program may refuse other sizes than the example's; it may not compute them
    wrongly."""
    rows = _without_repeated_refusals(outcome.numbers)
    return next((row for row in rows if not (row.holds or row.says_nothing or _is_refused(row))), None)


def _judge_numbers(outcome: Outcome) -> NumbersCheck:
    """What the rows say."""
    rows = _without_repeated_refusals(outcome.numbers)
    proof = proof_of_rows(rows, refused=_is_refused) if rows else None
    if (wrong := _wrong_row(outcome)) is not None:
        return NumbersCheck(verdict="differs", proof=proof, note=wording.numbers_of_pass_differ(wrong))
    if silent := next((row.trouble for row in rows if row.kind == "example" and row.says_nothing), ""):
        return NumbersCheck(verdict="unknown", note=silent)
    if proof is None or not proof.inputs_tried:
        return NumbersCheck(verdict="unknown", note=wording.not_compared(outcome))
    reasons = reasons_of_refusals(row for row in rows if _is_refused(row))
    return NumbersCheck(verdict="agrees", proof=proof, note="; ".join(why for _, why in reasons))


def _without_repeated_refusals(rows: Sequence[Agreement]) -> tuple[Agreement, ...]:
    """The rows without those of calls of which one is of sizes that the program refuses, as it says in the same words;
    these sizes have a row of their own."""
    refused = {row.trouble for row in rows if _is_refused(row)}

    def repeats(row: Agreement) -> bool:
        return row.kind == "others_between" and row.refused and not row.made_up and row.trouble in refused

    return tuple(row for row in rows if not repeats(row))


def _is_refused(row: Agreement) -> bool:
    return row.refused and row.kind == "sizes" and _REFUSAL.search(row.trouble) is not None
