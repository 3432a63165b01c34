"""Sentences about where a failure came or went, and the environments in which it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exportdoctor.core.failure.known_issues import KnownIssue
from exportdoctor.core.run.bisection import CodeChange, EnvironmentBisection, VersionBisection, VersionTurn
from exportdoctor.core.run.measurement import Measurement
from exportdoctor.report.wording.formatting import count
from exportdoctor.report.wording.repro import version_list

_NO_FUNCTION = "The failing stack has no function of the package."


def bisected_on(about: str, here: Mapping[str, str]) -> str:
    """What was searched on, and with what beside it."""
    beside = ", ".join(f"{name} {version}" for name, version in here.items())
    return f"Searched on {about}" + (f", with {beside}." if beside else ".")


def turn_line(found: VersionBisection, turn: VersionTurn) -> str:
    """Between which releases the failure came or went."""
    names = [trial.name for trial in found.trials]
    first, last = sorted((names.index(turn.failing), names.index(turn.passing)))
    between = found.trials[first + 1 : last]
    package = found.package
    if turn.into:
        order = f"{turn.passing} shows another one, {turn.failing} this" if turn.came else (
            f"{turn.failing} shows this one, {turn.passing} another"
        )  # fmt: skip
        text = f"Turned into another failure: {package} {order} ({turn.into})"
    elif turn.came:
        text = f"Came: {package} {turn.passing} passes, {turn.failing} fails"
    else:
        text = f"Gone: {package} {turn.failing} fails, {turn.passing} passes"
    text += "; each was asked twice."
    if between:
        text += f" Of {', '.join(trial.name for trial in between)} in between it is not known (see the table)."
    return text


def no_turn(found: VersionBisection) -> str:
    """Why no release is named."""
    known = [trial for trial in found.trials if trial.cell.state in ("same failure", "passes") and not trial.flaky]
    if found.failure is None:
        return "No failure was seen with any of the releases that were asked."
    if len(known) < 2:
        return "Of fewer than two releases it is known whether they fail, so nothing can be searched."
    said = "fail in the same way" if known[0].cell.state == "same failure" else "pass"
    ends = f"{known[0].name} and {known[-1].name}"
    return f"{found.package} {ends} both {said}: between them nothing was searched. --from and --to set other ends."


def whole_line(turn: VersionTurn, package: str) -> str:
    """Whether the whole says the same as the smallest thing."""
    said = [f"{package} {trial.name}: {trial.cell.state}{_detail(trial.cell.detail)}" for trial in turn.whole]
    return f"The whole part: {'; '.join(said)}."


def pin_line(turn: VersionTurn) -> str:
    """The requirement that works here."""
    if turn.into:
        return "No pin is named: no release was seen to pass."
    if not turn.pin:
        return "No pin is named: the whole does not pass with the release that passes here."
    return f"Pin that works here: {turn.pin} (seen with {turn.passing}; releases beyond the table were not asked)."


def changes_title(changes: Sequence[CodeChange]) -> str:
    """What the diffs below are: minus is what fails, plus is what does not."""
    named = [change for change in changes if not change.on_stack]
    on_stack = [change for change in changes if change.on_stack]
    same = [change.function for change in on_stack if not change.diff and not change.note]
    if named:
        stack = f"{', '.join(same)} on the failing stack: the same in both." if same else _NO_FUNCTION
        return f"{stack} What changed of what the message or the script names (- with the failure, + without it):"
    if not changes:
        return f"{_NO_FUNCTION} Nor does the message or the script name anything of it that changed."
    if len(same) == len(changes):
        return f"{', '.join(same)} on the failing stack: the same in both. What changed lies elsewhere."
    left = f" The same in both: {', '.join(same)}." if same else ""
    return f"What changed in the functions of the failing stack (- with the failure, + without it):{left}"


def environments_line(found: EnvironmentBisection) -> str:
    """Which differences make the failure."""
    states = [trial.cell.state for trial in found.trials[:2]]
    if found.alone:
        each = " or ".join(one.line for one in found.alone)
        return f"Fails with this alone: {each}." + _unknown(found.unknown)
    if found.together:
        names = " and ".join(one.line for one in found.together)
        return f"Fails only with these together: {names}." + _unknown(found.unknown)
    if any(trial.flaky for trial in found.trials[:2]):
        return "One of the two environments answers now this, now that; nothing can be searched."
    shown = dict(zip([trial.name for trial in found.trials], states))
    return "Nothing can be searched: " + "; ".join(f"{name}: {state}" for name, state in shown.items()) + "."


def difference_count(found: EnvironmentBisection) -> str:
    """How far the environments are apart."""
    return f"The environments differ in {count(len(found.differences), 'package')}."


def known_versions(issue: KnownIssue, measured: Sequence[Measurement]) -> tuple[str, ...]:
    """What was seen of a known issue, with dates where they are kept, apart from what was only read."""
    states = {"same failure": "fails", "other failure": "fails otherwise", "passes": "passes"}
    seen = [*(f"fails with {lane}" for lane in issue.reproduced), *(" ".join(one.split()) for one in issue.measured)]
    seen += [f"{states[one.state]} with {version_list(one.versions)} ({one.day})" for one in measured]
    read = f"affected: {issue.affected}" + (f"; fixed: {issue.fixed_in}" if issue.fixed_in else "")
    where = "read in the source" if issue.source_checked else "read in the issue"
    return (*([f"Measured: {'; '.join(dict.fromkeys(seen))}"] if seen else []), f"Not measured, {where}: {read}")


def _unknown(sets: Sequence[str]) -> str:
    return f" Not known of: {'; '.join(sets)}." if sets else ""


def _detail(text: str) -> str:
    return f" ({text})" if text else ""


def project_python(path: str, versions: Mapping[str, str]) -> str:
    """The project's own environment is taken."""
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return f"runs under {path} ({found}); --python chooses another"


def project_python_refused(path: str, reason: str) -> str:
    """The project's own environment cannot be taken."""
    return f"{path} is not used: {reason.removeprefix(f'{path} ')}"


def no_lanes() -> str:
    """None was made yet, or none is to be deleted."""
    return "There are no such lanes. Make one with: exportdoctor lanes make --transformers 4.57.1"
