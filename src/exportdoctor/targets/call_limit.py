"""An end to calls of a module that take far longer than others did: a loop that values end may have none for others."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from torch import nn

_TIMES, _LEAST_SECONDS, _AGAIN = 50, 3.0, 0.5
"""The limit of a call: so many times the fastest one before, and so many seconds of processor time at least. After it
the call is ended, and again after some time where the model's code catches that."""
_SECONDS: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()
"""The processor time of the fastest call of each module."""


class NoEnd(BaseException):
    """A call takes far longer than others of its module did. No code of the user's catches it with `Exception`."""


@contextmanager
def time_call(module: nn.Module) -> Iterator[None]:
    """Note how much processor time a call of the module takes within it."""
    began = time.process_time()
    yield
    _SECONDS[module] = min(time.process_time() - began, _SECONDS.get(module, math.inf))


@contextmanager
def limit_call(module: nn.Module) -> Iterator[None]:
    """Raises NoEnd within it where a call of the module takes far longer than the fastest one before. There is no limit
    before a call was timed, and in threads, which get no signals."""
    if module not in _SECONDS or threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = []

    def stop(*_: object) -> None:
        ended.append(True)
        raise NoEnd

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, max(_LEAST_SECONDS, _TIMES * _SECONDS[module]), _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if ended:
        raise NoEnd  # the model's code caught it
