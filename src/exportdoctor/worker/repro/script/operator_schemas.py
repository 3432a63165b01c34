"""Schemas of operators that are registered outside of torch, as by the code of a module or a library of C++.

A script that names one by `torch.ops` has its schema, too: without a kernel, but torch.export asks for a fake one only.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import torch

_NAMED = re.compile(r"\btorch\.ops\.(\w+)\.(\w+)")
_OF_TORCH = ("aten", "prim", "prims", "higher_order")
_ASK = """
import sys, torch
for name in sys.argv[1:]:
    space, _, operator = name.partition(".")
    if not hasattr(getattr(torch.ops, space), operator):
        print(name)
"""


def declare_operators(source: str) -> str:
    """The script, in which operators that `import torch` alone does not register are defined after the imports.

    Other packages that it imports may register them: then it defines what they do not.
    """
    named = dict.fromkeys(_NAMED.findall(source))
    own = [f"{space}.{name}" for space, name in named if space not in _OF_TORCH and f"{space}::{name}" not in source]
    imports = [one for one in ast.parse(source).body if isinstance(one, ast.Import | ast.ImportFrom)]
    others = any(map(_is_of_others, imports))
    lines = [line for name in _unknown_to_torch(tuple(own)) for line in _definition(name, if_lacking=others)]
    end = max((one.end_lineno or 0 for one in imports), default=0)
    before, after = source.splitlines()[:end], source.splitlines()[end:]
    return "\n".join([*before, "", *lines, "", *after]) + "\n" if lines else source


@cache
def _unknown_to_torch(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the operators, `namespace.name`, that a fresh process lacks where it imports torch alone."""
    if not names:
        return ()
    command = [sys.executable, "-c", _ASK, *names]
    asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return tuple(asked.stdout.split())


def _definition(name: str, *, if_lacking: bool) -> Iterator[str]:
    """The lines that define each overload of the operator; none where this process does not know it either."""
    space, _, operator = name.partition(".")
    family = getattr(getattr(torch.ops, space), operator, None)
    indent = ""
    if if_lacking and family is not None:
        yield f"if not hasattr(torch.ops.{space}, {operator!r}):"
        indent = "    "
    for overload in family.overloads() if family is not None else ():
        full, _, signature = str(getattr(family, overload)._schema).partition("(")
        yield f"{indent}torch.library.define({full!r}, {'(' + signature!r})"


def _is_of_others(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether it imports from a package that is neither torch nor Python's own."""
    names = [str(node.module)] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return any(name.partition(".")[0] not in {"torch", *sys.stdlib_module_names} for name in names)
