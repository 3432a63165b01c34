"""The only place that checks the parts asked for against those that a target has."""

from __future__ import annotations

from difflib import get_close_matches

from exportdoctor.core.errors import UsageError


def choose_parts(asked: tuple[str, ...], *, available: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
    """The parts to scan: those asked for in the target's own order, or the default ones."""
    for name in asked:
        if name not in available:
            near = get_close_matches(name, available, n=1)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"There is no part {name!r}", hint=f"{meant}Parts: {', '.join(available)}")
    return tuple(name for name in available if name in asked) if asked else default
