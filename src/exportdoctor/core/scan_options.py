"""How a scan asks: its options."""

from __future__ import annotations

from typing import Literal

import msgspec

from exportdoctor.core.exporters import Exporter


class ScanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a scan asks. `timeout` in seconds, none = found from the first attempt; `jobs` attempts at a time.

    `isolation`: attempts are forks of a warm worker, or made by workers that are replaced after any failure; by default
    forks, unless a CUDA context exists or the platform has none. `modules`: these submodules are asked in place of each
    part's root.
    """

    exporter: Exporter = "export"
    to: str = "export"
    exhaustive: bool = False
    cure: bool = True
    timeout: float | None = None
    memory_mb: float | None = None
    jobs: int = 2
    isolation: Literal["auto", "fork", "process"] = "auto"
    use_cache: bool = True
    allow: tuple[str, ...] = ()
    shim_files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
