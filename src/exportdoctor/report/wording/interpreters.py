"""Sentences about the environments in which commands run."""

from __future__ import annotations

from collections.abc import Mapping


def project_python(path: str, versions: Mapping[str, str]) -> str:
    """The project's own environment is taken."""
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return f"runs under {path} ({found}); --python chooses another"


def project_python_refused(path: str, reason: str) -> str:
    """The project's own environment cannot be taken."""
    return f"{path} is not used: {reason.removeprefix(f'{path} ')}"


def no_lanes() -> str:
    """None was made yet, or none is to be deleted."""
    return "There are no such lanes. Make one with: exportdoctor lanes make --transformers 4.57.1"
