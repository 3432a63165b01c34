"""The tab Cure: the part before and after, the prescription with its proof, code to paste, and every shim tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from exportdoctor.core.failure.finding import ShimTry
from exportdoctor.core.run.report import Report
from exportdoctor.report import wording
from exportdoctor_tui.pages.code import script
from exportdoctor_tui.sanitize import line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.core.run.report import Prescription
    from exportdoctor_tui.state.selection import Selection

_SIGNS = {
    "cured": ("✓", "$text-success"),
    "moved": ("→", "$text-warning"),
    "same": ("·", "$foreground 75%"),
    "error": ("✗", "$text-error"),
    "not_applicable": ("○", "$foreground 75%"),
}
_BLANK = Content("")
_MESSAGE = 130
_TO_BUILD_AGAIN = "Write a function that returns the module and scan FILE.py:FUNCTION: then they are."


def cure(selection: Selection) -> Content:
    """The whole tab."""
    return Content("\n").join([*_part(selection), *_tries(selection), *_code(selection)])


def _part(selection: Selection) -> Iterator[Content]:
    """The part before and after its cure, or why there is none."""
    part = selection.part.record
    name = line(part.name)
    if part.prescription is not None:
        yield Content.styled(f"✚ {name} {wording.cure(part)}", "bold $text-warning")
        yield _BLANK
        yield from _before_and_after(selection, part.prescription)
        yield from _what_to_do(selection)
    elif not part.complete:
        tried = selection.finding is not None and selection.finding.shims_tried
        said = "shims are being tried" if tried else "shims are tried after its diagnosis"
        yield Content.styled(f"{name} is being scanned; {said}", "$text-primary")
    elif part.verdict == "passes":
        yield Content(f"{line(wording.part_without_shims(part))}.")
    elif selection.view.started is not None and not selection.view.started.options.cure:
        in_memory = selection.view.target.in_memory
        further = " Press a to try some." if not in_memory else f" {_TO_BUILD_AGAIN}"
        yield Content(f"{line(wording.no_cure(part, searched=False, in_memory=in_memory))}{further}")
    else:
        yield Content(line(wording.no_cure(part, searched=True)))


def _before_and_after(selection: Selection, found: Prescription) -> Iterator[Content]:
    part = selection.part.record
    here = [each for each in selection.view.findings.values() if each.part == part.name]
    known = selection.finding or next(iter(here), None)
    raised = f"{known.id}  {wording.exception_line(known)}" if known and known.id else wording.finding_count(len(here))
    proof = wording.proof(found)
    yield Content.assemble(("before  ", "bold"), ("✗ ", "$text-error"), _short(line(raised)))
    if part.verdict == "cured":
        said = f"{wording.cured_step(part)}{', ' if proof else ''}{line(proof)}"
        yield Content.assemble(("after   ", "bold"), ("✓ ", "$text-success"), said)
    else:
        yield Content.assemble(("after   ", "bold"), ("✗ ", "$text-error"), "gets further, then fails")


def _short(text: str) -> str:
    """The start of a message; the tab Story has all of it."""
    return text if len(text) <= _MESSAGE else f"{text[:_MESSAGE].rstrip()}…"


def _what_to_do(selection: Selection) -> Iterator[Content]:
    """The prescription in the reports' sentences, and the command that applies it."""
    for sentence in wording.prescription(selection.part.record, _report(selection)):
        label, mark, command = sentence.partition(wording.EXPORT_LABEL)
        yield _BLANK
        if not label and mark:
            yield Content.assemble(("Export   ", "bold"), (line(command), "$text-accent"))
            yield Content.styled("         here: a, then Export", "$foreground 75%")
        else:
            yield Content(line(sentence))


def _code(selection: Selection) -> Iterator[Content]:
    """The cure as Python to paste, and each file of the prescription that is there."""
    found = selection.part.record.prescription
    if found is None:
        return
    yield _BLANK
    yield Content.assemble(("In Python", "bold $text-accent"), ("  y copies it", "$foreground 75%"))
    yield script(wording.prescription_code(selection.part.record))
    yield from _files(selection, found)


def _files(selection: Selection, found: Prescription) -> Iterator[Content]:
    """Each file of the prescription that is there, highlighted."""
    for name, file in found.files.items():
        try:
            text = selection.read(file)
        except OSError:
            continue
        yield _BLANK
        yield Content.styled(line(name), "bold $text-accent")
        yield script(text)


def _tries(selection: Selection) -> Iterator[Content]:
    """The result of each set of shims on the selected finding, in the order in which they were tried."""
    finding = selection.finding
    if finding is None or not finding.shims_tried:
        return
    yield _BLANK
    yield Content.styled(f"Tried on {finding.id or 'it'}", "bold $text-accent")
    found = selection.part.record.prescription
    chosen = " + ".join(found.shims) if found is not None else ""
    if found is not None and selection.part.cured and chosen not in {tried.shim for tried in finding.shims_tried}:
        yield _try_line(ShimTry(shim=chosen, result="cured", note="the set that was chosen"))
    yield from map(_try_line, finding.shims_tried)


def _try_line(tried: ShimTry) -> Content:
    sign, colour = _SIGNS[tried.result]
    said = f"  {wording.shim_effect(tried)}"
    remark = line(tried.note).removeprefix(f"{tried.shim}: ").removeprefix(f"{said.strip()}: ")
    note = f": {remark}" if remark and remark not in said else ""
    return Content.assemble((f"{sign} ", colour), (line(tried.shim), "bold"), (said, colour), (note, "$foreground 75%"))


def _report(selection: Selection) -> Report:
    view = selection.view
    return Report(run=view.run, target=view.target, parts=tuple(part.record for part in view.parts))


def export_command(selection: Selection) -> str:
    """The command that applies the prescription; empty where there is none."""
    part = selection.part.record
    ready = wording.exports_with_shims(part) and not selection.view.target.in_memory
    return wording.export_command(part, _report(selection)) if ready else ""
