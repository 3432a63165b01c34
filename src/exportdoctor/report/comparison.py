"""What changed between two runs, for a new version, a fixed model or another machine.

Findings are compared by part, submodule and signature, for each module in which they occur; modules by part and FQN.
"""

from __future__ import annotations

import msgspec

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import code_of, identify_across_runs
from exportdoctor.core.run.known_failures import is_missed, looks_of
from exportdoctor.core.run.lane_matrix import FailureName
from exportdoctor.core.run.report import PartRecord, Report
from exportdoctor.core.run.run_state import RunState
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Style
from exportdoctor.report.changes import find_changes

_SHOWN = 20  # changes that are told one by one
_NAMED = 6  # modules that changed in one way and are named
_Pair = tuple[Finding, Finding]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """`what` was `before` and is `after`; empty where it does not exist."""

    what: str
    before: str
    after: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from the first run to the second. Findings are named by part, module, place and exception, with the
    modules of which this holds: where a failure is gone from one of two layers, it is in `findings_gone`, and counted
    in `findings_same` too.

    `target`: what was scanned and how, where the runs are of two targets, of one that was built in two ways, or were
    asked for in two ways.
    `findings_moved` are the same failure at the same line of the same function, of which the message is another.
    `only` are submodules beside which one run scanned nothing of their part: there what was not tried is left out.
    `unfinished` are runs that did not come to their end: what they have not asked is left out as well.
    """

    before: str
    after: str
    target: tuple[Change, ...] = ()
    environment: tuple[Change, ...] = ()
    parts: tuple[Change, ...] = ()
    modules: tuple[Change, ...] = ()
    findings_gone: tuple[str, ...] = ()
    findings_new: tuple[str, ...] = ()
    findings_moved: tuple[Change, ...] = ()
    findings_same: int = 0
    only: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether parts, modules and findings are as they were, which only runs that came to their end show."""
        found = self.findings_gone or self.findings_new or self.findings_moved
        return not (self.parts or self.modules or found or self.unfinished)


def compare_runs(before: RunState, after: RunState) -> Comparison:
    """The differences of two runs, with what was asked for in another way."""
    found = compare_reports(before.report(), after.report(), _looks(before), _looks(after))
    return msgspec.structs.replace(
        found, target=(*found.target, *find_changes(Change, _settings(before), _settings(after)))
    )


def _settings(state: RunState) -> dict[str, str]:
    """The options of a scan on which its verdicts depend."""
    if state.started is None:
        return {}
    options = state.started.options
    found = {"exporter": options.exporter, "to": options.to, "modules": ", ".join(options.modules)}
    steps = {"search": options.search, "exhaustive": options.exhaustive, "cure": options.cure}
    found |= {name: "yes" if step else "no" for name, step in steps.items()}
    limits = {"slow": options.slow, "heavy": options.heavy}
    shims = {"shim files": ", ".join(options.shim_files), "allow": ", ".join(options.allow)}
    return {**found, **{name: str(limit or "") for name, limit in limits.items()}, **shims}


def _looks(state: RunState) -> tuple[str, ...]:
    return looks_of(state.started.options) if state.started is not None else ()


def compare_reports(
    before: Report, after: Report, looked_for: tuple[str, ...] = (), looks: tuple[str, ...] = ()
) -> Comparison:
    """The differences. A part that only one of them has is listed without its modules, and a finding that the other run
    did not look for not at all: `looked_for` and `looks` are what the two runs looked for."""
    unfinished = tuple(dict.fromkeys(report.run for report in (before, after) if not report.complete))
    old, new = ({part.name: part for part in report.parts if part.complete} for report in (before, after))
    both = [name for name in old if name in new]
    told = (old, new) if not unfinished else tuple({name: parts[name] for name in both} for parts in (old, new))
    environments = (before.environment, after.environment)
    untried = {
        (name, module.fqn)
        for name in both
        for part in (old[name], new[name])
        if old[name].only or new[name].only
        for module in part.modules
        if module.status == "not_asked"
    }
    one, other = _findings(before, both, untried), _findings(after, both, untried)
    gone = [_in_module(f, key) for key, f in one.items() if key not in other and not _is_missed(f, looked_for, looks)]
    come = [_in_module(f, key) for key, f in other.items() if key not in one and not _is_missed(f, looks, looked_for)]
    moved = _pair_moved(gone, come)
    gone = [finding for finding in gone if not any(finding is was for was, _ in moved)]
    come = [finding for finding in come if not any(finding is now for _, now in moved)]
    return Comparison(
        before=before.run,
        after=after.run,
        target=find_changes(Change, _build(before), _build(after)),
        environment=find_changes(Change, *environments) if all(environments) else (),
        parts=find_changes(Change, *({name: _verdict(part) for name, part in parts.items()} for parts in told)),
        modules=tuple(change for name in both for change in _modules(old[name], new[name])),
        findings_gone=tuple(map(_describe, _together(gone))),
        findings_new=tuple(map(_describe, _together(come))),
        findings_moved=tuple(
            Change(what=_describe(was), before=wording.code_place(was), after=wording.code_place(now))
            for was, now in _pairs_together(moved)
        ),
        findings_same=len({other[key].id for key in one.keys() & other.keys()}),
        only=tuple(
            dict.fromkeys(f"{part.name}: {name}" for part in (*before.parts, *after.parts) for name in part.only)
        ),
        unfinished=unfinished,
    )


