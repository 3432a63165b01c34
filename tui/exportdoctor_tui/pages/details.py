"""The other tabs: captured inputs, graph, cure, repro and log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from exportdoctor.report import wording
from exportdoctor_tui.inked import block, fitted, line
from exportdoctor_tui.pages.code import script
from exportdoctor_tui.pages.story import story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exportdoctor.core.protocol import InputFact
    from exportdoctor_tui.pages.selection import Selection

_TAIL = 64_000  # bytes of a log that are shown
_RESULT_COLOURS = {"cured": "$text-success", "moved": "$text-warning", "error": "$text-error"}


def inputs(selection: Selection) -> Content:
    """The captured calls: path, dtype and shape of each leaf; `≈` marks a dynamic dimension."""
    return Content("\n").join(_inputs(selection))


def _inputs(selection: Selection) -> Iterator[Content]:
    fact = selection.fact
    calls = fact.calls if fact else ()
    width = max((len(line(leaf.path)) for call in calls for leaf in call.inputs), default=0)
    for number, call in enumerate(calls, start=1):
        times = f", {call.times} times" if call.times > 1 else ""
        yield Content.styled(f"call {number} of {len(calls)}{times}", "bold $text-accent")
        for leaf in call.inputs:
            yield Content.assemble(
                f"  {fitted(line(leaf.path), min(width, 36))}  ",
                (f"{fitted(line(leaf.kind), 9)} ", "$foreground 60%"),
                *_shape(leaf),
            )
        if not call.inputs:
            yield Content.styled("  no input", "$foreground 60%")
    if fact and fact.calls_left_out:
        yield Content.styled(f"and {wording.count(fact.calls_left_out, 'call')} more", "$foreground 60%")
    dynamic = any(leaf.dynamic for call in calls for leaf in call.inputs)
    if dynamic or not selection.part.axes:
        yield Content.styled("\n≈ dynamic dimension" if dynamic else "\nevery dimension is static", "$foreground 60%")
    elif selection.part.axes:
        yield Content.styled("\ndynamic in this part", "$foreground 60%")
    for name, places in selection.part.axes.items():
        yield Content.assemble((f"  {line(name)}  ", "$text-warning"), line(", ".join(places)))


def _shape(leaf: InputFact) -> Iterator[str | tuple[str, str]]:
    """A shape as `[1, ≈594]`, or a value."""
    if leaf.shape is None:
        yield line(leaf.value or "")
        return
    yield "["
    for number, size in enumerate(leaf.shape):
        yield ", " if number else ""
        yield (f"≈{size}", "bold $text-warning") if number in leaf.dynamic else str(size)
    yield "]"


def graph(selection: Selection) -> Content:
    """The last operator that was dispatched, with its arguments, and the origin of each symbol."""
    finding = selection.finding
    found: list[Content] = []
    if finding is not None and finding.last_op is not None:
        verb = "raised in" if finding.last_op.raised else "last operator before the failure"
        found.append(
            Content.assemble((f"{verb}: ", "$foreground 60%"), (line(finding.last_op.name), "bold $text-accent"))
        )
        found += [Content(f"  {line(argument)}") for argument in finding.last_op.arguments]
    for sentence in wording.born(finding) if finding else ():
        found += [Content(""), Content(line(sentence))]
    return Content("\n").join(found)


def cure(selection: Selection) -> Content:
    """What each shim did, and what cures the part, before and after."""
    finding, part = selection.finding, selection.part.record
    found = [
        Content.styled(line(wording.shim_result(tried)), _RESULT_COLOURS.get(tried.result, "$foreground 60%"))
        for tried in (finding.shims_tried if finding else ())
    ]
    if part.prescription is not None:
        before = wording.finding_count(sum(1 for each in selection.view.findings.values() if each.part == part.name))
        found += [
            Content(""),
            Content.assemble(("before  ", "bold"), f"{part.name} fails: {before}"),
            Content.assemble(("after   ", "bold"), f"{part.name} exports, {wording.cure(part)}"),
            *(Content(f"          {line(shim)}") for shim in part.prescription.shims),
            Content.assemble(("proof   ", "bold"), line(wording.proof(part.prescription)) or "none yet"),
        ]
    return Content("\n").join(found)


def repro(selection: Selection) -> Content:
    """The script that fails in the same way."""
    finding = selection.finding
    if finding is None or finding.repro is None:
        return Content("")
    head = Content.styled(line(wording.repro(finding)), "bold $text-accent")
    try:
        text = selection.file(finding.repro.path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Content.assemble(head, "\n\n", f"{line(finding.repro.path)} cannot be read: {error.strerror}")
    return Content.assemble(head, "\n\n", script(text))


def log(selection: Selection) -> Content:
    """The end of what the attempt's process printed."""
    name = selection.finding.log if selection.finding else None
    if name is None:
        return Content("")
    path = selection.file(name)
    try:
        data = path.read_bytes()
    except OSError:
        return Content.styled(f"{line(str(path))} is not there any more", "$foreground 60%")
    text = data[-_TAIL:].decode("utf-8", "replace").strip()
    return Content.assemble((line(str(path)), "$foreground 60%"), "\n\n", block(text) or "(empty)")


PAGES: dict[str, Callable[[Selection], Content]] = {
    "story": story,
    "inputs": inputs,
    "graph": graph,
    "cure": cure,
    "repro": repro,
    "log": log,
}
"""What each tab says; the stack has a widget of its own."""
