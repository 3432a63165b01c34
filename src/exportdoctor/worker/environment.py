"""What outcomes depend on: versions of the packages involved, the content of source files, free memory."""

from __future__ import annotations

import inspect
import linecache
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from typing import Any

import psutil
import torch

from exportdoctor.core.failure.frames import is_local_file
from exportdoctor.core.file_hash import file_sha256
from exportdoctor.core.versions import installed_versions
from exportdoctor.process.graphics_cards import visible_cards
from exportdoctor.worker.read_log import LOG

_first_digest = cache(file_sha256)  # of what was loaded: a later edit changes no outcome of this process
_REPORTED = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "onnx-diagnostic",
             "numpy", "sympy", "exportdoctor")  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages that matter to an export, imported ones before installed ones.

    A copy that PYTHONPATH puts first has no metadata of its own.
    """
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    found |= installed_versions(_REPORTED)
    for name in _REPORTED:
        version = getattr(sys.modules.get(name), "__version__", None)
        found |= {name: str(version)} if version else {}
    if torch.version.cuda and (cards := visible_cards()):  # torch would open a context to ask for the name
        found["cuda"] = torch.version.cuda
        found["gpu"] = cards[0].name
    return found


def sources(model: torch.nn.Module) -> dict[str, str]:
    """All that was read until now and that outcomes may depend on, each with what it was then.

    Every loaded file of the packages that define the model's classes counts by its content.
    """
    packages = {type(module).__module__.partition(".")[0] for module in model.modules()} - {"torch", "builtins"}
    digests = LOG.collect()
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.partition(".")[0] not in packages or not path or not path.endswith(".py"):
            continue
        if os.path.isfile(path) and not is_local_file(path):
            digests[path] = _first_digest(path)
    return digests


def hold_sources() -> None:
    """Keep the text of each loaded file that may change, as it is now: lines and functions are read from it later,
    when its user may have saved another one."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        with suppress(OSError):  # the working folder may be gone
            if type(path) is str and path.endswith(".py") and is_local_file(path):
                _hold(path)


def _hold(path: str) -> None:
    known = linecache.cache.get(path)
    if (known is None or len(known) < 4 or known[1] is not None) and (lines := linecache.getlines(path)):
        linecache.cache[path] = (sum(map(len, lines)), None, lines, path)  # without a time it is not read again


def replaced_functions() -> tuple[tuple[str, str, str], ...]:
    """The functions of torch that an export calls and that code outside torch's folder stands for: names, what stands
    there, and its file. A wrapper that keeps what it wraps counts as that."""
    root = os.path.dirname(torch.__file__) + os.sep
    found = []
    for name, owner in (("torch.export.export", torch.export), ("torch.onnx.export", torch.onnx)):
        function = _innermost(owner.export)
        made = function if inspect.isfunction(function) else type(function)
        path = made.__code__.co_filename if inspect.isfunction(made) else _file_of(made.__module__)
        if path is not None and not path.startswith(root):
            found.append((name, made.__qualname__, path))
    return tuple(found)


def _innermost(function: Any) -> Any:
    """What a wrapper wraps, where it says so; itself where that leads in a circle."""
    try:
        return inspect.unwrap(function) if inspect.isfunction(function) else function
    except ValueError:
        return function


def _file_of(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


def fits_in_memory(parameters: int) -> bool:
    """Whether so many parameters in float32 take at most half of the memory that is free without swapping."""
    return parameters * 4 <= psutil.virtual_memory().available // 2
