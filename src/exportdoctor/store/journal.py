"""Writes and reads a run's `events.jsonl`.

An event is one line, appended by one write; a file cut off at any byte still reads as a prefix of its events.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_args

import msgspec

from exportdoctor.core.codec import encode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.run.events import SCHEMA, AnyEvent
from exportdoctor.store.atomic_write import refusal

NAME = "events.jsonl"
_OPENING = b'{"event":"run_started"'
_KINDS = {kind.__struct_config__.tag: kind for kind in get_args(AnyEvent)}
# one decoder for all lines: making it anew for each line costs more than decoding does
_decode_event = msgspec.json.Decoder(AnyEvent).decode


class _Head(msgspec.Struct):
    """What every line of every version has."""

    event: str
    schema: str = SCHEMA


_decode_head = msgspec.json.Decoder(_Head).decode


class Journal:
    """The writing end. Raises StoreError where the disk refuses; the file then ends with the last whole line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # a pipe without a reader is refused and not waited for
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise refusal(path, error) from error

    def append(self, event: AnyEvent) -> None:
        """Write one event; when this returns, the operating system has it and a killed process does not lose it."""
        line = encode(event) + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            while written < len(line):  # a nearly full disk takes a part and refuses the rest on the next call
                written += os.write(self._file, line[written:])
        except OSError as error:
            with suppress(OSError):  # what is left is a torn line, which every reader drops
                os.ftruncate(self._file, size)
            raise refusal(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class EventReader:
    """The reading end, for a finished file as for one that grows. `offset` = bytes of the whole lines read so far.

    `only` names the kinds wanted; the others are passed over without being decoded.
    """

    def __init__(self, path: Path, *, only: Iterable[str] = ()) -> None:
        self.path = path
        self.offset = 0
        self.lines = 0
        self._wanted = tuple(f'{{"event":"{kind}"'.encode() for kind in only)

    def read_new(self) -> tuple[AnyEvent, ...]:
        """The events that were appended since the last call; a torn last line waits for its rest.

        Raises StoreError for a file that is missing, foreign, damaged in the middle, or of a newer schema.
        """
        return tuple(self._events(self._read()))

    def _read(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                return file.read()
        except OSError as error:
            raise refusal(self.path, error, doing="read") from error

    def _events(self, data: bytes) -> Iterator[AnyEvent]:
        if self.lines == 0:
            self._check_opening(data)
        start = 0
        while end := data.find(b"\n", start) + 1:
            line = data[start : end - 1]
            try:
                event = self._decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if end == len(data):
                    return  # a power cut can leave a last line of zeros: as good as torn
                whole = f"The {self.lines} lines before it are whole: a copy of them alone is a run that can be resumed"
                hint = whole if self.lines else ""
                raise StoreError(f"{self.path}, line {self.lines + 1} is damaged: {error}", hint=hint) from error
            start = end
            self.offset += len(line) + 1
            self.lines += 1
            if event is not None:
                yield event

    def _decode(self, line: bytes) -> AnyEvent | None:
        """The line's event; None for a kind that is not wanted or that this version does not know."""
        if self._wanted and not line.startswith(self._wanted) and line.startswith(b'{"event":"'):
            return None
        if _decode_head(line).event not in _KINDS:
            return None
        event: AnyEvent = _decode_event(line)
        return event

    def _check_opening(self, data: bytes) -> None:
        """Refuse a file that is not ours, or that a later version wrote in another way."""
        line, newline, _ = data.partition(b"\n")
        if not newline:
            if not (line.startswith(_OPENING) or _OPENING.startswith(line)):
                raise foreign(self.path)
            return
        try:
            head = _decode_head(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise foreign(self.path) from error
        if head.event != "run_started":
            raise foreign(self.path)
        if head.schema != SCHEMA:
            raise StoreError(
                f"{self.path} has schema {head.schema}, but this version reads {SCHEMA}",
                hint="Use the version of exportdoctor that wrote it, or scan again",
            )


def foreign(path: Path) -> StoreError:
    """The error for a file that no version of exportdoctor wrote."""
    return StoreError(
        f"{path} was not written by exportdoctor", hint="Give the folder of a run; see: exportdoctor runs"
    )


def read_events(path: Path, *, only: Iterable[str] = ()) -> tuple[AnyEvent, ...]:
    """All whole events of the file at `path`; the errors are EventReader's."""
    return EventReader(path, only=only).read_new()
