"""Shims of the user: files given on the command line and entry points `exportdoctor.shims`.

A file has `SHIMS`, a tuple of Shim, or Shim objects at its top level, and may import what lies beside it. If it cannot
be loaded, it is skipped.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from exportdoctor.core.errors import UsageError
from exportdoctor.core.exception_text import summary
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Shim

PROVIDER = "user"
GROUP = "exportdoctor.shims"


def shims_of_files(paths: Sequence[str]) -> tuple[Shim, ...]:
    """The shims of these files. Raises UsageError where a file is missing, can't be imported, or has none."""
    return tuple(shim for path in paths for shim in _of_file(path))


def shims_of_entry_points() -> tuple[Shim, ...]:
    """The shims of installed packages; one that can't be loaded is listed with its reason."""
    return tuple(shim for point in importlib.metadata.entry_points(group=GROUP) for shim in _of_point(point))


def _of_file(path: str) -> tuple[Shim, ...]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"There is no file {path}", hint="Give a Python file that defines a tuple SHIMS")
    try:
        found = tuple(_in_module(_import_file(file)))
    except BaseException as error:  # also what would end the process
        raise UsageError(f"{path} can't be imported: {summary(error, limit=1000)}", hint="Fix the file") from error
    if not found:
        raise UsageError(f"{path} defines no shims", hint="Define a tuple SHIMS of exportdoctor.shims.Shim")
    return tuple(replace(shim, provider=PROVIDER, file=str(file.absolute())) for shim in found)


def _import_file(file: Path) -> ModuleType:
    name = f"exportdoctor_user_shims_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles in it look it up by name
    if (folder := str(file.absolute().parent)) not in sys.path:
        sys.path.append(folder)  # for what lies beside it, which the shim may also import later
    spec.loader.exec_module(module)
    return module


def _in_module(module: Any) -> Iterator[Shim]:
    listed: Iterable[Any] | None = getattr(module, "SHIMS", None)
    for value in listed if listed is not None else vars(module).values():
        if isinstance(value, Shim):
            yield value
        elif listed is not None:
            raise TypeError(f"SHIMS holds a {type(value).__name__}, which is no Shim")


def _of_point(point: importlib.metadata.EntryPoint) -> tuple[Shim, ...]:
    try:
        loaded = point.load()
        given = (loaded,) if isinstance(loaded, Shim) else tuple(_in_module(_Listed(loaded)))
        return tuple(replace(shim, provider=PROVIDER) for shim in given)
    except Exception as error:
        return (_broken_shim(point, error),)


class _Listed:
    def __init__(self, found: Any) -> None:
        self.SHIMS = getattr(found, "SHIMS", found)


def _broken_shim(point: importlib.metadata.EntryPoint, error: Exception) -> Shim:
    def enter(call: ExportCall) -> AbstractContextManager[ExportCall]:
        raise NotApplicable("it could not be loaded")

    return Shim(
        id=point.name,
        title=f"The shims of {point.value}",
        soundness="precondition",
        provider=PROVIDER,
        enter=enter,
        problem=f"{point.value} can't be loaded: {summary(error)}",
    )
