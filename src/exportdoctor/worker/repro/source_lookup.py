"""Where a class or function of the user's is defined, and which names its code sees."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import types
from typing import Any

from exportdoctor.worker.repro.prune import (
    tree_of,
)


def scope_of(function: types.FunctionType) -> dict[str, Any]:
    """A function's globals with the variables that it closes over."""
    space = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            space[name] = cell.cell_contents
        except ValueError:
            continue
    return space


def class_source(kind: type) -> tuple[Any, str, dict[str, Any]]:
    """A class's definition, its file, and the globals that its methods see; None for one without source."""
    module = sys.modules.get(kind.__module__)
    functions = [v for v in vars(kind).values() if isinstance(v, types.FunctionType)]
    user = [f for f in map(inspect.unwrap, functions) if os.path.isfile(f.__code__.co_filename)]
    own = [f for f in user if f.__qualname__.startswith(f"{kind.__qualname__}.")]
    path = getattr(module, "__file__", None) or (own[0].__code__.co_filename if own else None)
    space = scope_of(own[0]) if own else dict(vars(module)) if module else {}
    if not isinstance(path, str):
        return None, "", {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            inside = any(node.lineno <= f.__code__.co_firstlineno <= (node.end_lineno or 0) for f in own)
            if inside or not own:
                if module is None:
                    space = {**space}
                return node, path, space
    return None, path, space
