"""Reads a user's factory file: first as text, to check and hash it without running it, then as a module."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from exportdoctor.core.errors import ExportdoctorError, TargetError, UsageError, did_you_mean
from exportdoctor.core.exception_text import summary
from exportdoctor.core.file_hash import file_identity
from exportdoctor.core.read_file import read_file
from exportdoctor.targets.factory.containing_package import import_package, package_of, put_on_path

_DEFINE_ANY = frozenset({"globals", "vars", "locals", "exec", "setattr"})
"""Functions by which a file may define names that its text does not show."""


def check_factory(file: Path, *, name: str, what: str = "factory") -> None:
    """Raise `UsageError` unless the file defines `name`, which is a `what`, and `TargetError` if it is not Python. Runs
    nothing."""
    if not file.is_file():
        raise UsageError(f"There is no file {str(file)!r}", hint="Give file.py:factory, relative to the current folder")
    tree = _parse(file)
    names = (*dict.fromkeys(_names(tree.body)), *("*" for node in ast.walk(tree) if _writes_into_module(node)))
    functions = tuple(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    if not name:
        likely = [one for one in functions if one == "build"] or list(functions) or ["build"]
        hint = f"Give {file}:{likely[0]}" if len(likely) == 1 else f"Give {file}:NAME, one of: {', '.join(likely)}"
        raise UsageError(f"{str(file)!r} names no {what}", hint=hint)
    if name.partition(".")[0] not in names and "*" not in names:
        meant = did_you_mean(name, names)
        found = ", ".join(functions) or "no functions"
        raise UsageError(f"{str(file)!r} defines no {name!r}", hint=f"{meant}It defines {found}")


def import_factory_file(file: Path) -> ModuleType:
    """The file as a module registered under its own stem, its folder on `sys.path`.

    So its classes pickle, `inspect.getsource` finds them, and it can import its neighbours. One with relative imports
    is a module of the package that its folder is, and the folder that has the package is on `sys.path`.
    """
    path = file.resolve()
    package = package_of(path, _parse(path))
    name = _module_name(path, package.names)
    before = sys.modules.get(name)
    if package.names:
        around = package.names[:-1] if path.stem == "__init__" else package.names
        import_package(around, path.parents[len(package.names)])
        if (found := sys.modules.get(name)) is not None and found is not before:
            return found  # its package imports it
    put_on_path(path.parent, last=package.is_needed)  # the neighbours of a module in a package hide no others
    places = [str(path.parent)] if package.names and path.stem == "__init__" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    if spec is None or spec.loader is None:
        raise TargetError(f"Python cannot import {str(file)!r}")
    module = importlib.util.module_from_spec(spec)
    with _register_module(module):
        spec.loader.exec_module(module)
    return module


def _module_name(path: Path, package: tuple[str, ...]) -> str:
    """The file's stem, unless another module has that name already: a factory in torch.py must not replace torch."""
    if package:
        return ".".join(package if path.stem == "__init__" else (*package, path.stem))
    taken = sys.modules.get(path.stem)
    theirs = taken is not None and getattr(taken, "__file__", None) != str(path)
    return f"{path.stem}_factory" if theirs else path.stem


def source_hashes(file: Path) -> dict[str, str]:
    """Path relative to the file's folder -> SHA-256, for the file and the neighbours it imports."""
    folder = file.parent
    hashes: dict[str, str] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        name = Path(os.path.relpath(path, folder)).as_posix()
        if name in hashes:
            continue
        hashes[name] = file_identity(str(path))
        waiting.extend(_neighbours(path, folder))
    return dict(sorted(hashes.items()))


@contextmanager
def _register_module(module: ModuleType) -> Iterator[None]:
    """Register the module for good, unless its import fails."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    except BaseException:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before
        raise


def _parse(file: Path) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):  # of odd escapes, say
            return ast.parse(read_file(file), filename=str(file))
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno is not None else ""  # none of null bytes, as UTF-16 has
        raise TargetError(f"{str(file)!r} is not Python: {error.msg}{place}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; a nesting beyond the parser's stack
        raise TargetError(f"{str(file)!r} is not Python: {summary(error)}") from error
    except OSError as error:
        raise UsageError(f"Cannot read {str(file)!r}: {error.strerror}", hint="Give file.py:factory") from error


def _names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The names that the module's own level defines, those under `if`, `try` and `with` included; `*` for any."""
    for node in body:
        match node:
            case ast.FunctionDef(name="__getattr__"):
                yield "*"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case ast.If() | ast.Try() | ast.With() | ast.For():
                yield from _names(
                    child for child in ast.walk(node) if child is not node and isinstance(child, ast.stmt)
                )
            case _:
                names = [child for child in ast.walk(node) if isinstance(child, ast.Name)]
                yield from ("*" if name.id in _DEFINE_ANY else name.id for name in names if _defines(name))


def _writes_into_module(node: ast.AST) -> bool:
    """Whether a function may write into the module's names with this: a decorator that registers others, say."""
    match node:
        case ast.Name(id="globals") | ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
            return True
    return False


def _defines(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store) or name.id in _DEFINE_ANY


def _neighbours(path: Path, folder: Path) -> Iterator[Path]:
    try:
        tree = _parse(path)
    except ExportdoctorError:
        return
    for node in ast.walk(tree):
        place = folder
        match node:
            case ast.ImportFrom(level=up, module=module, names=aliases) if up and up < len(path.parents):
                place = path.parents[up - 1]
                yield from (found for one in path.parents[:up] if (found := one / "__init__.py").is_file())
                start = f"{module}." if module else ""
                dotted = [*filter(None, [module]), *(f"{start}{alias.name}" for alias in aliases)]
            case ast.Import(names=aliases):
                dotted = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module), names=aliases):
                dotted = [module, *(f"{module}.{alias.name}" for alias in aliases)]
            case _:
                continue
        for name in dotted:
            stem = place.joinpath(*name.split("."))
            yield from (found for found in (stem.with_suffix(".py"), stem / "__init__.py") if found.is_file())
