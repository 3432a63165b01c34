"""The report as JUnit XML, for continuous integration: a suite for each part, a case for each submodule."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.run.report import FAILING, ModuleRecord, PartRecord, Report
from exportdoctor.report import wording

_ERRORS = frozenset({"crashed", "timed_out", "unknown"})
_SKIPPED = frozenset({"not_called", "not_asked", "fails_child"})
"""`fails_child`: a module that fails only because of a child is no failure of its own."""

_Whole = tuple[str, str] | None


def render(report: Report, known: frozenset[str] = frozenset()) -> str:
    """The whole report. `known`: the ids of findings that a baseline has, and that are skipped."""
    findings = {finding.id: finding for finding in report.findings}
    modules = [module for part in report.parts for module in part.modules]
    accepted = frozenset(id(module) for module in modules if _is_known(module, findings, known))
    beside = {part.name: _beside_modules(part, report, accepted) for part in report.parts}
    if not report.parts and not report.complete:
        beside[""] = ("error", wording.cut_off_note(report))
    root = Element("testsuites", _counts(report.target.ref, modules, report.stats.seconds, beside.values(), accepted))
    for part in report.parts:
        counts = _counts(f"{report.target.ref} {part.name}", part.modules, part.seconds, [beside[part.name]], accepted)
        suite = SubElement(root, "testsuite", counts)
        for module in part.modules:
            _add_case(suite, part, module, findings, run=report.run, accepted=id(module) in accepted)
        _add_whole(suite, part.name, beside[part.name])
    if "" in beside:
        suite = SubElement(root, "testsuite", _counts(report.target.ref, (), 0.0, [beside[""]]))
        _add_whole(suite, "scan", beside[""])
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _is_known(module: ModuleRecord, findings: Mapping[str, Finding], known: Collection[str]) -> bool:
    """Whether it fails, and a baseline has all that it fails by."""
    found = [name for name in (module.finding or "", *module.also) if name in findings]
    return bool(found) and module.status in FAILING - _SKIPPED and all(name in known for name in found)


def _beside_modules(part: PartRecord, report: Report, accepted: Collection[int]) -> _Whole:
    """What of a part no module of it shows, so that nothing that is not known to export is green: tag and message."""
    if not part.complete:
        return "error", wording.cut_off_note(report)
    own = any(module.status in (FAILING | _ERRORS) - _SKIPPED for module in part.modules)
    if own or any(id(module) in accepted for module in part.modules) or part.verdict in {"passes", "cured"}:
        return None
    found = sum(finding.part == part.name for finding in report.findings)
    return "failure" if part.verdict == "fails" else "error", wording.verdict(part, found)


def _add_whole(suite: Element, name: str, beside: _Whole) -> None:
    if beside is not None:
        case = SubElement(suite, "testcase", {"classname": _one_line(name), "name": "the whole", "time": "0.000"})
        SubElement(case, beside[0], {"message": _one_line(beside[1])})


def _counts(
    name: str, modules: Sequence[ModuleRecord], seconds: float, beside: Iterable[_Whole], accepted: Collection[int] = ()
) -> dict[str, str]:
    tags = [one[0] for one in beside if one is not None]
    told = [module for module in modules if id(module) not in accepted]
    failures = sum(1 for module in told if module.status in FAILING - _ERRORS - _SKIPPED)
    errors = sum(1 for module in told if module.status in _ERRORS)
    skipped = len(modules) - len(told) + sum(1 for module in told if module.status in _SKIPPED)
    return {
        "name": _one_line(name),
        "tests": str(len(modules) + len(tags)),
        "failures": str(failures + tags.count("failure")),
        "errors": str(errors + tags.count("error")),
        "skipped": str(skipped),
        "time": f"{seconds:.3f}",
    }


def _add_case(
    suite: Element,
    part: PartRecord,
    module: ModuleRecord,
    findings: Mapping[str, Finding],
    *,
    run: str,
    accepted: bool,
) -> None:
    name = _one_line(wording.module_name(module.fqn))
    owner = _one_line(f"{part.name}.{module.class_name}")
    case = SubElement(suite, "testcase", {"classname": owner, "name": name, "time": f"{module.seconds:.3f}"})
    found = [findings[name] for name in (module.finding or "", *module.also) if name in findings]
    words = wording.STATUS_WORDS[module.status]
    if module.status in _SKIPPED:
        through = "fails only through a child" if module.status == "fails_child" else words
        SubElement(case, "skipped", {"message": through})
    elif accepted:
        said = "; ".join(_one_line(wording.culprit_line(finding)) for finding in found)
        SubElement(case, "skipped", {"message": f"a known failure, as in the baseline: {said}"})
    elif module.status in FAILING | _ERRORS:
        tag = "error" if module.status in _ERRORS else "failure"
        said = "; ".join(_one_line(wording.culprit_line(finding)) for finding in found)
        entry = SubElement(case, tag, {"message": said or words})
        if found:
            entry.set("type", ", ".join(dict.fromkeys(_one_line(finding.kind) for finding in found)))
            entry.text = wording.plain("\n\n".join("\n".join(wording.story(finding, run)) for finding in found))


def _one_line(text: str) -> str:
    return wording.plain(text).replace("\n", " ")
