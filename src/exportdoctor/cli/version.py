"""The version, from the installed metadata; a bare source tree has none."""

from __future__ import annotations

import platform
from importlib import metadata


def version() -> str:
    """exportdoctor's own version."""
    try:
        return metadata.version("exportdoctor")
    except metadata.PackageNotFoundError:
        return "0+source"


def version_line() -> str:
    """Version, interpreter, and the packages that decide what an export does, without importing them."""
    others = [f"{name} {found}" for name in ("torch", "transformers") if (found := _installed(name))]
    return " · ".join((f"exportdoctor {version()}", f"Python {platform.python_version()}", *others))


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
