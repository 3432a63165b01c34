"""The package to which the relative imports of a file refer: its folders, as Python sees them from the one above."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from exportdoctor.core.errors import TargetError

_NEVER_TRUE = re.compile(r"(typing\.)?TYPE_CHECKING|__name__ == '__main__'")
"""Conditions that do not hold where a module is imported."""


class Package(NamedTuple):
    """The names of a package, outermost first; empty for a file that is in none. `is_needed`: the file cannot be
    imported without it."""

    names: tuple[str, ...] = ()
    is_needed: bool = False


def package_of(path: Path, tree: ast.Module) -> Package:
    """The package of a file with this code: folders, as many as have an `__init__.py`, and at least as many as an
    import goes up. For what functions alone import it has to be one that can be imported: they may never be called."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    at_once, later = list(_levels_of([tree])), list(_levels_of(functions))
    up = max((*at_once, *later), default=0)
    if not up:
        return Package()
    folders = list(itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents))
    names = tuple(folder.name for folder in reversed(path.parents[: max(up, len(folders))]))
    if not all(names) or any("." in name for name in names):
        return Package()
    if not at_once and not _can_be_imported(names, path.parents[len(names)]):
        return Package()
    return Package(names, bool(at_once))


def import_package(names: tuple[str, ...], root: Path) -> None:
    """Import the package in that folder, which is put on `sys.path`. Raises TargetError where another of its name was
    imported before."""
    put_on_path(root)
    for count in range(1, len(names) + 1):
        name, folder = ".".join(names[:count]), root.joinpath(*names[:count])
        found = importlib.import_module(name)
        if str(folder) not in (str(Path(one).resolve()) for one in getattr(found, "__path__", ())):
            raise TargetError(
                f"The relative imports need {str(folder)!r} as the package {name!r}, which is another one here",
                hint="Rename the folder",
            )


def put_on_path(folder: Path, *, last: bool = False) -> None:
    """Let Python find the modules in that folder, before those in others or behind them."""
    if str(folder) not in sys.path:
        sys.path.insert(len(sys.path) if last else 0, str(folder))


def _can_be_imported(names: tuple[str, ...], root: Path) -> bool:
    path = list(sys.path)
    try:
        import_package(names, root)
    except Exception:  # its own code runs
        sys.path[:] = path
        return False
    return True


def _levels_of(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """By how many packages each import goes up that has to succeed when the code runs: not in a `try`, for types alone,
    for a script, or in a function inside."""
    for child in itertools.chain.from_iterable(map(ast.iter_child_nodes, nodes)):
        match child:
            case ast.ImportFrom(level=up) if up:
                yield up
            case ast.Try(handlers=[_, *_]):
                yield from _levels_of([*child.handlers, ast.Module([*child.orelse, *child.finalbody], [])])
            case ast.If(test=test) if _NEVER_TRUE.fullmatch(ast.unparse(test)):
                yield from _levels_of([ast.Module(child.orelse, [])])
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                pass
            case _:
                yield from _levels_of([child])
