"""Sentences about a prescription: which shims make a part export, and how that was verified."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.run.report import Alternative, NumbersCheck, PartRecord, Prescription, Proof, Report, Step
from exportdoctor.core.scan_options import DEFAULTS
from exportdoctor.report.wording import known_causes
from exportdoctor.report.wording.export import says_unloadable
from exportdoctor.report.wording.formatting import count
from exportdoctor.report.wording.shim_tries import PART_ITSELF, is_layout_condition, refused_sets, set_kinds

EXPORT_LABEL = "Export it with: "
_MOST_NAMED = 5
_NO_PROOF = Proof(inputs_tried=0, max_abs_diff=None, stage="export")
_USE_NAMED = "    outputs = program.module()(**given.convert(((), other_inputs))[1])"
_USE_UNNAMED = (
    "    positional, named = given.convert((other_args, other_kwargs))\n"
    "    outputs = program.module()(*positional, **named)"
)
_TO_DEFAULT = "non-strict"
"""The shim that makes a strict export one of the default exporter's."""
_REGISTERS = "register-cache-pytree"
"""Makes nodes of the classes that exportdoctor registers while it exports a part."""

_DOES = {
    "decompose": "decomposes",
    "translate": "translates to ONNX",
    "load": "runs in ONNX Runtime",
    "run": "runs in ONNX Runtime",
}
"""What a part does with shims, by the stage at which it fails without."""
_WRITTEN = {stage: _DOES[stage] for stage in ("decompose", "translate")}
"""How far it gets beyond its export, in a headline."""

_SOUNDNESS = {
    "exact": "exact",
    "signature": "changes the inputs",
    "precondition": "under a condition",
    "specialised": "fixes sizes or values",
    "opaque": "leaves a custom op",
    "unsound": "unsound",
}


def soundness(kind: str) -> str:
    """What a class of soundness means, in a few words."""
    return _SOUNDNESS.get(kind, kind)


def cure(part: PartRecord) -> str:
    """What the prescription does for a part; empty where there is none."""
    found = part.prescription
    if found is None:
        return ""
    does = cured_step(part) if part.verdict == "cured" else "gets further"
    return f"{does} with {count(len(found.shims), 'shim')} ({soundness(found.soundness)})"


def cured_step(part: PartRecord) -> str:
    """What the part does with its shims, and not without."""
    stages = part.prescription.stages if part.prescription is not None else {}
    failing = _failing_stage(part)
    later = next((does for stage, does in reversed(_WRITTEN.items()) if stages.get(stage) == "pass"), "")
    if failing not in _DOES:
        return f"exports and {later}" if later else "exports"
    return later or _DOES[failing]


def exports_with_shims(part: PartRecord) -> bool:
    """Whether a program that computes what eager does was made with shims and can be written, also where it fails in a
    later stage."""
    found = part.prescription
    if found is None or _has_no_file(part) or not EXPORTERS.get(part.exporter, EXPORTERS["export"]).makes_program:
        return False
    compared = found.proof is not None and found.proof.max_abs_diff is not None
    return part.verdict == "cured" or (compared and found.stages.get("export") == "pass")


def _has_no_file(part: PartRecord) -> bool:
    """Whether it was seen that a file of the part's program cannot be written or loaded; an ONNX file is another."""
    checked = part.prescription or part.numbers
    proof = checked.proof if checked is not None else None
    return proof is not None and not _gets_to_onnx(part) and any(map(says_unloadable, proof.notes))


def _gets_to_onnx(part: PartRecord) -> bool:
    """Whether the part, with its shims if it needs any, was found to translate, as was asked."""
    found = part.prescription
    if found is None:
        return part.root_stages.get("translate") == "pass"
    if "fail" in found.stages.values():
        return False
    return _failing_stage(part) in ("translate", "load", "run") or found.stages.get("translate") == "pass"


def _failing_stage(part: PartRecord) -> str:
    """The stage at which the part's root fails as it is; empty where it does not. The numbers of an ONNX file are of
    its run, those of the program are not."""
    stage = next((stage for stage, how in part.root_stages.items() if how == "fail"), "")
    of_file = stage == "numbers" and part.root_stages.get("run") == "pass" and part.numbers is None
    return "run" if of_file else stage


