"""Sentences about a repro: its progress and notes, the end of a reduction, and the sections of an upstream issue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.messages import first_line, without_hints
from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.core.run.measurement import Measurement
from exportdoctor.report.wording.findings import relation
from exportdoctor.report.wording.formatting import count, issue_link, issue_name
from exportdoctor.report.wording.rewrites import DOCUMENTED

_DEATHS: dict[str, str] = {OutcomeStatus.TIMED_OUT: "never returns", OutcomeStatus.OUT_OF_MEMORY: "runs out of memory"}


def repro_reproducing(finding: str) -> str:
    """Said while the failure is shown once more in the model."""
    return f"reproducing {finding} in the model"


def repro_draft(lines: int, what: str) -> str:
    """Said of the first draft that fails as the model does."""
    return f"{count(lines, 'line')} {'fails' if lines == 1 else 'fail'} in the same way: {what}"


def repro_other_causes() -> str:
    """How a draft was made from which causes of other failures were taken out."""
    return "what ran, without the causes of failures before this one"


def repro_sliced(lines: int) -> str:
    """Said after a cut along the data flow."""
    return f"{count(lines, 'line')} by data flow"


def repro_progress(lines: int, candidates: int, *, verifying: bool = False) -> str:
    """How far a reduction is."""
    return f"{count(lines, 'line')} after {count(candidates, 'candidate')}{'; verifying' if verifying else ''}"


def repro_flaky(same: int, runs: int) -> str:
    """The note on a script that does not fail each time."""
    return f"this failure is flaky: the same script failed in {same} of its last {runs} runs"


def repro_flaky_attempts(attempts: int) -> str:
    """The note on a failure that took several attempts to be seen."""
    return f"this failure is flaky: it was seen in 1 of {attempts} attempts"


def repro_without_source(name: str, module: str, why: str) -> str:
    """The note on a name that a script imports, as its code cannot be copied; `why` may be empty."""
    reason = f" ({why})" if why else ""
    return f"{name} has no source that can be copied into a script{reason}, so it is imported from {module}"


def repro_stand_in(name: str, *, registered: bool) -> str:
    """The note on a class that is not the library's own; `name` is the full name of that.

    `registered` says that pytree knows it, without names for its children.
    """
    why = "it is registered without flatten_with_keys_fn" if registered else "pytree does not know it"
    return f"the class stands in for {name}: what matters is that {why}"


def repro_under_shims(shims: Sequence[str]) -> str:
    """The remark on a failure that the model shows only when shims are applied."""
    return f"seen in the model only with {_shims(shims)}; this script has no shims"


def repro_not_found(why: str, *, shims: Sequence[str]) -> str:
    """Said where no script fails so; `why` is how those ended that were tried, `shims` those that it was seen with."""
    seen = f"the run saw it with {_shims(shims)} only, and a script has no shims; " if shims else ""
    return f"none of the standalone scripts that were written fails in this way ({seen}{why})"


def _shims(names: Sequence[str]) -> str:
    return f"the {'shim' if len(names) == 1 else 'shims'} {', '.join(names)}"


def repro_not_reduced() -> str:
    """The note on a draft that is kept because only it is verified."""
    return "not reduced: the reduced script does not fail in the same way in a fresh process"


def sources_changed(names: Sequence[str], *, more: bool) -> str:
    """The note on sources that are newer than the run; `more` than the names are."""
    return f"{', '.join(names)}{', …' if more else ''} changed since this run"


def repro_versions_changed(versions: Sequence[tuple[str, str, str]]) -> str:
    """The note on packages with another version than in the run: name, version then and version now of each."""
    changes = "; ".join(f"{name} {then} then, {now} now" for name, then, now in versions)
    return f"this run was made with other versions: {changes}"


def repro_failure_changed(kind: str, where: str, message: str, line: str) -> str:
    """The note on a failure that differs from the one of the run; `line` is the code, where that differs."""
    at = f", at `{line}`" if line else ""
    return f"the failure now differs from that of the run: {kind} in {where}{at}: {message}"


def script_origin(finding: Finding, file: str) -> str:
    """Where a finding's script comes from, for its head; `file` is the short path."""
    module = f"{finding.module or 'the root'} ({finding.module_class})"
    if not finding.function or not file:
        return f"reduced from {module}"
    return f"reduced from {finding.function}, {file}:{finding.line}, {relation(finding)} {module}"


def incidental_origin(finding: str) -> str:
    """Where the script of another failure comes from, for its head."""
    return f"met while {finding} was reduced: another failure, which the model itself may never show"