def _build(report: Report) -> dict[str, str]:
    target = report.target
    named = {"name": target.ref, "options": " ".join(target.options)}
    sizes = {"weights": target.weights, "dtype": target.dtype, "device": target.device}
    return {**named, **sizes, "parameters": f"{target.parameters:,}"}


def _verdict(part: PartRecord) -> str:
    if part.verdict == "cured" and part.prescription is not None:
        return f"cured by {' + '.join(part.prescription.shims)}"
    return part.verdict


def _modules(old: PartRecord, new: PartRecord) -> tuple[Change, ...]:
    changes = find_changes(
        Change,
        {f"{old.name}: {wording.module_name(m.fqn)}": m.status for m in old.modules},
        {f"{new.name}: {wording.module_name(m.fqn)}": m.status for m in new.modules},
    )
    partial = bool(old.only or new.only)
    return tuple(one for one in changes if not (partial and "not_asked" in (one.before, one.after)))


def _findings(report: Report, parts: list[str], untried: set[tuple[str, str]]) -> dict[tuple[object, ...], Finding]:
    found = identify_across_runs(one for one in report.findings if one.part in parts)
    return {key: finding for key, finding in found.items() if key[:2] not in untried}


def _is_missed(finding: Finding, found_by: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return is_missed(found_by, other, masked=finding.behind is not None)


def _in_module(finding: Finding, key: tuple[object, ...]) -> Finding:
    """The finding as one of a single module, the one that its identity names."""
    return msgspec.structs.replace(finding, module=str(key[1]), modules=(str(key[1]),))


def _together(singles: list[Finding]) -> list[Finding]:
    """Those that are one finding, of several modules, as one."""
    groups: dict[str, list[Finding]] = {}
    for finding in singles:
        groups.setdefault(finding.id, []).append(finding)
    return list(map(_join, groups.values()))


def _pairs_together(pairs: list[_Pair]) -> list[_Pair]:
    groups: dict[tuple[str, str], list[_Pair]] = {}
    for was, now in pairs:
        groups.setdefault((was.id, now.id), []).append((was, now))
    return [(_join([was for was, _ in group]), _join([now for _, now in group])) for group in groups.values()]


def _join(singles: list[Finding]) -> Finding:
    return msgspec.structs.replace(singles[0], modules=tuple(one.module for one in singles))


def _pair_moved(gone: list[Finding], come: list[Finding]) -> list[_Pair]:
    """Pairs of one failure at one line of one function, of which the message is another; none where it is not clear
    which belong together. At a line that reads otherwise it may be another one."""
    pairs = [(was, now) for was in gone for now in come if _is_of_same_line(was, now)]
    return [
        (was, now)
        for was, now in pairs
        if sum(one is was for one, _ in pairs) == 1 and sum(other is now for _, other in pairs) == 1
    ]


def _is_of_same_line(was: Finding, now: Finding) -> bool:
    codes = [code_of(one) for one in (was, now)]
    places = [
        (one.part, one.module, one.kind, code.function, code.source)
        for one, code in zip((was, now), codes, strict=True)
    ]
    names = [FailureName(exception=one.exception.type, message=one.exception.message) for one in (was, now)]
    return codes[0].function != "" and places[0] == places[1] and names[0].is_same(names[1])


def _describe(finding: Finding) -> str:
    others = len(finding.modules) - 1
    more = f" and {wording.count(others, 'other module')}" if others else ""
    return f"{finding.part}: {wording.culprit_line(finding)}{more}: {finding.exception.type.rpartition('.')[2]}"


def render_comparison(found: Comparison, style: Style | None = None) -> str:
    """The comparison as text."""
    canvas = Canvas(style or Style())
    canvas.paragraph(f"{found.before} → {found.after}", colour="bold")
    if found.only:
        canvas.paragraph(wording.plain(f"One run scanned only {', '.join(found.only)}. No more is compared."), hang=4)
    for run in found.unfinished:
        canvas.paragraph(wording.plain(wording.unfinished_run(run)), hang=4)
    _block(canvas, "target", found.target)
    _block(canvas, "environment", found.environment)
    _block(canvas, "parts", found.parts)
    for before, after, names in group_changes(found.modules):
        shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        words = f"{_in_words(before)} → {_in_words(after)}: {wording.count(len(names), 'module')}: {shown}"
        canvas.paragraph(wording.plain(words), hang=4)
    for title, findings in (("gone", found.findings_gone), ("new", found.findings_new)):
        for finding in findings:
            canvas.paragraph(wording.plain(f"finding {title}: {finding}"), hang=4, colour="title")
    for change in found.findings_moved:
        canvas.paragraph(wording.plain(wording.moved_finding(change.what, change.after)), hang=4, colour="title")
    if found.findings_same or not found.unfinished:
        canvas.paragraph(wording.findings_in_both(found.findings_same, same_verdicts=found.same))
    return canvas.text()


def group_changes(changes: tuple[Change, ...]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """What changed in the same way, together: before, after, names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        groups.setdefault((change.before, change.after), []).append(change.what)
    return tuple((before, after, tuple(names)) for (before, after), names in groups.items())


def _block(canvas: Canvas, title: str, changes: tuple[Change, ...]) -> None:
    for change in changes[:_SHOWN]:
        before, after = (_in_words(value) for value in (change.before, change.after))
        canvas.paragraph(wording.plain(f"{title}  {change.what}: {before} → {after}"), hang=4)
    if len(changes) > _SHOWN:
        canvas.paragraph(f"{title}  and {len(changes) - _SHOWN} more", hang=4)


def _in_words(value: str) -> str:
    return wording.STATUS_WORDS.get(value, value) or "missing"