def part_without_shims(part: PartRecord) -> str:
    """Said of a part that exports as it is."""
    return f"{part.name} exports without shims{numbers_of_pass(part)}"


def numbers_of_pass(part: PartRecord) -> str:
    """How the program of a part that passes compares with eager; empty for a run that did not ask."""
    found = part.numbers
    if found is None:
        return ""
    if found.proof is None:
        return f"; numbers not compared: {found.note}"
    where = f" on {found.proof.on}" if found.proof.on else ""
    if found.verdict == "differs":
        return f"; wrong numbers{where}"
    return f"; eager's numbers{where} ({proof_figures(found.proof)})"


def numbers_notes(part: str, found: NumbersCheck) -> Iterator[str]:
    """Inputs that the program of a part that passes refuses, though eager takes them, what a small model computes
    otherwise than eager, and what was not compared."""
    proof = found.proof
    if proof is not None and found.verdict == "agrees":
        yield from (f"{part}: {note}" for note in proof.notes)
    if proof is not None and proof.on and found.verdict == "differs":
        yield f"{part}: the program of {proof.on} does not compute what eager does. {found.note}"
    if proof is not None and proof.refused:
        why = dict(_reasons(proof)) if found.verdict == "agrees" else {}
        sets = "; ".join(f"{inputs} ({why[inputs]})" if inputs in why else inputs for inputs in proof.refused)
        yield f"{part}: the program refuses inputs that eager takes: {sets}"


def _reasons(proof: Proof) -> tuple[tuple[str, str], ...]:
    """What a program raises, each after a set for which it does; an earlier run did not record for which."""
    if not proof.refused_by or not proof.refused:
        return ()
    known = tuple(zip(proof.refused_at, proof.refused_by, strict=False))
    return known or ((proof.refused[0], "; ".join(proof.refused_by)),)


def no_cure(part: PartRecord, *, searched: bool, in_memory: bool = False) -> str:
    """Said of a part that fails and has no prescription; `in_memory` as in the report's target."""
    if not searched:
        why = "this run does not search for them" if in_memory else "the scan ran with --no-cure"
        return f"No shims were tried on {part.name}: {why}."
    if _failing_stage(part) in _DOES:
        return f"{part.name} exports, and no set of shims that was tried gets its program further."
    return f"No set of shims that was tried makes {part.name} export."


def cure_title(part: PartRecord) -> str:
    """The heading above a part's prescription."""
    return f"How to export {part.name}" if part.verdict == "cured" else f"How {part.name} gets further"


def proof(found: Prescription | None) -> str:
    """The differences to eager that were measured; empty where there are none."""
    return proof_figures(found.proof if found else None)


def proof_figures(shown: Proof | None) -> str:
    """The largest difference to eager, and on how many input sets; empty where nothing was compared."""
    if shown is None:
        return ""
    where = f"on {count(shown.inputs_tried, 'input set')}"
    if shown.max_abs_diff is None:
        return shown.on or where
    return f"max |Δ| {_small(shown.max_abs_diff)} {where}"


