"""Targets of a sweep: one exports, one fails, one kills the process that exports it, two wait."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch


class Branch(torch.nn.Module):
    """Asks for a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One more, or one less."""
        if x.sum() > 0:
            return x + 1
        return x - 1


class Segfault(torch.nn.Module):
    """Dies where it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One more."""
        if torch.compiler.is_exporting():
            os.kill(os.getpid(), signal.SIGSEGV)
        return x + 1


def passes() -> Any:
    """A layer."""
    return torch.nn.Linear(2, 2), (torch.zeros(3, 2),)


def refuses() -> Any:
    """What is no target."""
    raise ValueError("no such layer")


def fails() -> Any:
    """A branch."""
    return Branch(), (torch.zeros(3, 2),)


def segfaults() -> Any:
    """A crash."""
    return Segfault(), (torch.zeros(3, 2),)


def waits() -> Any:
    """A layer, once the file that SWEEP_GATE names is there."""
    while not os.path.exists(os.environ["SWEEP_GATE"]):
        time.sleep(0.1)
    return passes()


def hangs() -> Any:
    """Never built."""
    time.sleep(600)
