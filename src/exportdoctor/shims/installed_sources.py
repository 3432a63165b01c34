"""Source code of installed packages, read from their files without importing them."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=64)
def folder_of(package: str) -> Path | None:
    """The folder of a top-level package, or `None` if it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def file_of(module: str) -> Path | None:
    """The file of a module by its dotted name, or `None`."""
    top, *rest = module.split(".")
    folder = folder_of(top)
    if folder is None:
        return None
    stem = folder.joinpath(*rest)
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


@lru_cache(maxsize=64)
def tree_of_file(path: Path) -> tuple[str, ast.Module]:
    """A file's text and its syntax tree. Raises what reading and parsing raise."""
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text)


def source_of(target: str) -> str | None:
    """The definition at `package.module:qualified.name`, without indentation; `None` where there is none."""
    module, _, qualified = target.partition(":")
    path = file_of(module)
    if path is None or not qualified:
        return None
    try:
        text, tree = tree_of_file(path)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    node = definition(tree, qualified.split("."))
    return segment(text, node) if node is not None else None


def is_installed(target: str) -> bool:
    """Whether `package.module:qualified.name` is defined or imported in the module's file."""
    module, _, qualified = target.partition(":")
    path = file_of(module)
    if path is None or not qualified:
        return path is not None
    try:
        text, tree = tree_of_file(path)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False
    top = qualified.split(".")[0]
    imported = re.search(rf"^(?:\s+|from .* import .*|import .*|){top}\b(?: *=|,|$)", text, re.M)
    return definition(tree, [top]) is not None or imported is not None


def definition(tree: ast.AST, names: list[str]) -> ast.AST | None:
    """The definition at that path of names, also below `if` and `try`; of overloads the one that runs."""
    node: ast.AST | None = tree
    for name in names:
        node = next((found for found in _definitions(node) if found.name == name), None) if node else None
    return node


def as_target(path: str) -> str:
    """A dotted path as `package.module:qualified.name`; what begins with a capital letter is a class."""
    holder, _, name = path.rpartition(".")
    module, _, owner = holder.rpartition(".")
    return f"{module}:{owner}.{name}" if owner[:1].isupper() else f"{holder}:{name}"


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(node: ast.AST) -> list[Definition]:
    found: list[Definition] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            if not any(ast.unparse(one).rpartition(".")[2] == "overload" for one in child.decorator_list):
                found.append(child)
        elif isinstance(child, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            found += _definitions(child)
    return found


def segment(text: str, node: ast.AST) -> str:
    """The node's lines, its decorators included, moved to the left margin."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])  # type: ignore[attr-defined]
    lines = text.splitlines()[first - 1 : node.end_lineno]  # type: ignore[attr-defined]
    margin = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return "\n".join(line[margin:] if line[:margin].isspace() or not line[:margin] else line for line in lines) + "\n"
