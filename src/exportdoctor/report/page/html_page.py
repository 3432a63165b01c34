"""The report as one HTML file that needs nothing else: no server, no network, no font, no address but upstream's.

Without its script everything is on the page, one below the other, as it is on paper. jinja2 escapes every text; paths
of this machine are shortened; the policy in the head admits no script but the one whose digest it names.
"""

from __future__ import annotations

import base64
import hashlib
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import across_parts
from exportdoctor.core.protocol.scan import InputFact, ModuleFact
from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.run.report import FAILING, ModuleRecord, PartRecord, Report
from exportdoctor.report import wording
from exportdoctor.report.comparison import group_changes
from exportdoctor.report.explanation_page import Block, explanation_of
from exportdoctor.report.folded_tree import Row, group_siblings, label
from exportdoctor.report.graph_slice_svg import as_svg
from exportdoctor.report.page.run_material import RunMaterial
from exportdoctor.report.page.timeline import lay_out
from exportdoctor.report.wording.formatting import issue_name

_HERE = Path(__file__).parent
_PATH = re.compile(r"(?<![\w.:/~<-])/(?:[^\s/:\"'<>()\[\],;]+/){2,}[^\s/:\"'<>()\[\],;]*")
_KEPT = 2  # pieces of a local path
_AROUND = 5
_MOST_OPEN = 400  # rows of a tree that are open at first
_ELSEWHERE = ("Known upstream: ", "Shims tried: ", "Repro: ", "Log: ")  # sentences of a story with a place of their own
_LABELLED = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)?): (?=.)")

_Lines = tuple[tuple[int, str, bool], ...]
"""Lines of source: number, text, and whether it is the one that ran."""


def render(report: Report, material: RunMaterial | None = None) -> str:
    """The whole page."""
    material = material or RunMaterial()
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title, *facts = wording.headline(report)
    parts = [_show_part(part, report) for part in report.parts]
    page = (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            title=title,
            facts=facts,
            findings=[_show_finding(finding, report, material) for finding in report.findings],
            start=next((finding.id for finding in report.findings if not finding.behind), ""),
            parts=parts,
            chips=_chips(parts),
            inputs=_Inputs(material),
            cured={part.name for part in report.parts if part.verdict == "cured"},
            timeline=lay_out(material),
            comparison=material.comparison,
            changes=group_changes(material.comparison.modules) if material.comparison else (),
            words=wording,
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
            "base-uri 'none'; form-action 'none'",
        )
    )
    return re.sub(r"\n\s*\n+(?=<)", "\n", page).rstrip() + "\n"


def shorten_paths(text: str) -> str:
    """`text` without folders of this machine: an installed file from its package on, of another path the end."""
    return _PATH.sub(_shorten_path, text)


def _shorten_path(found: re.Match[str]) -> str:
    whole = found[0]
    short = wording.short_path(whole)
    if short != whole:
        return short
    return "…/" + "/".join(whole.rstrip("/").split("/")[-_KEPT:])


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        finalize=_clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"label": _names, "labelled": _split_label}
    return environment


def _clean(value: Any) -> Any:
    """What is shown of a value: control characters visible, local paths short; markup of our own as it is."""
    if isinstance(value, Markup | int | float):
        return value
    return shorten_paths(wording.plain(str(value)))


def _names(names: tuple[str, ...]) -> str:
    return label(tuple(map(wording.module_name, names)))


def _split_label(sentence: str) -> tuple[str, str]:
    """A sentence's label, which may be empty, and the rest."""
    found = _LABELLED.match(sentence)
    return (found[1], sentence[found.end() :]) if found else ("", sentence)


@dataclass(frozen=True, kw_only=True)
class _FindingView:
    """What a finding's tabs show."""

    finding: Finding
    title: str
    status: str
    also: tuple[Finding, ...]
    story: tuple[str, ...]
    repeated: bool
    frames: tuple[tuple[bool, tuple[tuple[Frame, _Lines], ...]], ...]
    culprit: _Lines
    picture: str
    explanation: tuple[Block, ...]
    script: str
    log: str
    part: PartRecord | None
    issues: tuple[tuple[str, str, str, str], ...]


def _show_finding(finding: Finding, report: Report, material: RunMaterial) -> _FindingView:
    part = next((part for part in report.parts if part.name == finding.part), None)
    user = next((frame for frame in reversed(finding.stack) if frame.user), None)
    culprit = user or finding.guard or finding.value_origin
    if culprit is not None:
        lines = _excerpt(culprit, material, around=_AROUND)
    else:
        lines = ((finding.line or 1, finding.source.strip(), True),) if finding.source else ()
    slice_ = finding.slice
    return _FindingView(
        finding=finding,
        title=wording.culprit_line(finding),
        status="cured" if part is not None and part.verdict == "cured" else "fails_own",
        also=tuple(
            other
            for other in report.findings
            if other.id != finding.id and across_parts(other) == across_parts(finding)
        ),
        story=tuple(each for each in wording.story(finding, report.run) if not each.startswith(_ELSEWHERE)),
        repeated=bool(wording.same_as_earlier(finding, report)),
        frames=tuple(
            (own, tuple((frame, _excerpt(frame, material, around=_AROUND)) if own else (frame, ()) for frame in frames))
            for own, frames in groupby(finding.stack, key=lambda frame: frame.user)
        ),
        culprit=lines,
        picture=Markup(base64.b64encode(as_svg(slice_).encode()).decode() if slice_ is not None else ""),
        explanation=tuple(explanation_of(finding)),
        script=material.scripts.get(finding.id, ""),
        log=material.logs.get(finding.id, ""),
        part=part,
        issues=tuple(_issues(finding)),
    )


