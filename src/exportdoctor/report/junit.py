"""The report as JUnit XML, for continuous integration: a suite for each part, a case for each submodule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.run.report import FAILING, ModuleRecord, PartRecord, Report
from exportdoctor.report import wording

_ERRORS = frozenset({"crashed", "timed_out", "unknown"})
_SKIPPED = frozenset({"not_called", "not_asked", "fails_child"})
"""`fails_child`: a module that fails only because of a child is no failure of its own."""


def render(report: Report) -> str:
    """The whole report."""
    findings = {finding.id: finding for finding in report.findings}
    modules = [module for part in report.parts for module in part.modules]
    root = Element("testsuites", _counts(report.target.ref, modules, report.stats.seconds))
    for part in report.parts:
        suite = SubElement(root, "testsuite", _counts(f"{report.target.ref} {part.name}", part.modules, part.seconds))
        for module in part.modules:
            _add_case(suite, part, module, findings)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _counts(name: str, modules: Sequence[ModuleRecord], seconds: float) -> dict[str, str]:
    errors = sum(1 for module in modules if module.status in _ERRORS)
    return {
        "name": _one_line(name),
        "tests": str(len(modules)),
        "failures": str(sum(1 for module in modules if module.status in FAILING - _ERRORS - _SKIPPED)),
        "errors": str(errors),
        "skipped": str(sum(1 for module in modules if module.status in _SKIPPED)),
        "time": f"{seconds:.3f}",
    }


def _add_case(suite: Element, part: PartRecord, module: ModuleRecord, findings: Mapping[str, Finding]) -> None:
    name = _one_line(wording.module_name(module.fqn))
    owner = _one_line(f"{part.name}.{module.class_name}")
    case = SubElement(suite, "testcase", {"classname": owner, "name": name, "time": f"{module.seconds:.3f}"})
    finding = findings.get(module.finding or "")
    words = wording.STATUS_WORDS[module.status]
    if module.status in _SKIPPED:
        through = "fails only through a child" if module.status == "fails_child" else words
        SubElement(case, "skipped", {"message": through})
    elif module.status in FAILING | _ERRORS:
        tag = "error" if module.status in _ERRORS else "failure"
        entry = SubElement(case, tag, {"message": _one_line(wording.culprit_line(finding)) if finding else words})
        if finding:
            entry.set("type", _one_line(finding.kind))
            entry.text = wording.plain("\n".join(wording.story(finding)))


def _one_line(text: str) -> str:
    return wording.plain(text).replace("\n", " ")
