"""Symbols and words for statuses, and the remarks in rows of the tree."""

from __future__ import annotations

from exportdoctor.core.run.report import ModuleRecord
from exportdoctor.report.folded_tree import Row, label
from exportdoctor.report.wording.formatting import count, duration, module_name

SYMBOLS = {
    "pass": "✓",
    "fails_own": "✗",
    "fails_child": "✗",
    "cured": "✚",
    "not_called": "○",
    "crashed": "☠",
    "timed_out": "◷",
    "not_asked": "·",
    "unknown": "?",
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
    "unknown": "?",
}
VERDICT_STATUS = {"passes": "pass", "cured": "cured", "fails": "fails_own", "unknown": "unknown"}
STATUS_WORDS = {
    "pass": "passes",
    "fails_own": "fails itself",
    "fails_child": "a child fails",
    "cured": "exports with shims",
    "not_called": "never called as a module",
    "crashed": "crashed",
    "timed_out": "timed out",
    "not_asked": "not tried",
    "unknown": "unknown: see the notes",
}


def row_name(row: Row) -> str:
    """The submodules of a row, and how many they are."""
    if len(row.names) == 1:
        return module_name(row.names[0])
    likeness = "identical" if row.equal else "similar"
    return label(row.names) + (f"  {len(row.names)} {likeness}" if row.class_name else "")


def remark(row: Row) -> str:
    """What a row says beside its name: which child fails, or how many modules pass."""
    if row.status == "fails_child":
        if row_finding(row):
            return "fails in a child"
        failing = [child for child in row.children if child.notable and child.status != "unknown"]
        names = ", ".join(label(child.names, most=3) for child in failing)
        several = len(failing) > 1 or any(len(child.names) > 1 for child in failing)
        return f"{names} fail{'' if several else 's'}" if failing else "fails in a child"
    if row.status == "pass":
        pieces = [count(row.modules, "module")] if row.modules > len(row.names) else []
        return ", ".join([*pieces, *(["at fixed sizes"] if row.fixed else [])])
    return STATUS_WORDS[row.status]


def evidence(record: ModuleRecord | None, status: str) -> str:
    """The evidence for a module's status, after the word for it; `record` is None where there is no verdict yet."""
    if status == "not_called":
        return "with these inputs no forward calls it; its methods may be called."
    if record is None or status == "not_asked":
        return "there is no verdict."
    if status == "unknown":
        return "see the note."
    if record.evidence == "equal" and record.same_as is not None:
        done = "exported" if status == "pass" else "tried"
        return f"identical to {module_name(record.same_as)}, which was {done}{_sizes(record)}."
    if record.evidence == "parent":
        return f"covered by a parent that exports{_sizes(record)}."
    done = "exported in" if status == "pass" else "the export was tried for"
    return f"{done} {duration(record.seconds)}{_sizes(record)}."


def _sizes(record: ModuleRecord) -> str:
    """That every size was fixed, and why; empty where the dynamic ones were dynamic."""
    return f", at fixed sizes: {record.at_fixed_sizes}" if record.at_fixed_sizes else ""


def same_object(fqn: str) -> str:
    """The sentence on a module that has two FQNs."""
    return f"The same module object as {module_name(fqn)}."


def row_finding(row: Row) -> str:
    """The findings to name in a row; none if a row below it names the first."""
    below = row.status == "fails_child" and row.has_below(row.finding)
    return "" if below or row.finding is None else ", ".join((row.finding, *row.also))
