"""Sentences about what fails beside a baseline."""

from __future__ import annotations

from exportdoctor.core.run.known_failures import BaselineDifference, KnownFailure
from exportdoctor.report.wording.formatting import count, module_name


def failure_line(failure: KnownFailure) -> str:
    """A known failure in a line."""
    part = "" if failure.part == "default" else f"{failure.part}: "
    source = f": {failure.source}" if failure.source else ""
    others = max(len(failure.modules) - 1, 0)
    where = module_name(failure.module) + (f" and {count(others, 'other module')}" if others else "")
    return f"{part}{where}, {failure.place or 'in the call itself'}{source} ({failure.error})"


def baseline_lines(difference: BaselineDifference, *, accept: str) -> tuple[str, ...]:
    """What is new, changed and fixed; `accept` is what takes what is fixed out of the baseline."""
    lines = [f"new failure: {failure_line(one)}" for one in difference.new]
    for before, after in difference.changed:
        lines.append(f"changed failure: {failure_line(after)}; in the baseline: {failure_line(before)}")
    lines += [f"fixed: {failure_line(one)}. Take it out of the baseline: {accept}" for one in difference.fixed]
    if difference.broken and difference.newly_looked_for:
        lines.append(
            f"the baseline is of a scan without {' and '.join(difference.newly_looked_for)}: what is new may only have "
            "been found by that"
        )
    if difference.same:
        lines.append(f"{count(len(difference.same), 'known failure')}, as in the baseline")
    return tuple(lines)
