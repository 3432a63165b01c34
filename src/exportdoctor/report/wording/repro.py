"""Sentences about a repro: the end of a reduction, and the sections of an upstream issue."""

from __future__ import annotations

from pathlib import Path

from exportdoctor.core.failure.messages import first_line, without_hints
from exportdoctor.core.records.finding import Finding
from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.report.wording.formatting import count, issue_link

_DEATHS: dict[str, str] = {OutcomeStatus.TIMED_OUT: "never returns", OutcomeStatus.OUT_OF_MEMORY: "runs out of memory"}


def incidental_failure(description: str, path: Path) -> str:
    """Another failure that was found while reducing."""
    return f"also found while reducing (a different failure, not a finding of this run): {description} -> {path}"


def repro_interrupted() -> str:
    """Said after Ctrl-C."""
    return "interrupted. This is the smallest script so far; run the same command to continue"


def repro_out_of_time(lines: int) -> str:
    """Said when the time limit ended the reduction."""
    return f"time limit reached at {count(lines, 'line')}. Run the same command to continue, or raise --seconds"


def repro_not_verified() -> str:
    """Said of a script that does not fail in the same way in a fresh process."""
    return "NOT verified: in a fresh process this script does not fail in the same way"


def issue_summary(
    *, call: str, ends: str, imports: tuple[str, ...], verified: bool, flaky: tuple[int, int] | None = None
) -> str:
    """The call, how it ends, what the script needs, and whether it was checked; `flaky` is (failures, runs)."""
    checked = (
        "Verified in a fresh interpreter."
        if verified
        else "**Not verified**: in a fresh interpreter it does not fail in the same way."
    )
    often = f" Flaky: it failed in {flaky[0]} of {flaky[1]} runs." if flaky else ""
    return f"{call} of this module {ends}. The script needs only {' and '.join(imports)}. {checked}{often}"


def issue_end(exception: str, died: str) -> str:
    """How the export ends: `raises X`, `never returns`, `ends with SIGSEGV`."""
    return f"raises `{exception}`" if exception else death(died)


def death(how: str) -> str:
    """How a process ended that raised nothing."""
    return _DEATHS.get(how, f"ends with {how}" if how else "ends without a result")


def issue_expectation(*, died: bool, runs_in_eager: bool) -> str:
    """What was expected."""
    if died:
        return "The export returns a program or raises an exception."
    eager = " The module runs in eager mode with the same inputs." if runs_in_eager else ""
    return f"An exported program.{eager}"


def issue_place(finding: Finding, file: str) -> str:
    """Where in the user's model; `file` is the short path."""
    module = f"`{finding.module}` ({finding.module_class})" if finding.module else f"the root ({finding.module_class})"
    others = len(finding.modules) - 1
    more = f", and in {count(others, 'other module')}" if others > 0 else ""
    if not finding.file:
        return f"In the call of {module}{more}."
    return f"In `{finding.function}`, `{file}`:{finding.line}, called by {module}{more}."


def issue_known(finding: Finding) -> str:
    """The known upstream issues, as a list."""
    if not finding.known_issues:
        return "None found in exportdoctor's catalogue."
    lines = [f"- [{issue.id}]({issue_link(issue.link)}) {issue.title}".rstrip() for issue in finding.known_issues]
    if all(issue.elsewhere for issue in finding.known_issues):
        lines = ["None found about this code. The same pattern in other code:", "", *lines]
    return "\n".join(lines)


def issue_title(exception: str, message: str, *, died: str, function: str) -> str:
    """The exporter, the exception and its first line: what a maintainer searches for."""
    if not exception:
        return f"torch.export {death(died)} in {function or 'the export'}"
    first = without_hints(first_line(message))
    return f"torch.export: {exception.rpartition('.')[2]}: {_shorten(first)}".rstrip(": ")


def _shorten(text: str, most: int = 110) -> str:
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0]} …"


def issue_graph_caption() -> str:
    """What stands above the slice of the traced graph."""
    return "The values that lead to it in the graph traced so far (▶ marks the failing ones):"
