"""Runs an ONNX file in a process of its own: ONNX Runtime's native code may end it, at sizes of zero for one."""

from __future__ import annotations

import contextlib
import io
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from exportdoctor.core.exception_text import summary
from exportdoctor.process.group import name_exit
from exportdoctor.worker.child import Child, fork
from exportdoctor.worker.translate.onnx_session import OnnxSession

_LENGTH = struct.Struct("<Q")


class OnnxRuntimeError(Exception):
    """What ONNX Runtime raised, its class first; or that it ended its process."""


class OnnxProcess:
    """A file on the CPU, loaded in a fork of this process; after its end the next run starts another."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._child: Child | None = None

    def __del__(self) -> None:
        self.close()

    def run(self, inputs: Sequence[torch.Tensor | float]) -> list[torch.Tensor]:
        """The outputs, for inputs in the file's order. Raises OnnxRuntimeError."""
        if self._child is None:
            self._start()
        with contextlib.suppress(OSError):
            _write(self._requests, list(inputs))
            answer = _read(self._answers)
            if isinstance(answer, str):
                raise OnnxRuntimeError(answer)
            if answer is not None:
                return answer
        raise OnnxRuntimeError(f"it ended its process ({name_exit(self.close())})")

    def close(self) -> int | None:
        """End the process; returns its exit status, as `subprocess` gives it."""
        if self._child is None:
            return None
        child, self._child = self._child, None
        for stream in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                stream.close()
        return child.end()  # a process that was forked later holds its requests open: it may never see their end

    def _start(self) -> None:
        reader, writer = os.pipe()
        child = fork(lambda pipe: _serve(self.file, reader, pipe), close=(writer,))
        os.close(reader)
        os.set_blocking(child.pipe, True)
        self._child, self._requests, self._answers = child, os.fdopen(writer, "wb"), os.fdopen(child.pipe, "rb")


def _serve(file: Path, reader: int, pipe: int) -> bytes:
    session = OnnxSession(file)
    torch.set_num_threads(1)  # libgomp's threads do not survive a fork
    with os.fdopen(reader, "rb") as requests, os.fdopen(os.dup(pipe), "wb") as answers:
        while isinstance(inputs := _read(requests), list):
            try:
                _write(answers, session.run(inputs))
            except Exception as error:
                _write(answers, summary(error))
    return b""


def _write(stream: BinaryIO, value: list[torch.Tensor | float] | list[torch.Tensor] | str) -> None:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    stream.write(_LENGTH.pack(buffer.tell()))
    stream.write(buffer.getbuffer())
    stream.flush()


def _read(stream: BinaryIO) -> list[torch.Tensor] | str | None:
    """The next value; None at the end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return None if len(data) < length else torch.load(io.BytesIO(data))
