"""What a shim's patterns are matched against, and the match. Pure; a match is a hint, never a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.finding import Finding
from exportdoctor.core.outcome import Birth, Failure, Frame


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A failure as patterns see it. Lines are `file:function: source`; `born` are those that made unbacked symbols."""

    kind: FailureKind
    exporter: str = "export"
    messages: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    born: tuple[str, ...] = ()


def seen_in_failure(failure: Failure, *, kind: FailureKind, exporter: str = "export") -> Seen:
    """What an outcome's failure shows."""
    return Seen(
        kind=kind,
        exporter=exporter,
        messages=tuple(f"{fact.name}: {fact.message}" for fact in failure.exceptions),
        lines=_lines(failure.frames),
        born=_born(failure.births),
    )


def seen_in_finding(finding: Finding, *, exporter: str = "export") -> Seen:
    """What a finding shows."""
    own = f"{finding.exception.type.rpartition('.')[2]}: {finding.exception.message}"
    place = f"{finding.file}:{finding.function}: {finding.source}"
    return Seen(
        kind=finding.kind,
        exporter=exporter,
        messages=(own, *finding.exception.causes),
        lines=(*_lines(finding.stack), place),
        born=_born(finding.born),
    )


@dataclass(frozen=True, kw_only=True)
class Cure:
    """A pattern: all that is given must be there. Empty `kinds` or `exporters` = any.
    `kinds` are values of `FailureKind`, written as strings.

    `where` is a regular expression searched in the lines of the stack and in those where unbacked symbols were born.
    """

    kinds: tuple[str, ...] = ()
    message: str = ""
    where: str = ""
    exporters: tuple[str, ...] = ()

    def matches(self, seen: Seen) -> bool:
        """Whether the failure has everything that the pattern asks for."""
        return (
            (not self.kinds or seen.kind in self.kinds)
            and (not self.exporters or seen.exporter in self.exporters)
            and (not self.message or _any(self.message, seen.messages))
            and (not self.where or _any(self.where, (*seen.lines, *seen.born)))
        )


def _any(pattern: str, texts: Sequence[str]) -> bool:
    return any(re.search(pattern, text, re.S) for text in texts)


def _lines(frames: Iterable[Frame]) -> tuple[str, ...]:
    return tuple(f"{frame.file}:{frame.function}: {frame.source.strip()}" for frame in frames)


def _born(births: Iterable[Birth]) -> tuple[str, ...]:
    return _lines(birth.frame for birth in births if birth.frame is not None)
