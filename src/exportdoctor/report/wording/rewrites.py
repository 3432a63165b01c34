"""Sentences about the rewrites of a failing line: which were tried on the user's own code, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence

from exportdoctor.core.failure.finding import Finding, TriedRewrite
from exportdoctor.core.failure.messages import without_hints
from exportdoctor.report.wording.formatting import count

WHY, ADVICE, OWN_LINE, REWRITES, EXAMPLE_FAILS, EXAMPLE_INSTEAD = (
    "Why", "What helps", "Your code", "Rewrites that work", "This fails:", "In place of:"
)  # fmt: skip
DOCUMENTED = "torch documents this as not supported:"


def rewrite_result(tried: TriedRewrite, finding: Finding) -> str:
    """What was seen of a rewrite of the finding's own line."""
    what = tried.module or (f"part {finding.part}" if finding.part != "default" else "the model")
    sets = count(tried.input_sets, "input set")
    close = "exactly" if not tried.max_abs_diff else f"within {tried.max_abs_diff:.0e}"
    further = f" The rest of {finding.part} still fails." if tried.module else ""
    match tried.result:
        case "exports":
            return f"Tried: with this change {what} exports, and computes the same on {sets} ({close}).{further}"
        case "no_values":
            return (
                f"Tried: with this change {what} exports. Its outputs were not compared: the weights have no values. "
                f"Scan with --weights random to compare them.{further}"
            )
        case "not_tried":
            return "Not tried."
        case "differs":
            return f"{tried.title}: {tried.note}."
        case _:
            return f"{tried.title}: {tried.note}"


def failed_rewrites(tried: Sequence[TriedRewrite], finding: Finding) -> tuple[str, ...]:
    """A line for each rewrite that was tried in vain; two that end alike have one."""
    vain = [one for one in tried if one.result in {"differs", "fails"}]
    return tuple(dict.fromkeys(f"Tried in vain: {without_hints(rewrite_result(one, finding))}" for one in vain))


def no_rewrite_works(tried: Sequence[TriedRewrite]) -> str:
    """Said where none was tried, or each was in vain."""
    if tried:
        return "None of the rewrites that were tried on this line works; the examples below show what to write."
    return "No rewrite could be applied to this line automatically; the examples below show what to write."


def source_edited() -> str:
    """Said where the line is not the one that failed any more."""
    return "The file was edited since the scan: scan again to have the rewrites tried on it."
