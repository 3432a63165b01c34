"""Names of dynamic axes, of which some say how the axis follows from another: `2*batch`, `cache length + 1`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_DERIVED = re.compile(r"\*| [+-] ")


def is_derived(name: str) -> bool:
    """Whether an axis is named after another."""
    return _DERIVED.search(name) is not None


def group_derived(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The names, each with those derived from it: `2*batch` is dynamic exactly when `batch` is."""
    groups: dict[str, list[str]] = {}
    derived: list[str] = []
    for name in names:
        (derived if is_derived(name) else groups.setdefault(name, [])).append(name)
    for name in derived:
        base = max((one for one in groups if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", name)), key=len, default=name)
        groups.setdefault(base, []).append(name)
    return tuple(tuple(group) for group in groups.values())


def leading_names(names: Iterable[str]) -> list[str]:
    """The names without those derived from another of them, in their order."""
    every = list(names)
    leading = {group[0] for group in group_derived(every)}
    return [name for name in every if name in leading]
