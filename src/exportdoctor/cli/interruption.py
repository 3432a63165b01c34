"""Ctrl-C, SIGTERM and a closed terminal: the first stops the work cleanly, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

from exportdoctor.core.errors import ExitCode

_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
_SHOW_CURSOR = b"\x1b[?25h"
_TWICE, _TWICE_BY_HAND = 1.0, 0.1
"""Seconds within which a second signal is the first one again: `timeout` sends each to the process and to its group.
Less of a signal that people send, too."""


class Interruption:
    """While active, the first of these signals raises KeyboardInterrupt in the main thread. One that whoever started
    the process has it ignore, as `nohup` does, stays ignored. In other threads nothing changes."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interruption:
        for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - self._first < (_TWICE_BY_HAND if number == signal.SIGINT else _TWICE):
            return
        if sys.stderr.isatty():
            os.write(2, _SHOW_CURSOR + b"\n")
        os._exit(ExitCode.INTERRUPTED)
