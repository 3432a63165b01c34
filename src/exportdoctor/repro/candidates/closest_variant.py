"""The variant of a reduced script that exports and differs least from it: it shows what the failure hangs on."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable


def draw_near(failing: str, passing: str, passes: Callable[[str], bool]) -> str | None:
    """The passing script with as few of its changes as it needs, each a run of lines, the last ones taken back first.

    None where what is left computes nothing of the inputs, which says nothing about the failure.
    """
    before, after = failing.splitlines(), passing.splitlines()
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    kept = {place for place, change in enumerate(changes) if change[0] != "equal"}

    def apply(places: set[int]) -> str:
        lines: list[str] = []
        for place, (_, start, end, other_start, other_end) in enumerate(changes):
            lines += after[other_start:other_end] if place in places else before[start:end]
        return "\n".join(lines)

    for place in sorted(kept, reverse=True):
        fewer = kept - {place}
        if fewer and passes(apply(fewer)):
            kept = fewer
    found = apply(kept)
    return found if _reads_inputs(found) or not _reads_inputs(failing) else None


def _reads_inputs(source: str) -> bool:
    """Whether the forward of a class in the script reads one of its parameters."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    forwards = (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == "forward")
    for forward in forwards:
        names = {one.arg for one in [*forward.args.args[1:], *forward.args.kwonlyargs]}
        read = {one.id for one in ast.walk(forward) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
        if names & read:
            return True
    return False
