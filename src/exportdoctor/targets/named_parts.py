"""The only place that checks the parts asked for against those that a target has."""

from __future__ import annotations

from exportdoctor.core.errors import UsageError, did_you_mean


def choose_parts(asked: tuple[str, ...], *, available: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
    """The parts to scan: those asked for in the target's own order, or the default ones."""
    for name in asked:
        if name not in available:
            hint = f"{did_you_mean(name, available)}Parts: {', '.join(available)}"
            raise UsageError(f"There is no part {name!r}", hint=hint)
    return tuple(name for name in available if name in asked) if asked else default
