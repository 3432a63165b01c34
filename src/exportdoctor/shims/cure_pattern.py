"""Patterns of failures that a shim may cure, and what they are matched against.

A match proposes a shim; only an attempt under the shim shows whether it cures the failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exportdoctor.core.errors import did_you_mean
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.kinds import KINDS, FailureKind
from exportdoctor.core.records.outcome import Failure, Frame


@dataclass(frozen=True, kw_only=True)
class FailureView:
    """A failure as patterns see it.

    Lines are `file:function: source`; `born` are the lines that created unbacked symbols, by `operators`.
    `of_constants`: the value that the failure is about follows from no input and no state. `guards` are the lines that
    made the guards which declared dimensions violate.
    """

    kind: FailureKind
    exporter: str = "export"
    messages: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    born: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    of_constants: bool = False
    guards: tuple[str, ...] = ()


def seen_in_failure(failure: Failure, *, kind: FailureKind, exporter: str = "export") -> FailureView:
    """What an outcome's failure shows."""
    return FailureView(
        kind=kind,
        exporter=exporter,
        messages=tuple(f"{fact.name}: {fact.message}" for fact in failure.exceptions),
        lines=_lines(failure.frames),
        born=_lines(origin.frame for origin in failure.origins if origin.frame is not None),
        operators=tuple(origin.op for origin in failure.origins if origin.op is not None),
        of_constants=failure.slice is not None and failure.slice.of_constants,
        guards=_lines(one for one in (failure.guard, *(each.guard for each in failure.violations)) if one is not None),
    )


@dataclass(frozen=True, kw_only=True)
class Cure:
    """A pattern: everything that is given must match. Empty `kinds` or `exporters` match any.

    `kinds` are values of `FailureKind` and `exporters` keys of `EXPORTERS`, written as strings; others are refused.
    `message` and `where` are regular expressions, searched in the exceptions' messages and in the lines of the stack or
    of symbol origins; `born` is one in the lines of symbol origins alone, `operator` one in the names of the operators
    that created unbacked symbols, and `guard` one in the lines of violated guards. With `of_constants`, the failure
    must be about a value that follows from no input and no state.
    """

    kinds: tuple[str, ...] = ()
    message: str = ""
    where: str = ""
    born: str = ""
    operator: str = ""
    guard: str = ""
    exporters: tuple[str, ...] = ()
    of_constants: bool = False

    def __post_init__(self) -> None:
        _require_known("kinds", self.kinds, [kind.value for kind in KINDS])
        _require_known("exporters", self.exporters, list(EXPORTERS))

    def matches(self, seen: FailureView) -> bool:
        """Whether the failure has everything that the pattern requires."""
        return (
            (not self.kinds or seen.kind in self.kinds)
            and (not self.exporters or seen.exporter in self.exporters)
            and (not self.message or _any(self.message, seen.messages))
            and (not self.where or _any(self.where, (*seen.lines, *seen.born)))
            and (not self.born or _any(self.born, seen.born))
            and (not self.of_constants or seen.of_constants)
            and (not self.guard or _any(self.guard, seen.guards))
            and (not self.operator or _any(self.operator, seen.operators))
        )


def _require_known(field: str, values: tuple[str, ...], known: Sequence[str]) -> None:
    """Raises ValueError for a value that no failure has, because such a pattern would never match."""
    if isinstance(values, str):
        raise ValueError(f"Cure.{field} is the string {values!r}, and must be a tuple")
    for value in values:
        if value not in known:
            raise ValueError(
                f"Cure.{field} has {value!r}. {did_you_mean(value, known)}The {field} are {', '.join(known)}"
            )


def _any(pattern: str, texts: Sequence[str]) -> bool:
    return any(re.search(pattern, text, re.S) for text in texts)


def _lines(frames: Iterable[Frame]) -> tuple[str, ...]:
    return tuple(f"{frame.file}:{frame.function}: {frame.source.strip()}" for frame in frames)
