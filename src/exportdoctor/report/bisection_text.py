"""A bisection as Markdown, ready to paste into an issue, or as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence

from exportdoctor.core.codec import pretty
from exportdoctor.core.run.bisection import CodeChange, EnvironmentBisection, Trial, VersionBisection
from exportdoctor.report import wording
from exportdoctor.report.markdown_text import fence
from exportdoctor.report.wording import version_searches as said

BISECTION_FORMS = ("md", "json")


def render_bisection(found: VersionBisection | EnvironmentBisection, form: str) -> str:
    """`found` in one of BISECTION_FORMS, ending with a newline."""
    if form == "json":
        return pretty(found).decode()
    lines = [f"## {_safe(found.asked)}", ""]
    if found.failure is not None:
        lines += [f"Failure: {_code(found.failure.line)}", ""]
    lines += _versions(found) if isinstance(found, VersionBisection) else _environments(found)
    lines += [f"- {_safe(note)}" for note in found.notes]
    if found.script:
        lines += ["", "The script:", "", fence(found.script.strip("\n"), "python")]
    return "\n".join([*lines, ""])


def _versions(found: VersionBisection) -> list[str]:
    lines = [_safe(said.bisected_on(found.about, found.here)), ""]
    lines += [_safe(said.turn_line(found, turn)) for turn in found.turns] or [_safe(said.no_turn(found))]
    lines += ["", *_table(found.package, found.trials), ""]
    for turn in found.turns:
        lines += [_safe(said.whole_line(turn, found.package)), ""] if turn.whole else []
        lines += [_safe(said.pin_line(turn)), "", *_changes(turn.changes)]
    return lines


def _environments(found: EnvironmentBisection) -> list[str]:
    lines = [_safe(said.bisected_on(found.about, found.here)), _safe(said.difference_count(found)), ""]
    lines += [_safe(said.environments_line(found)), "", *_table("packages", found.trials), ""]
    return lines + (_changes(found.changes) if found.alone or found.together else [])


def _table(title: str, trials: Sequence[Trial]) -> list[str]:
    rows = [(trial.name, trial.cell.state + (", then another answer" if trial.flaky else ""), trial.cell.detail)
            for trial in trials]  # fmt: skip
    cells = [(title, "seen", ""), ("---", "---", "---"), *rows]
    return [f"| {' | '.join(_safe(one).replace('|', chr(92) + '|') for one in row)} |" for row in cells]


def _changes(changes: Sequence[CodeChange]) -> list[str]:
    lines = [_safe(said.changes_title(changes)), ""]
    for change in changes:
        lines += [f"{_code(f'{change.file}: {change.function}')}: {_safe(change.note)}", ""] if change.note else []
        lines += [fence(change.diff, "diff"), ""] if change.diff else []
    return lines


def _code(text: str) -> str:
    return f"`{wording.plain(text).replace('`', chr(39))}`"


def _safe(text: str) -> str:
    """Text from a target or an installer, in which nothing is markup."""
    return re.sub(r"<(?![=\d ])", "&lt;", wording.plain(text).replace("&", "&amp;").replace("`", "'"))
