"""What a status looks like and is called, and what is said of a row of the tree."""

from __future__ import annotations

from exportdoctor.report.folded_tree import Row, label
from exportdoctor.report.wording.pieces import count, module_name

SYMBOLS = {
    "pass": "✓",
    "fails_own": "✗",
    "fails_child": "✗",
    "cured": "◐",
    "not_called": "○",
    "crashed": "☠",
    "timed_out": "⧗",
    "not_asked": "·",
}
ASCII_SYMBOLS = {
    "pass": "+",
    "fails_own": "x",
    "fails_child": "x",
    "cured": "~",
    "not_called": "o",
    "crashed": "!",
    "timed_out": "t",
    "not_asked": ".",
}
VERDICT_STATUS = {"passes": "pass", "cured": "cured", "fails": "fails_own"}
STATUS_WORDS = {
    "pass": "passes",
    "fails_own": "own code",
    "fails_child": "through a child",
    "cured": "cured",
    "not_called": "never called",
    "crashed": "crashed",
    "timed_out": "timed out",
    "not_asked": "not asked yet",
}


def row_name(row: Row) -> str:
    """The submodules of a row, and how many they are."""
    if len(row.names) == 1:
        return module_name(row.names[0])
    alike = "equal" if row.equal else "alike"
    return label(row.names) + (f"  {len(row.names)} {alike}" if row.class_name else "")


def remark(row: Row) -> str:
    """What a row says beside its name: where the failure arises, or how much passes."""
    if row.status == "fails_child":
        through = [label(child.names, most=3) for child in row.children if child.notable]
        return f"through {', '.join(through)}" if through else STATUS_WORDS["fails_child"]
    if row.status == "pass":
        return count(row.modules, "module") if row.modules > len(row.names) else ""
    return STATUS_WORDS[row.status]


def row_finding(row: Row) -> str:
    """The finding to name in a row; what is told by a row below it is not told twice."""
    told_below = row.status == "fails_child" and any(child.notable for child in row.children)
    return "" if told_below else row.finding or ""
