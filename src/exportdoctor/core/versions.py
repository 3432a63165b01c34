"""Versions of installed packages, read from their metadata: importing torch takes seconds. Ranges of releases.

A range is such as `>=4.53,<5`. Pre-releases and local versions count as the release they belong to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import metadata

SUPPORTED_VERSIONS = {"torch": ">=2.8", "transformers": ">=4.53"}  # as in pyproject.toml


def installed_version(name: str) -> str:
    """The version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _carried_version() if name == "exportdoctor" else ""


def _carried_version() -> str:
    """The version of an exportdoctor that runs under another interpreter; empty if it has no metadata there either."""
    places = os.environ.get("EXPORTDOCTOR_CARRIED", "").split(os.pathsep)
    found = metadata.distributions(name="exportdoctor", path=[place for place in places if place])
    return next((one.version for one in found), "")


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those that are installed, by name."""
    return {name: version for name in names if (version := installed_version(name))}


def is_range(text: str) -> bool:
    """Whether `text` is a list of bounds, separated by commas."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # imports late: few commands compare versions

    try:
        return bool(str(SpecifierSet(text)))
    except InvalidSpecifier:
        return False


def is_in_range(version: str | None, text: str) -> bool | None:
    """Whether `version` lies within the range; None where either of them can't be read."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        release = Version(version or "").base_version
    except InvalidVersion:
        return None
    return SpecifierSet(text).contains(release) if is_range(text) else None
