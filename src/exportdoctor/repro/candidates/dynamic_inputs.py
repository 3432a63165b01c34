"""A violated dimension stays dynamic in a script: made static, it may be what fixes another one."""

from __future__ import annotations

import ast
import re

from exportdoctor.core.records.outcome import Outcome

_VIOLATED = re.compile(r"L\['(\w+)'\]")


def violated_inputs(outcome: Outcome) -> frozenset[str]:
    """The names of the inputs with a dimension that is declared dynamic and became constant."""
    message = outcome.failure.exceptions[-1].message if outcome.failure and outcome.failure.exceptions else ""
    return frozenset(_VIOLATED.findall(message)) if message.startswith("Constraints violated") else frozenset()


def makes_one_static(source: str, names: frozenset[str]) -> bool:
    """Whether the script still has one of these inputs, without a dynamic dimension."""
    if not names:
        return False
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    shapes = [
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "dynamic_shapes"
    ]
    entries = [
        entry
        for given in shapes
        if isinstance(given, ast.Dict)
        for key, entry in zip(given.keys, given.values, strict=True)
        if isinstance(key, ast.Constant) and key.value in names
    ]
    return any(not any(isinstance(node, ast.Name | ast.Attribute) for node in ast.walk(entry)) for entry in entries)
