"""A finding in sentences: what, where, why, what next."""

from __future__ import annotations

from exportdoctor.core.failure import explanations
from exportdoctor.core.failure.messages import first_line, without_hints
from exportdoctor.core.finding import Finding, ShimTry
from exportdoctor.core.report import Report
from exportdoctor.report.wording.depends import depends
from exportdoctor.report.wording.pieces import count, issue_name, module_name, short_path


def title(finding: Finding, report: Report) -> str:
    """A finding's heading: its id, its part where there are several, and where it is."""
    part = f" {finding.part}:" if len(report.parts) > 1 else ""
    return f"{finding.id} {part} {culprit_line(finding)}"


def told_before(finding: Finding, report: Report) -> str:
    """Where the same disease of another part has been told in full; empty where this is the first time."""
    for earlier in report.findings:
        if earlier.id == finding.id:
            break
        if (earlier.signature, earlier.module, earlier.line) == (finding.signature, finding.module, finding.line):
            return f"The same as {earlier.id}, in {finding.part}."
    return ""


def culprit_line(finding: Finding) -> str:
    """Function, place and submodule: where a finding is."""
    module = module_name(finding.module)
    if finding.function is None:
        owner = f"{module} ({finding.module_class})"
        unplaced = "" if finding.kind.ends_the_process else "at the call itself"
        return ", ".join(filter(None, (owner, place(finding) or unplaced)))
    relation = "of" if finding.function.rpartition(".")[2] in {"forward", "__call__"} else "called by"
    return f"{finding.function}, {place(finding)}, {relation} {module}"


def place(finding: Finding) -> str:
    """`file:line`; empty where no code of the user's is to blame."""
    if finding.file is None:
        return ""
    return short_path(finding.file) + (f":{finding.line}" if finding.line else "")


def chapter(finding: Finding, report: Report) -> tuple[str, ...]:
    """A finding's story; a short one where it has been told before."""
    before = told_before(finding, report)
    return (before, *_told(("Repro", repro(finding)), ("Log", finding.log or ""))) if before else story(finding)


def story(finding: Finding) -> tuple[str, ...]:
    """A finding in sentences: what was raised, why, where its symbols come from, what to do, what is known."""
    sentences = [
        exception_line(finding),
        evaluated(finding),
        why(finding),
        *born(finding),
        *depends(finding),
        others(finding),
        f"Next: {next_step(finding)}",
    ]
    sentences += _told(
        ("Known upstream", known(finding)),
        ("Shims tried", ", ".join(map(shim_result, finding.shims_tried))),
        ("Repro", repro(finding)),
        ("Log", finding.log or ""),
    )
    return tuple(sentence for sentence in sentences if sentence)


def _told(*facts: tuple[str, str]) -> list[str]:
    """`heading: text` for each fact that is known."""
    return [f"{heading}: {text}" for heading, text in facts if text]


def exception_line(finding: Finding) -> str:
    """Type and first line of the exception, as one would search for it."""
    first = without_hints(first_line(finding.exception.message))
    return f"{finding.exception.type.rpartition('.')[2]}: {first}" if first else finding.exception.type


def evaluated(finding: Finding) -> str:
    """The expression and the operator at which it happened, where they say more than the source line does."""
    expression = (finding.expression or "").strip()
    pieces = []
    if expression and expression != (finding.source or "").strip():
        pieces.append(f"while evaluating {expression}")
    if finding.op:
        pieces.append(f"in operator {finding.op}")
    text = ", ".join(pieces)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def why(finding: Finding) -> str:
    """Why it fails."""
    inside = f" It passes alone, and fails only inside {finding.only_inside}." if finding.only_inside else ""
    return explanations.summary(finding.kind) + inside


def born(finding: Finding) -> tuple[str, ...]:
    """Where each unbacked symbol of the message was made, one sentence each."""
    lines = []
    for birth in finding.origins:
        frame = birth.frame
        by = f" by {birth.op}" if birth.op else ""
        at = f" at {short_path(frame.file)}:{frame.line} in {frame.function}" if frame else ""
        source = f": {frame.source.strip()}" if frame and frame.source else ""
        lines.append(f"{birth.symbol} was made{by}{at}{source}")
    return tuple(lines)


def others(finding: Finding) -> str:
    """In how many more modules the same happens; empty where in none."""
    more = len(set(finding.modules) - {finding.module})
    return f"The same in {count(more, 'other module')}." if more else ""


def next_step(finding: Finding) -> str:
    """What to do about it: the upstream workaround where there is one, else what helps with this kind."""
    around = next((issue.workaround for issue in finding.known_issues if issue.workaround), "")
    return around.strip() or explanations.next_step(finding.kind)


def known(finding: Finding) -> str:
    """The upstream issues that tell of the same failure, or of its pattern in other code; empty where none does."""
    here = [issue for issue in finding.known_issues if not issue.elsewhere]
    links = [issue_name(issue.link or issue.id) for issue in here or finding.known_issues]
    fixed = [issue.fixed_in for issue in here if issue.fixed_in]
    said = f" (fixed in {', '.join(fixed)})" if fixed else "" if here else " (the same pattern in other code)"
    return ", ".join(links) + said if links else ""


def shim_result(tried: ShimTry) -> str:
    """What a shim did."""
    words = {
        "cured": "cures it",
        "moved": f"moves it on to {tried.next}" if tried.next else "moves it on",
        "same": "changes nothing",
        "error": "fails itself",
        "not_applicable": "does not apply",
    }
    return f"{tried.shim} {words[tried.result]}"


def repro(finding: Finding) -> str:
    """What is known of its repro script; empty where there is none."""
    script = finding.repro
    if script is None:
        return ""
    needs = f"{' and '.join(script.imports)} only" if script.imports else "no imports"
    proved = "verified" if script.verified else "not verified"
    return f"{count(script.lines, 'line')}, {needs}, {proved}: exportdoctor repro {finding.id}"
