"""The report as JUnit XML, for continuous integration: a suite for each part, a case for each submodule."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape, quoteattr

from exportdoctor.core.finding import Finding
from exportdoctor.core.report import FAILING, ModuleRecord, PartRecord, Report
from exportdoctor.report import wording
from exportdoctor.report.style import Style

_ERRORS = frozenset({"crashed", "timed_out"})
_SKIPPED = frozenset({"not_called", "not_asked"})


def render(report: Report, style: Style) -> str:
    """The whole report; `style` says nothing here."""
    findings = {finding.id: finding for finding in report.findings}
    suites = [_suite(report, part, findings) for part in report.parts]
    modules = [module for part in report.parts for module in part.modules]
    head = f'<testsuites name={_quoted(report.target.ref)} {_counts(modules)} time="{report.stats.seconds:.3f}">'
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *suites, "</testsuites>"]) + "\n"


def _suite(report: Report, part: PartRecord, findings: Mapping[str, Finding]) -> str:
    name = _quoted(f"{report.target.ref} {part.name}")
    lines = [f'  <testsuite name={name} {_counts(part.modules)} time="{part.seconds:.3f}">']
    lines += [_case(part, module, findings.get(module.finding or "")) for module in part.modules]
    return "\n".join([*lines, "  </testsuite>"])


def _counts(modules: list[ModuleRecord] | tuple[ModuleRecord, ...]) -> str:
    errors = sum(1 for module in modules if module.status in _ERRORS)
    failures = sum(1 for module in modules if module.status in FAILING) - errors
    skipped = sum(1 for module in modules if module.status in _SKIPPED)
    return f'tests="{len(modules)}" failures="{failures}" errors="{errors}" skipped="{skipped}"'


def _case(part: PartRecord, module: ModuleRecord, finding: Finding | None) -> str:
    name = _quoted(wording.module_name(module.fqn))
    head = (
        f'    <testcase classname={_quoted(f"{part.name}.{module.class_name}")} name={name} time="{module.seconds:.3f}"'
    )
    if module.status in _SKIPPED:
        return f"{head}>\n      <skipped message={_quoted(wording.STATUS_WORDS[module.status])}/>\n    </testcase>"
    if module.status not in FAILING:
        return f"{head}/>"
    tag = "error" if module.status in _ERRORS else "failure"
    message = _quoted(wording.culprit_line(finding) if finding else wording.STATUS_WORDS[module.status])
    kind = f" type={_quoted(finding.kind)}" if finding else ""
    body = "\n".join(wording.story(finding)) if finding else ""
    return f"{head}>\n      <{tag} message={message}{kind}>{_safe(body)}</{tag}>\n    </testcase>"


def _quoted(text: str) -> str:
    return quoteattr(wording.plain(text).replace("\n", " "))


def _safe(text: str) -> str:
    return escape(wording.plain(text))
