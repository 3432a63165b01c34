"""Versions of installed packages, and the check for packages that an option needs. Imports none of them."""

from __future__ import annotations

import platform
from importlib import util

from exportdoctor.core.errors import UsageError
from exportdoctor.core.versions import installed_version

PACKAGES_OF = {"onnx": ("onnx", "onnxscript"), "ort": ("onnx", "onnxscript", "onnxruntime")}
"""The modules that `--to` needs beside torch."""


def version() -> str:
    """exportdoctor's own version; `0+source` for a source tree that is not installed."""
    return installed_version("exportdoctor") or "0+source"


def version_line() -> str:
    """Versions of exportdoctor, Python, torch and transformers."""
    others = [f"{name} {found}" for name in ("torch", "transformers") if (found := installed_version(name))]
    return " · ".join((f"exportdoctor {version()}", f"Python {platform.python_version()}", *others))


def require_packages(names: tuple[str, ...], *, option: str, extra: str) -> None:
    """Raises UsageError if one of the modules `names`, which `option` needs, cannot be imported."""
    missing = [name for name in names if not _is_importable(name)]
    if missing:
        raise UsageError(
            f"{option} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"pip install 'exportdoctor[{extra}]'",
        )


def _is_importable(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except ValueError:  # sys.modules holds None for it
        return False
