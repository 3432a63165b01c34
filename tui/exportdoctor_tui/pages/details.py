"""The other tabs: captured inputs, graph, repro and log."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from textual.content import Content
from textual.style import Style

from exportdoctor.report import wording
from exportdoctor.report.explanation_page import explanation_of
from exportdoctor_tui.pages.code import script
from exportdoctor_tui.pages.cure_page import cure
from exportdoctor_tui.pages.numbers_page import numbers
from exportdoctor_tui.pages.story import link_issues, story
from exportdoctor_tui.sanitize import block, fit, line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exportdoctor.core.protocol.scan import InputFact
    from exportdoctor.core.records.outcome import GraphSlice
    from exportdoctor_tui.state.selection import Selection

_TAIL = 64_000  # bytes of a log that are shown


def inputs(selection: Selection) -> Content:
    """The captured calls: path, dtype and shape of each input; `≈` marks a dynamic dimension."""
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
                f"  {fit(line(leaf.path), min(width, 36))}  ",
                (f"{fit(line(leaf.kind), 9)} ", "$foreground 75%"),
                *_shape(leaf),
            )
        if not call.inputs:
            yield Content.styled("  no input", "$foreground 75%")
    if fact and fact.calls_left_out:
        yield Content.styled(f"and {wording.count(fact.calls_left_out, 'call')} more", "$foreground 75%")
    dynamic = any(leaf.dynamic for call in calls for leaf in call.inputs)
    if dynamic or not selection.part.axes:
        yield Content.styled("\n≈ dynamic dimension" if dynamic else "\nevery dimension is static", "$foreground 75%")
    elif selection.part.axes:
        yield Content.styled("\ndynamic in this part", "$foreground 75%")
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
    """The slice of the traced graph that leads to the failure, the last operator, and the origin of each symbol."""
    finding = selection.finding
    if finding is None:
        return Content("")
    found: list[Content] = []
    if finding.slice is not None:
        found += [Content.styled("What leads to it, in the order of tracing", "bold $text-accent")]
        found += _slice(finding.slice)
    elif finding.slice_note:
        found.append(Content.styled(line(finding.slice_note), "$foreground 75%"))
    if finding.last_op is not None:
        verb = "raised in" if finding.last_op.raised else "last operator before the failure"
        found += [Content("")] if found else []
        found.append(
            Content.assemble((f"{verb}: ", "$foreground 75%"), (line(finding.last_op.name), "bold $text-accent"))
        )
        found += [Content(f"  {line(argument)}") for argument in finding.last_op.arguments]
    for sentence in wording.symbol_origins(finding):
        found += [Content(""), Content(line(sentence))]
    return Content("\n").join(found)


def _slice(found: GraphSlice) -> Iterator[Content]:
    """A line for each value, after a line with its source where that differs from the previous one."""
    if found.left_out:
        yield Content.styled(f"  … {wording.count(found.left_out, 'value')} farther away", "$foreground 75%")
    place = ""
    names = [line(node.label or node.name) for node in found.nodes]
    for index, node in enumerate(found.nodes):
        if node.file and f"{node.file}:{node.line}" != place:
            place = f"{node.file}:{node.line}"
            where = f"  {line(PurePath(node.file).name)}:{node.line}  "
            yield Content.assemble((where, "$foreground 75%"), (line(node.source), "$foreground 80%"))
        given = ", ".join(names[start] for start, end in sorted(found.edges) if end == index)
        call = f"{line(node.op)}({given})" if node.op != "input" else ""
        target = index in found.targets
        yield Content.assemble(
            ("  ▶ " if target else "    ", "bold $text-error"),
            (names[index], "bold $text-error" if target else "bold"),
            f" = {call}" if call else "",
            (f"  {line(node.shape)}", "$text-primary"),
        )


def repro(selection: Selection) -> Content:
    """The repro script, or the command that makes it."""
    finding = selection.finding
    if finding is None:
        return Content("")
    if finding.repro is None and selection.view.target.in_memory:
        return Content(
            f"{finding.id} has no repro script: the module was in memory, and cannot be built again.\n"
            "Write a function that returns it, and scan FILE.py:FUNCTION."
        )
    if finding.repro is None:
        return Content.assemble(
            f"{finding.id} has no repro script yet.\n\n",
            ("Make it  ", "bold"), (f"exportdoctor repro {line(selection.view.run)} {finding.id}", "$text-accent"),
            ("\n         or here: a, then Make and verify the repro", "$foreground 75%"),
        )  # fmt: skip
    head = Content.styled(line(wording.repro_line(finding, selection.view.run)), "bold $text-accent")
    try:
        text = selection.read(finding.repro.path)
    except OSError as error:
        return Content.assemble(head, "\n\n", f"{line(finding.repro.path)} cannot be read: {error.strerror}")
    return Content.assemble(head, "\n\n", script(text))


def log(selection: Selection) -> Content:
    """The end of the output of the attempt's process."""
    name = selection.finding.log if selection.finding else None
    if name is None:
        return Content("")
    path = selection.file(name)
    try:
        data = path.read_bytes()
    except OSError:
        return Content.styled(f"{line(str(path))} no longer exists", "$foreground 75%")
    text = data[-_TAIL:].decode("utf-8", "replace").strip()
    return Content.assemble((line(str(path)), "$foreground 75%"), "\n\n", block(text) or "(empty)")


_EXPLAINED = {"section": "bold $text-accent", "item": "bold", "text": "", "code": "$text-warning"}
_DIFF = {"+": "$text-success", "-": "$text-error"}


def explain(selection: Selection) -> Content:
    """Why it fails, and how to rewrite it: the line's own rewrites that were tried, and those of its kind."""
    finding = selection.finding
    if finding is None:
        return Content("")
    found: list[Content] = []
    for kind, text in explanation_of(finding):
        if kind in ("section", "item", "text", "page") and found:
            found.append(Content(""))
        lines = block(text).rstrip().splitlines()
        if kind == "page":
            found += [Content(wording.DOCUMENTED), Content(line(text)).stylize(Style(link=text))]
        elif kind == "diff":
            found += [Content.styled(f"  {each}", _DIFF.get(each[:1], "$foreground 75%")) for each in lines]
        else:
            found += [Content.styled(each, _EXPLAINED.get(kind, "bold")) for each in lines]
    return link_issues(Content("\n").join(found), finding)


PAGES: dict[str, Callable[[Selection], Content]] = {
    "story": story,
    "inputs": inputs,
    "graph": graph,
    "cure": cure,
    "repro": repro,
    "log": log,
    "explain": explain,
    "numbers": numbers,
}
"""The text of each tab but the stack, which has a widget of its own."""
