"""What a failure's exceptions and frames say, as the texts that rules are matched against. Torch-free and pure.

Any objects with the right attributes will do. A message is cut where torch starts to quote a stack or to advertise,
so that no rule can match the user's own source by accident; the quoted stack is read as frames instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

# A message may carry a whole graph; what it states stands at its beginning
_LIMIT = 8_000
_QUOTED = re.compile(
    r"\n\s*(?:Caused by:|User Stack|C\+\+ Stack|For C\+\+ stack trace|from user code:|The following call raised|"
    r"For more information, run with TORCH_LOGS=\"dynamic\"|Set TORCHDYNAMO_VERBOSE|Original traceback|"
    r"The error above occurred when calling|To fix the error, insert|You can suppress this exception|"
    r"For more details about this graph break)"
)
_QUOTED_FRAME = re.compile(r'File "([^"\n]+)", line \d+,? in ([^\s,]+)[^\n]*\n([^\n]*)')
# Frames outside of these calls belong to whoever asked for the export
_ENTRANCE = re.compile(r"[/\\]torch[/\\](?:export|onnx)[/\\]__init__\.py$|^torch/(?:export|onnx)/__init__\.py$")
_TORCH_FILE = re.compile(r"(?:site-packages|dist-packages)[/\\](?:torch|functorch)[/\\]|^torch[/\\]")


class ExceptionLike(Protocol):
    """An exception of a chain: its qualified class name and its message."""

    @property
    def type(self) -> str: ...
    @property
    def message(self) -> str: ...


class FrameLike(Protocol):
    """A frame of a stack; `user` is true for code outside torch."""

    @property
    def file(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def user(self) -> bool: ...


@dataclass(frozen=True)
class Said:
    """One exception: the class name without its package, and the part of its message that states what is wrong."""

    name: str
    statement: str


@dataclass(frozen=True)
class Evidence:
    """What there is to go by. Lines are `file:function: source`, outermost first.

    `inner` are the lines from the innermost user frame on; `culprit` is the first of them, empty where there is none.
    """

    said: tuple[Said, ...]
    lines: tuple[str, ...]
    inner: tuple[str, ...]

    @property
    def culprit(self) -> str:
        return self.inner[0] if self.inner else ""

    def says(self, *, names: Sequence[str], pattern: str) -> bool:
        """Whether an exception of one of these classes (of any, where none is named) has a matching statement."""
        return any(
            (not names or one.name in names) and re.search(pattern, one.statement, re.S) is not None
            for one in self.said
        )


def evidence_of(exceptions: Sequence[ExceptionLike], frames: Sequence[FrameLike]) -> Evidence:
    """The evidence in a chain of exceptions, outermost first, and the frames of its stack, innermost last."""
    seen = _inside_the_export(frames)
    marked = [(_line(frame), frame.user) for frame in seen]
    if not any(user for _, user in marked):
        marked += [pair for one in exceptions for pair in _quoted_frames(one.message)]
    users = [index for index, (_, user) in enumerate(marked) if user]
    lines = tuple(line for line, _ in marked)
    return Evidence(
        said=tuple(Said(name=one.type.rpartition(".")[2], statement=_statement(one.message)) for one in exceptions),
        lines=lines,
        inner=lines[users[-1] :] if users else (),
    )


def _inside_the_export(frames: Sequence[FrameLike]) -> Sequence[FrameLike]:
    entrances = [index for index, frame in enumerate(frames) if _ENTRANCE.search(frame.file)]
    return frames[entrances[-1] + 1 :] if entrances else frames


def _line(frame: FrameLike) -> str:
    return f"{frame.file}:{frame.function}: {frame.source.strip()}"


def _statement(message: str) -> str:
    found = _QUOTED.search(message[:_LIMIT])
    return message[: found.start() if found else _LIMIT]


def _quoted_frames(message: str) -> Iterator[tuple[str, bool]]:
    """Dynamo interprets the user's code, so its errors quote the stack that their traceback lacks."""
    for file, function, source in _QUOTED_FRAME.findall(message):
        yield f"{file}:{function}: {source.strip()}", not _TORCH_FILE.search(file) and not file.startswith("<")
