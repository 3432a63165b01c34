"""Whose code a frame of a stack is, by its file's name: the user's, torch's and its tracer's, Python's or our own.

The user's code is everything else: the model, and the libraries that it is made of, such as transformers.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from exportdoctor.core.records.outcome import Frame

OUR_FOLDER = (
    str(Path(__file__).resolve().parents[2]) + os.sep
    if __name__.startswith("exportdoctor.")
    else str(Path(__file__).resolve())  # carried into a file of shims: what lies beside it is the user's
)
TRACER_PACKAGES = frozenset({
    "torch", "functorch", "torchgen", "sympy", "mpmath", "numpy", "networkx", "optree",
    "typing_extensions", "opt_einsum", "filelock", "fsspec", "jinja2", "yaml",
})  # fmt: skip
"""Packages that torch requires and its tracer calls into or imports at first use: a frame of theirs is not the user's,
wherever they are installed."""

_STDLIB = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_TORCH_BY_NAME = re.compile(r"torch[/\\]")  # dynamo and stored stacks shorten paths so
_ENTRANCE = re.compile(r"(?:^|[/\\])torch[/\\](?:export|onnx)[/\\]__init__\.py$")
_HIGHER_ORDER = re.compile(r"[/\\]torch[/\\]_higher_order_ops[/\\]")
_INSIDE_ENTRANCE = re.compile(r"[/\\]torch[/\\](?:export|onnx)[/\\]")
_QUOTED_FRAME = re.compile(r'File "([^"\n]+)", line (\d+),? in ([^\s,]+)[^\n]*(?:\n([^\n]*))?')


@cache
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def _real_path(path: str) -> str:
    """As `os.path.realpath`, which looks at every folder above a file each time."""
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    found = os.path.join(_real_folder(folder), name)
    return os.path.realpath(found) if os.path.islink(found) else found


@lru_cache(maxsize=4096)
def is_user_file(path: str) -> bool:
    """Whether code of this file is the user's. Generated code, whose file is called `<...>`, is not."""
    if path.startswith("<") or _TORCH_BY_NAME.match(path):
        return False
    real = _real_path(path)
    if real.startswith((OUR_FOLDER, _torch_folder())):
        return False
    package = installed_package(real)
    return package not in TRACER_PACKAGES if package else not real.startswith(_STDLIB)


def installed_package(path: str) -> str:
    """The installed package that a file is of; empty for any other file."""
    found = _INSTALLED.search(path)
    return found[1].removesuffix(".py") if found else ""


@cache
def _torch_folder() -> str:
    """Where torch is, which a checkout of its sources has elsewhere than among the installed packages."""
    spec = find_spec("torch")
    return os.path.dirname(os.path.realpath(spec.origin)) + os.sep if spec and spec.origin else os.sep + os.sep


@cache
def is_local_file(path: str) -> bool:
    """Whether this file is neither installed, nor Python's, nor exportdoctor's: it may change from run to run."""
    real = _real_path(path)
    return not _INSTALLED.search(real) and not real.startswith((_STDLIB, OUR_FOLDER))


def is_defined_in_torch(value: Any) -> bool:
    """Whether a class or function is torch's, by the module that it was defined in."""
    return str(value.__module__).partition(".")[0] == "torch"


def library_path(path: str) -> str | None:
    """The path of an installed library's file from the library's own folder on; None for any other file.

    Stored and shortened stacks hold paths that begin there.
    """
    real = path.replace("\\", "/")
    parts = _INSTALLED.split(real)
    if len(parts) > 1:
        return f"{parts[-2]}{parts[-1]}"
    return real if "/" in real and not real.startswith(("/", ".", "<")) and ":" not in real else None


def is_our_file(path: str) -> bool:
    """Whether code of this file is exportdoctor's."""
    return path.startswith(OUR_FOLDER)


def is_entrance(path: str) -> bool:
    """Whether a frame of this file is the call of `torch.export` or `torch.onnx` that the stack goes through."""
    return _ENTRANCE.search(path) is not None


def is_inside_entrance(path: str) -> bool:
    """Whether this file is part of `torch.export` or `torch.onnx`, which a dump of all threads shows from there on."""
    return _INSIDE_ENTRANCE.search(path) is not None


def is_of_higher_order_op(path: str) -> bool:
    """Whether this file implements an operator that takes functions, such as `torch.cond`."""
    return _HIGHER_ORDER.search(path) is not None


def frames_in_text(text: str) -> Iterator[Frame]:
    """The frames of a stack that is printed or quoted in `text`, in its order."""
    for file, line, function, source in _QUOTED_FRAME.findall(text):
        yield Frame(file=file, line=int(line), function=function, source=source.strip(), user=is_user_file(file))
