"""Lines of the model on which Python's `max` or `min` met tensors: torch.export traces another function there.

Python's compares and takes one of the two, with its dtype, and a NaN may lose; torch.maximum, torch.minimum and
torch.clamp, which the program has in their place, pass it on, and promote the dtypes.
"""

from __future__ import annotations

import builtins
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exportdoctor.report.wording.export import python_extremes
from exportdoctor.worker.translate.failed_node import fx_fact, user_frame

_TRACED = frozenset({"maximum", "minimum", "clamp", "clamp_min", "clamp_max"})
_CALL = re.compile(r"(?<![\w.])(max|min)\s*\(")


def note_extremes(program: Any) -> str:
    """What NaN and mixed dtypes do otherwise than in eager, with the first line; empty where there is none."""
    found = list(_lines(program))
    lines = list(dict.fromkeys(line for line, _ in found))
    mixed = next((line for line, has_two_dtypes in found if has_two_dtypes), "")
    return python_extremes(lines[0], others=len(lines) - 1, mixed=mixed) if lines else ""


def _lines(program: Any) -> Iterator[tuple[str, bool]]:
    """Each line, and whether what it compares has different dtypes there."""
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if node.op != "call_function" or not _gives_floats(node):
                continue
            if str(node.target).removeprefix("aten.").partition(".")[0] not in _TRACED:
                continue
            frame = user_frame(fx_fact(node))
            if frame is not None and _calls_pythons(frame.file, frame.line):
                yield f"{Path(frame.file).name}:{frame.line}", _has_two_dtypes(node)


def _gives_floats(node: Any) -> bool:
    value = node.meta.get("val")
    return bool(getattr(getattr(value, "dtype", None), "is_floating_point", False))


def _has_two_dtypes(node: Any) -> bool:
    """Whether the operands are tensors of two dtypes, or a tensor of floats and a whole number, or the reverse."""
    first, *others = (getattr(one, "meta", {}).get("val", one) for one in (*node.args, *node.kwargs.values()))
    dtype = getattr(first, "dtype", None)
    if dtype is None:
        return False
    return any(
        one.dtype != dtype if hasattr(one, "dtype") else isinstance(one, float) != dtype.is_floating_point
        for one in others
        if one is not None
    )


def _calls_pythons(file: str, line: int) -> bool:
    """Whether the line calls a `max` or `min` that is Python's in its file."""
    found = _CALL.search(linecache.getline(file, line))
    if found is None:
        return False
    own = (vars(one) for one in list(sys.modules.values()) if getattr(one, "__file__", None) == file)
    name = found[1]
    return all(names.get(name, getattr(builtins, name)) is getattr(builtins, name) for names in own)
