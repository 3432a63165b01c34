"""What the answers rest on: versions of the packages involved and the content of the source files."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache

import torch

from exportdoctor.core.failure.frames import is_local_file
from exportdoctor.core.file_hash import file_sha256
from exportdoctor.core.package_versions import installed_versions

_REPORTED = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "onnx-diagnostic",
             "numpy", "sympy", "exportdoctor")  # fmt: skip


def versions() -> dict[str, str]:
    """Python, platform and the installed versions of what matters to an export."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    found |= installed_versions(_REPORTED)
    found["torch"] = str(torch.__version__)
    if torch.version.cuda and torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["gpu"] = torch.cuda.get_device_name(0)
    return found


def sources(model: torch.nn.Module) -> dict[str, str]:
    """SHA-256 of each loaded source file that the answers may depend on.

    These are the user's own files, and every loaded file of the packages that define the model's classes. Other
    installed packages count by their version.
    """
    packages = {type(module).__module__.partition(".")[0] for module in model.modules()} - {"torch", "builtins"}
    digests = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not path or not path.endswith(".py") or not os.path.isfile(path):
            continue
        if name.partition(".")[0] in packages or is_local_file(path):
            digests[path] = file_digest(path)
    return digests


@cache
def file_digest(path: str) -> str:
    """SHA-256 of a file's content at the first call, in hexadecimal."""
    return file_sha256(path)


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)
