"""Lines of the model on which Python's `max` or `min` met tensors: torch.export traces another function there.

Python's compares and takes one of the two, so that a NaN may lose; torch.maximum, torch.minimum and torch.clamp, which
the program has in their place, pass it on.
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
    """What a NaN does otherwise than in eager, with the first line; empty where there is none."""
    lines = list(dict.fromkeys(_lines(program)))
    return python_extremes(lines[0], others=len(lines) - 1) if lines else ""


def _lines(program: Any) -> Iterator[str]:
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if node.op != "call_function" or not _gives_floats(node):
                continue
            if str(node.target).removeprefix("aten.").partition(".")[0] not in _TRACED:
                continue
            frame = user_frame(fx_fact(node))
            if frame is not None and _calls_pythons(frame.file, frame.line):
                yield f"{Path(frame.file).name}:{frame.line}"


def _gives_floats(node: Any) -> bool:
    value = node.meta.get("val")
    return bool(getattr(getattr(value, "dtype", None), "is_floating_point", False))


def _calls_pythons(file: str, line: int) -> bool:
    """Whether the line calls a `max` or `min` that is Python's in its file."""
    found = _CALL.search(linecache.getline(file, line))
    if found is None:
        return False
    own = (vars(one) for one in list(sys.modules.values()) if getattr(one, "__file__", None) == file)
    name = found[1]
    return all(names.get(name, getattr(builtins, name)) is getattr(builtins, name) for names in own)
