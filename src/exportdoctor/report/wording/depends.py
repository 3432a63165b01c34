"""What a failure depends on, in sentences: dynamic dimensions, the line that made a guard, a failure before it."""

from __future__ import annotations

from exportdoctor.core.finding import Finding
from exportdoctor.report.wording.pieces import short_path


def depends(finding: Finding) -> tuple[str, ...]:
    """One sentence for each thing that is known."""
    return tuple(filter(None, (guard(finding), dimensions(finding), behind(finding))))


def dimensions(finding: Finding) -> str:
    """`Fails when `sequence` is dynamic, passes when only `batch` is.`; empty where nobody asked."""
    if finding.dimensions is None:
        return ""
    if not finding.dimensions:
        return "It fails with every size fixed, too."
    fails = f"Fails when {_are(finding.dimensions)} dynamic"
    match finding.dimensions_passing:
        case None:
            return f"{fails}."
        case ():
            return f"{fails}, passes when every size is fixed."
        case passing:
            return f"{fails}, passes when only {_are(passing)}."


def guard(finding: Finding) -> str:
    """Where the guard was made that a declared dimension violates; empty where it is about none."""
    frame = finding.guard
    if frame is None:
        return ""
    source = f": {frame.source}" if frame.source else ""
    return f"The guard was made at {short_path(frame.file)}:{frame.line} in {frame.function}{source}"


def behind(finding: Finding) -> str:
    """Which failure comes first and hides this one; empty where none does."""
    return f"Hidden by {finding.behind}, which comes first: seen once that is out of the way." if finding.behind else ""


def _are(names: tuple[str, ...]) -> str:
    quoted = [f"`{name}`" for name in names]
    return f"{quoted[0]} is" if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]} are"
