"""What a shim changes, as a unified diff of source code. Nothing is imported or applied to make it."""

from __future__ import annotations

import ast
import difflib

from exportdoctor.shims.record import Replacement, Shim
from exportdoctor.shims.sources import source_of


def difference(shim: Shim) -> str:
    """The unified diff of everything that the shim replaces and that is installed here; never empty."""
    parts = [_of(replacement) for replacement in shim.replaces]
    found = "".join(part for part in parts if part)
    return found or f"--- nothing that {shim.id} replaces is installed here\n"


def _of(replacement: Replacement) -> str:
    target = replacement.target
    if replacement.before or replacement.after:
        return _diff(replacement.before, replacement.after, target, f"{target}, with the shim")
    old = source_of(target)
    if old is None:  # made in C, or nothing that has a name: a graph, the inputs
        new = "" if replacement.optional else source_of(replacement.by) or ""
        return _diff("", new, target.strip(":") or "the graph or the inputs", replacement.by)
    if replacement.rewrite is not None:
        # both as Python prints them, so that layout and comments are no difference
        return _diff(_plain(old), replacement.rewrite(old), target, f"{target}, rewritten")
    return _diff(old, source_of(replacement.by) or "", target, replacement.by)


def _plain(source: str) -> str:
    return ast.unparse(ast.parse(source)) + "\n"


def _diff(before: str, after: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), old, new)
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
