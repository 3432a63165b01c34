"""What changed between two tables of names and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Made = TypeVar("Made")


def find_changes(make: Callable[..., Made], before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Made, ...]:
    """A record of each name whose value differs, with `what`, `before` and `after`; empty is what does not exist."""
    return tuple(
        make(what=name, before=before.get(name, ""), after=after.get(name, ""))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    )
