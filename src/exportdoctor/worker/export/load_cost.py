"""What it takes to load a file and run it once: seconds until it is loaded, and MiB at the peak."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from exportdoctor.worker.mapped_weights import release_mapped_weights

_RESET_PEAK = "5"
"""Written to clear_refs, it sets VmHWM to what the process holds now (man 5 proc)."""


@dataclass
class LoadCost:
    """`peak_mib` is beyond what the process held before; 0.0 where the kernel does not tell it."""

    load_seconds: float = 0.0
    peak_mib: float = 0.0
    _began: float = 0.0

    def note_loaded(self) -> None:
        """To be called as soon as the file is loaded."""
        self.load_seconds = time.perf_counter() - self._began


@contextmanager
def measure_load() -> Iterator[LoadCost]:
    """Within it a file is loaded and run once. What was freed before is given back first, so that it counts again."""
    before = _start_peak()
    cost = LoadCost(_began=time.perf_counter())
    yield cost
    after = _memory_mib("VmHWM") if before else 0.0
    cost.peak_mib = max(0.0, after - before)


def _start_peak() -> float:
    """MiB that the process holds; 0.0 where its peak cannot be set to that."""
    with suppress(OSError, AttributeError):  # no glibc, no Linux, or not allowed
        ctypes.CDLL(None).malloc_trim(0)
        release_mapped_weights()  # the kernel may take them back meanwhile, and the peak would be too small
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        return _memory_mib("VmRSS")
    return 0.0


def _memory_mib(name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0
