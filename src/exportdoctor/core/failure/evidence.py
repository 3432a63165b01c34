"""The texts of a failure that rules are matched against: its exceptions' messages and its frames. Pure.

A message is cut where torch starts to quote a stack or to give advice, so that no rule can match the user's own source
by accident. The quoted stack is read as frames instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from exportdoctor.core.failure.frames import frames_in_text, is_entrance, is_user_file
from exportdoctor.core.failure.messages import statement


class ExceptionLike(Protocol):
    """An exception of a chain: its qualified class name and its message."""

    @property
    def type(self) -> str: ...
    @property
    def message(self) -> str: ...


class LineLike(Protocol):
    """A line of a stack: its file, function and source."""

    @property
    def file(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def source(self) -> str: ...


class FrameLike(LineLike, Protocol):
    """A frame of a stack; `user` is true for code outside torch."""

    @property
    def user(self) -> bool: ...


@dataclass(frozen=True)
class Message:
    """One exception: the class name without its package, and the part of its message that states what is wrong."""

    name: str
    statement: str


@dataclass(frozen=True)
class Evidence:
    """What there is to go by. Lines are `file:function: source`, outermost first.

    `inner` are the lines from the innermost user frame on; `culprit` is the first of them, empty where there is none.
    """

    messages: tuple[Message, ...]
    lines: tuple[str, ...]
    inner: tuple[str, ...]

    @property
    def culprit(self) -> str:
        return self.inner[0] if self.inner else ""

    def has_message(self, *, names: Sequence[str], pattern: str) -> bool:
        """Whether an exception of one of these classes (of any, where none is named) has a matching statement."""
        return any(
            (not names or one.name in names) and re.search(pattern, one.statement, re.S) is not None
            for one in self.messages
        )


def evidence_of(exceptions: Sequence[ExceptionLike], frames: Sequence[FrameLike]) -> Evidence:
    """The evidence in a chain of exceptions, outermost first, and the frames of its stack, innermost last."""
    marked = [(_line(frame), frame.user) for frame in _inside_the_export(frames)]
    if not any(user for _, user in marked):  # dynamo interprets the user's code, so its errors quote that stack
        marked += [
            (_line(frame), is_user_file(frame.file)) for one in exceptions for frame in frames_in_text(one.message)
        ]
    users = [index for index, (_, user) in enumerate(marked) if user]
    lines = tuple(line for line, _ in marked)
    return Evidence(
        messages=tuple(
            Message(name=one.type.rpartition(".")[2], statement=statement(one.message)) for one in exceptions
        ),
        lines=lines,
        inner=lines[users[-1] :] if users else (),
    )


def _inside_the_export(frames: Sequence[FrameLike]) -> Sequence[FrameLike]:
    entrances = [index for index, frame in enumerate(frames) if is_entrance(frame.file)]
    return frames[entrances[-1] + 1 :] if entrances else frames


def _line(frame: LineLike) -> str:
    return f"{frame.file}:{frame.function}: {frame.source.strip()}"
