"""The texts of a failure that rules are matched against: its exceptions' messages and its frames. Pure.

A message is cut where torch starts to quote a stack or to give advice, so that no rule can match the user's own source
by accident. The quoted stack is read as frames instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from exportdoctor.core.failure.frames import frames_in_text, is_entrance, library_path
from exportdoctor.core.failure.messages import statement
from exportdoctor.core.records.outcome import ExceptionFact, Frame


@dataclass(frozen=True)
class Evidence:
    """The exceptions, outermost first, with what their messages state; lines `file:function: source`, outermost first.

    `inner` are the lines from the innermost user frame on; `culprit` is the first of them, empty where there is none,
    and `evaluated` is the expression that was being evaluated there, or the whole source line where that is not known.
    `library` are the lines of installed libraries, their paths from the library's folder on; `own_code` says whether
    the culprit is in none of them. `guard` is the source of the line that made a violated guard,
    `fixed_by_torch` whether torch's own code fixed the size. `takes` is what the operator that failed was given.
    """

    exceptions: tuple[ExceptionFact, ...]
    lines: tuple[str, ...]
    inner: tuple[str, ...]
    library: tuple[str, ...] = ()
    evaluated: str = ""
    own_code: bool = True
    guard: str = ""
    fixed_by_torch: bool = False
    takes: tuple[str, ...] = ()

    @property
    def culprit(self) -> str:
        return self.inner[0] if self.inner else ""

    @property
    def symbol_numbers(self) -> list[int]:
        """The numbers of what may be names of unbacked symbols in the messages, also within other names."""
        return [int(found) for fact in self.exceptions for found in re.findall(r"u(\d{1,9})", fact.message)]

    def has_exception(self, *, names: Sequence[str], pattern: str) -> bool:
        """Whether an exception of one of these classes (of any, where none is named) states what `pattern` matches."""
        named = (fact for fact in self.exceptions if not names or fact.name in names)
        return any(re.search(pattern, fact.message, re.S) for fact in named)


def evidence_of(
    exceptions: Sequence[ExceptionFact],
    frames: Sequence[Frame],
    guard: Frame | None = None,
    *,
    fixed_by_torch: bool = False,
    takes: tuple[str, ...] = (),
) -> Evidence:
    """The evidence in a chain of exceptions, outermost first, and the frames of its stack, innermost last."""
    entrances = [index for index, frame in enumerate(frames) if is_entrance(frame.file)]
    inside = list(frames[entrances[-1] + 1 :] if entrances else frames)
    if not any(frame.user for frame in inside):  # dynamo interprets the user's code, so its errors quote that stack
        inside += [frame for fact in exceptions for frame in frames_in_text(fact.message)]
    lines = tuple(f"{frame.file}:{frame.function}: {frame.source.strip()}" for frame in inside)
    users = [index for index, frame in enumerate(inside) if frame.user]
    places = [library_path(frame.file) for frame in inside]
    last = users[-1] if users else None
    return Evidence(
        exceptions=tuple(msgspec.structs.replace(fact, message=statement(fact.message)) for fact in exceptions),
        lines=lines,
        inner=lines[last:] if last is not None else (),
        library=tuple(
            f"{place}:{frame.function}: {frame.source.strip()}"
            for place, frame in zip(places, inside, strict=True)
            if place is not None
        ),
        evaluated="" if last is None else inside[last].expression or inside[last].source.strip(),
        own_code=last is not None and places[last] is None,
        guard=guard.source if guard is not None else "",
        fixed_by_torch=fixed_by_torch,
        takes=takes,
    )