def script_head(*, origin: str, expected: str, versions: str, remarks: Sequence[str], made_by: str) -> tuple[str, ...]:
    """The sentences at the head of a script."""
    return (
        origin[:1].upper() + origin[1:],
        f"Fails with {expected}",
        f"Seen to fail on {versions}; for all versions: python -m torch.utils.collect_env",
        *(f"Note: {remark}" for remark in remarks),
        f"Made by: {made_by}",
    )


SEEN_VERSIONS = "Asked on other versions: "
"""How the sentence of `seen_versions` begins."""


def seen_versions(measured: Sequence[Measurement]) -> str:
    """On which versions a script was seen to fail and to pass; empty if it was not asked."""
    said = {"same failure": "fails with", "other failure": "fails otherwise with", "passes": "passes with"}
    parts = []
    for state, words in said.items():
        lanes = dict.fromkeys(version_list(one.versions) for one in measured if one.state == state)
        parts += [f"{words} {' and '.join(lanes)}"] if lanes else []
    return f"{SEEN_VERSIONS}{'; '.join(parts)} ({max(one.day for one in measured)})" if parts else ""


def version_list(versions: Mapping[str, str]) -> str:
    """Packages with their versions."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


ISSUE_HEADINGS = {
    "happens": "What happens",
    "expected": "What was expected",
    "closest": "Closest variant that exports",
    "place": "Where it occurs in the model",
    "known": "Known issues",
    "versions": "Versions",
}
"""The headings of an issue's sections."""


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


def issue_expectation(*, died: bool, runs_in_eager: bool, page: str = "") -> str:
    """What was expected; `page` documents that it is not supported."""
    if died:
        return "The export returns a program or raises an exception."
    if page:
        return (
            f"torch documents that this is not supported: <{page}>. The code has to be written in another way to be "
            "exported; this is no bug of torch."
        )
    eager = " The module runs in eager mode with the same inputs." if runs_in_eager else ""
    return f"An exported program.{eager}"


def repro_not_in_eager() -> str:
    """Said in the head of such a script."""
    return "Not seen to run without export: its inputs were reduced together with its code."


def issue_not_in_eager() -> str:
    """Said first of a script whose module was not seen to run in eager mode."""
    return (
        "**This script was not seen to run without export**: its inputs were reduced together with its code. The model "
        "that it comes from runs in eager mode."
    )


def issue_met_in(*, target: str, part: str, versions: str, dynamic: str, strict: bool) -> str:
    """The model and the way of export with which it was met."""
    of = f" (part {part})" if part not in ("", "default") else ""
    model = f"Met while exporting {target}{of}" if target else "Met"
    how = f"`torch.export.export(..., strict={strict})`"
    return f"{model} with {versions}: {how}, {f'dynamic: {dynamic}' if dynamic else 'every size static'}."


def bundle_recipient(package: str, repository: str, page: str, *, place: str) -> tuple[str, ...]:
    """Who should get the issue, and why."""
    if not package:
        who = "Nobody upstream: the code is your own."
    elif page:
        who = f"Send it to {repository or package}, whose code this is, and not to pytorch/pytorch."
    else:
        who = f"Send it to {repository or package}."
    if page:
        changed = f"the code at {place}" if place else "what the model is called with, or dynamic_shapes"
        return who, f"{DOCUMENTED} {page}. What has to change is {changed}."
    if not package:
        return who, f"The error is raised by the code at {place}, which runs in eager mode."
    return who, "No page is known to us that documents this as not supported."


def bundle_search(terms: str, address: str) -> str:
    """What to search for before an issue is opened; nobody has searched."""
    return f"Search first whether it is known (this was not done for you): {terms}\n{address}"


def issue_place(finding: Finding, file: str) -> str:
    """Where in the user's model; `file` is the short path."""
    module = f"`{finding.module}` ({finding.module_class})" if finding.module else f"the root ({finding.module_class})"
    others = len(finding.modules) - 1
    more = f", and in {count(others, 'other module')}" if others > 0 else ""
    if not finding.file:
        return f"In the call of {module}{more}."
    return f"In `{finding.function}`, `{file}`:{finding.line}, {relation(finding)} {module}{more}."


def issue_known(finding: Finding) -> str:
    """The known upstream issues, as a list; empty where none is known."""
    if not finding.known_issues:
        return ""
    lines = [
        f"- [{issue_name(issue.link)}]({issue_link(issue.link)}) {issue.title}".rstrip()
        for issue in finding.known_issues
    ]
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