def _small(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def prescription(part: PartRecord, report: Report) -> tuple[str, ...]:
    """What to do so that the part exports, and how that was verified; nothing where there is no prescription."""
    found = part.prescription
    if found is None:
        return ()
    sentences = []
    for number, step in enumerate(found.steps, start=1):
        condition = f" Valid only if {step.precondition}." if step.precondition else ""
        sentences.append(f"{number}. {step.shim} ({soundness(step.soundness)}): {step.title}.{condition}")
    if found.proof is not None and found.proof.max_abs_diff is not None:
        sentences.append(_proof_sentence(found.proof))
        sentences += [f"{note[:1].upper()}{note[1:]}." for note in found.proof.notes]
        if found.proof.refused:
            sentences.append(f"{refused_sets(found.proof.refused, _reasons(found.proof))}.")
        sentences += _ground_sentences(found.proof)
    sentences += (_alternative(other, beside=found.shims) for other in found.alternatives)
    if report.target.in_memory:
        return tuple(sentences)
    if exports_with_shims(part):
        sentences.append(f"{EXPORT_LABEL}{export_command(part, report)}")
    return tuple(sentences)


def prescription_code(part: PartRecord) -> str:
    """The prescription as Python to paste; empty where there is none. The reader supplies `inputs` and `shapes`.

    Inputs that cannot be given by name are supplied as `args` and `kwargs`.
    """
    if part.prescription is None:
        return ""
    root = part.modules[0].fqn if part.modules else ""
    model = f"model.{root}" if root else "model"
    exporter = EXPORTERS.get(part.exporter, EXPORTERS["export"])
    steps = {step.shim: step for step in part.prescription.steps}
    names = "".join(f"    {_find_call(shim, steps.get(shim))},\n" for shim in shims_to_apply(part))
    shims = f"shims = [\n{names}]\nwith apply_shims(shims, call) as given:\n"
    inputs = "args=args, kwargs=kwargs" if part.unnamed_inputs else "kwargs=inputs"
    if not exporter.makes_program:
        call = exporter.script.format(
            inputs="given.module, given.args",
            kwargs_argument=", kwargs=given.kwargs",
            kwargs="",
            shapes="",
            non_strict="",
        ).replace("'/dev/null'", '"model.onnx"')
        return (
            "import torch\n\nfrom exportdoctor.shims import ExportCall, apply_shims, find\n\n"
            f"call = ExportCall(module={model}, {inputs})\n{shims}    {call}"
        )
    options, imported, first, last = "", "", "", ""
    if _gets_to_onnx(part):
        first, last = "import torch\n\n", '    torch.onnx.export(program, dynamo=True).save("model.onnx")\n'
    if exporter.traces_with_dynamo:
        options, imported = ", options=ExportOptions(strict=True)", "ExportOptions, "
    return (
        f"{first}from exportdoctor.shims import ExportCall, {imported}apply_shims, export_program, find\n\n"
        f"call = ExportCall(module={model}, {inputs}, dynamic_shapes=shapes{options})\n{shims}"
        "    program = export_program(given)\n"
        f"{last}{_USE_UNNAMED if part.unnamed_inputs else _USE_NAMED}"
    )


def shims_to_apply(part: PartRecord) -> tuple[str, ...]:
    """The shims of a part's prescription, and the one that registers what exportdoctor registers by itself."""
    chosen = part.prescription.shims if part.prescription is not None else ()
    return (*chosen, _REGISTERS) if part.registered and _REGISTERS not in chosen else chosen


def _find_call(shim: str, step: Step | None) -> str:
    """An axis that is frozen is found by its places, which only the part knows, a user's shim in its file."""
    if step is not None and step.file:
        return f'find("{shim}", files=[{step.file!r}])'
    if step is not None and step.places:
        return f'find("{shim}", axes={{"{shim.partition(":")[2]}": {step.places!r}}})'
    return f'find("{shim}")'


def _alternative(other: Alternative, *, beside: Sequence[str]) -> str:
    """Another set of shims that works, and why it was not chosen; conditions of those `beside` it are told already."""
    figures, shown = proof_figures(other.proof or other.compared), ""
    if figures:
        proved = other.proof is not None and _verified_on(other.proof)
        shown = f" {proved or 'Compared, not proved'}: {figures}{'' if proved else ', none of them drawn'}."
    conditions = "".join(
        f" {step.shim} is valid only if {step.precondition}."
        for step in other.steps
        if step.precondition and step.shim not in beside
    )
    notes = (other.proof or other.compared or _NO_PROOF).notes
    conditions += "".join(f" {note[:1].upper()}{note[1:]}." for note in notes if is_layout_condition(note))
    return f"Alternative: {' + '.join(other.shims)} ({soundness(other.soundness)}), {other.why}.{shown}{conditions}"


def _verified_on(proof: Proof) -> str:
    return "Verified" if proof.on in ("", PART_ITSELF) else f"Verified on {proof.on}"


def _proof_sentence(proof: Proof) -> str:
    """How the outputs compare with eager, and on which input sets."""
    kinds = f": {set_kinds(proof.kinds)}" if proof.kinds else ""
    sets = f"on {count(proof.inputs_tried, 'input set')}{kinds}"
    if not proof.max_abs_diff:
        return f"{_verified_on(proof)}: outputs match unpatched eager exactly {sets}."
    allowed = f" (tolerance {_small(proof.tolerance)})" if proof.tolerance else ""
    difference = f"by at most {_small(proof.max_abs_diff)}{allowed}"
    return f"{_verified_on(proof)}: outputs differ from unpatched eager {difference} {sets}."


def _ground_sentences(proof: Proof) -> list[str]:
    """What the proof cannot show; none where every disturbance would have been seen."""
    ground, sentences = proof.ground, []
    if ground is not None and ground.unseen:
        shown, more = ground.unseen[:_MOST_NAMED], len(ground.unseen) - _MOST_NAMED
        names = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        sentences.append(
            f"{len(ground.unseen)} of {count(ground.tried, 'submodule')} and inputs could be disturbed unseen, so that "
            f"the outputs do not show whether the shims are right there: {names}."
        )
    if ground is not None and ground.left:
        sentences.append(
            f"Whether a fault in {count(ground.left, 'more submodule')} or inputs would show was not tested."
        )
    return sentences


def export_command(part: PartRecord, report: Report) -> str:
    """The command that applies the prescription and writes the program; fake weights have no values to write.

    Files are written by the default exporter, so what was found with another is named, without its change of mode.
    """
    target = report.target
    options = [shlex.join(target.options)] if target.options else []
    if target.weights == "fake":
        options.append("--weights FOLDER")
    if len(report.parts) > 1 or part.name != "default":
        options.insert(0, f"--part {part.name}")
    if part.exporter != DEFAULTS["exporter"] and part.prescription is not None:
        options.append(f"--shims {'+'.join(one for one in part.prescription.shims if one != _TO_DEFAULT) or 'none'}")
    if part.prescription is not None:
        options += [f"--shims {shlex.quote(file)}" for file in files_of(part.prescription.steps)]
    name = "model" if part.name == "default" else part.name
    checked = part.prescription or part.numbers
    guards = checked is not None and checked.proof is not None and checked.proof.refuses_values
    differs = bool(part.lost_writes) or part.is_random or guards
    to = "onnx" if _gets_to_onnx(part) and not differs else "pt2"
    return " ".join(("exportdoctor export", shlex.quote(target.ref), *options, f"--to {to} -o {name}.{to}"))


def files_of(steps: Sequence[Step]) -> tuple[str, ...]:
    """The files that define the user's shims among these."""
    return tuple(dict.fromkeys(step.file for step in steps if step.file))


def _domain_command(part: PartRecord, report: Report) -> str:
    """The command that searches for the sizes which a part's program takes."""
    named = ["--part", part.name] if len(report.parts) > 1 or part.name != "default" else []
    values = ["--weights", "random"] if report.target.weights == "fake" else []
    return shlex.join(("exportdoctor", "domain", report.target.ref, *named, *report.target.options, *values))


def _refuses_sizes(part: PartRecord) -> bool:
    """Whether its program was seen to refuse sizes that eager takes."""
    if part.verdict == "passes":
        proof = part.numbers.proof if part.numbers else None
        return proof is not None and bool(proof.refused)
    proof = part.prescription.proof if part.prescription else None
    return proof is not None and bool(proof.refused) and not proof.refuses_values


def next_commands(report: Report, *, run: str = "") -> tuple[tuple[str, str], ...]:
    """The commands that come next, each with what it does; none for a run that was cut off, or of a Python session.

    They are of the newest run, or of `run`, which they name then.
    """
    if not report.complete or report.target.in_memory:
        return ()
    commands = []
    if report.findings:
        first = " ".join(filter(None, (run, report.findings[0].id)))
        commands.append((f"exportdoctor explain {first}", "why it fails, and how to rewrite the line"))
        if (locate := report.findings[0].locate) and not known_causes.step(report.findings[0]):
            commands.append((locate, "the node and the line where the numbers begin to differ, if there is one"))
        elif report.findings[0].may_have_script:
            commands.append((f"exportdoctor repro {first}", "a minimal script that fails in the same way"))
    part = next((part for part in report.parts if exports_with_shims(part) or _passes_by_default(part)), None)
    if part is not None and not part.only:
        if _refuses_sizes(part):
            commands.append(
                (_domain_command(part, report), "the sizes that the program takes, and what refuses others")
            )
        commands.append((export_command(part, report), "write the program, and compare it with eager"))
    else:
        commands.append((" ".join(filter(None, ("exportdoctor tui", run))), "browse the run"))
    return tuple(commands)


def _passes_by_default(part: PartRecord) -> bool:
    return part.verdict == "passes" and part.exporter == DEFAULTS["exporter"] and not _has_no_file(part)
