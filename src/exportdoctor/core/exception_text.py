"""What an exception says, in text of bounded length: the target's own code may run for it, and do anything."""

from __future__ import annotations

LONGEST = 8_000
"""Characters of a message that are read. A message may carry a whole graph; what it states is at its beginning."""


def text_of(value: object, limit: int = LONGEST) -> str:
    """`str(value)`, at most `limit` characters of it in valid UTF-8; what went wrong, where its own code fails."""
    try:
        text = str(value)[:limit]
    except BaseException as broken:  # also an exit
        return f"<message that cannot be read: {class_name(type(broken))}>"
    return text.encode(errors="backslashreplace").decode()


def class_name(kind: type) -> str:
    """The name of a class, also where its metaclass hides it."""
    return str(type.__dict__["__name__"].__get__(kind))


def cause_of(error: BaseException) -> BaseException | None:
    """`error.__cause__`, also where its class hides it."""
    found: BaseException | None = BaseException.__dict__["__cause__"].__get__(error)
    return found


def context_of(error: BaseException) -> BaseException | None:
    """`error.__context__`, also where its class hides it."""
    found: BaseException | None = BaseException.__dict__["__context__"].__get__(error)
    return found


def summary(error: BaseException, *, limit: int = 300) -> str:
    """`ValueError: what it says`, with its first line, at most `limit` characters, cut behind a word; two lines if it
    ends in a colon."""
    lines = [line.strip() for line in text_of(error).strip().splitlines()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    if len(said) > limit:
        words = said[: limit - 1].rpartition(" ")[0]
        said = f"{words or said[: limit - 2]} …"
    return ": ".join(filter(None, (class_name(type(error)), said)))