def _issues(finding: Finding) -> Iterator[tuple[str, str, str, str]]:
    """Name, address, title and remark of each known issue; an address that is not https is not linked."""
    for issue in finding.known_issues:
        link = wording.issue_link(issue.link)
        remark = (
            "same pattern in other code" if issue.elsewhere else f"fixed: {issue.fixed_in}" if issue.fixed_in else ""
        )
        name = issue_name(issue.link) if issue.link else issue.id
        yield name, link if link.startswith("https://") else "", issue.title, remark


def _excerpt(frame: Frame, material: RunMaterial, *, around: int) -> _Lines:
    """Number and text of each line, and whether it is the frame's own."""
    found = material.excerpt(frame, around=around)
    lines = textwrap.dedent("\n".join(found.lines)).split("\n")
    return tuple((number, line, number == found.culprit) for number, line in enumerate(lines, found.first))


@dataclass(frozen=True, kw_only=True)
class _PartView:
    """A part: its verdict in words, the rows of its tree, how many of them are open at first, how it is cured."""

    part: PartRecord
    status: str
    verdict: str
    records: Mapping[str, ModuleRecord]
    rows: tuple[Row, ...]
    opens: bool
    cure: tuple[str, ...]
    export: str
    code: str


def _show_part(part: PartRecord, report: Report) -> _PartView:
    found = sum(1 for finding in report.findings if finding.part == part.name)
    sentences = wording.prescription(part, report)
    return _PartView(
        part=part,
        status=wording.VERDICT_STATUS[part.verdict] if part.complete else "not_asked",
        verdict=wording.verdict(part, found),
        records={module.fqn: module for module in part.modules},
        rows=group_siblings(part),
        opens=len(part.modules) <= _MOST_OPEN,
        cure=tuple(each for each in sentences if not each.startswith(wording.EXPORT_LABEL)),
        export=next(
            (each.removeprefix(wording.EXPORT_LABEL) for each in sentences if each.startswith(wording.EXPORT_LABEL)), ""
        ),
        code=wording.prescription_code(part),
    )


def _chips(parts: list[_PartView]) -> tuple[tuple[str, int], ...]:
    """The statuses that occur in the trees, with the number of modules of each, in the order of the symbols."""
    shown: Counter[str] = Counter()
    for view in parts:
        for status, number in _count_modules(view.rows):
            shown["cured" if view.part.verdict == "cured" and status in FAILING else status] += number
    return tuple((status, shown[status]) for status in wording.SYMBOLS if status in shown)


def _count_modules(rows: tuple[Row, ...], times: int = 1) -> Iterator[tuple[str, int]]:
    """Each row's status, and the modules that it stands for; what is below a group is in each of its members."""
    for row in rows:
        yield row.status, times * len(row.names)
        yield from _count_modules(row.children, times * len(row.names))


class _Inputs:
    """The captured inputs of modules, each distinct text once; a row of the tree names it by its number."""

    def __init__(self, material: RunMaterial) -> None:
        self._material = material
        self._numbers: dict[tuple[str, ...], int] = {}

    def number(self, part: str, fqn: str) -> int | None:
        """The number of the text for a module; None where nothing was captured."""
        fact = self._material.facts.get((part, fqn))
        if fact is None or not fact.calls:
            return None
        return self._numbers.setdefault(tuple(_input_lines(fact)), len(self._numbers))

    def lines(self, part: str, fqn: str) -> tuple[str, ...]:
        """The inputs of a module."""
        fact = self._material.facts.get((part, fqn))
        return tuple(_input_lines(fact)) if fact is not None and fact.calls else ()

    def axes(self, part: str) -> Mapping[str, tuple[str, ...]]:
        """The part's dynamic axes, each with the places where it occurs."""
        return self._material.axes.get(part, {})

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that were asked for so far, by number."""
        return tuple("\n".join(lines) for lines in self._numbers)


def _input_lines(fact: ModuleFact) -> Iterator[str]:
    for number, call in enumerate(fact.calls, 1):
        yield f"call {number} of {len(fact.calls)}{f', {call.times} times' if call.times > 1 else ''}"
        width = max((len(leaf.path) for leaf in call.inputs), default=0)
        yield from (f"  {leaf.path:{min(width, 36)}}  {leaf.kind:9}  {_shape(leaf)}".rstrip() for leaf in call.inputs)
        if not call.inputs:
            yield "  no input"
    if fact.calls_left_out:
        yield f"and {wording.count(fact.calls_left_out, 'call')} more"


def _shape(leaf: InputFact) -> str:
    if leaf.shape is None:
        return leaf.value or ""
    return f"[{', '.join(f'≈{size}' if axis in leaf.dynamic else str(size) for axis, size in enumerate(leaf.shape))}]"
