"""JSON encoding and decoding of records, with decoding errors as StoreError."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from exportdoctor.core.errors import StoreError
from exportdoctor.core.unsafe_text import UNSAFE

T = TypeVar("T")


def encode(value: object) -> bytes:
    """`value` as one line of JSON, without its newline. A lone surrogate, which UTF-8 does not have, is escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escape_surrogates(msgspec.to_builtins(value)))


def pretty(value: object) -> bytes:
    """`value` as indented JSON with a final newline, for people: what would control their terminal is escaped."""
    text = msgspec.json.format(encode(value), indent=2).decode()
    return UNSAFE.sub(_escape, text).encode() + b"\n"


def _escape(found: re.Match[str]) -> str:
    """A character as JSON escapes it, in units of UTF-16."""
    units = found[0].encode("utf-16-be", errors="surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _escape_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_escape_surrogates(key): _escape_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_escape_surrogates(item) for item in value]
        case _:
            return value


def decode(data: bytes | str, kind: type[T] | Any) -> T:
    """Read JSON as `kind`; unknown keys are ignored, so that files of newer versions stay readable.

    Raises StoreError with the place of the first mismatch.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"not a valid {getattr(kind, '__name__', 'record')}: {error}") from error
