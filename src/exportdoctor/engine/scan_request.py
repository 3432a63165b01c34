"""What a scan is given: the target, how to ask, where logs go and what is known already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exportdoctor.core.outcome import Outcome
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.core.target import TargetRef


@dataclass(frozen=True, kw_only=True)
class ScanRequest:
    """One scan. `answers` maps a probe's id to its outcome, from the same run before it was cut off (resume)."""

    run: str
    target: TargetRef
    options: ScanOptions = field(default_factory=ScanOptions)
    logs: Path | None = None
    answers: Mapping[str, Outcome] = field(default_factory=dict)
    python: str | None = None
