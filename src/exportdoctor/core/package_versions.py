"""Versions of installed packages, read from their metadata: importing torch takes seconds."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata


def installed_version(name: str) -> str:
    """The version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those that are installed, by name."""
    return {name: version for name in names if (version := installed_version(name))}
