"""An answer about a finding on other versions, as it is kept."""

from __future__ import annotations

import time

import msgspec

from exportdoctor.core.run.lane_matrix import CellState


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `issues` are ids of known issues that the finding is linked to; `at` seconds since the epoch."""

    script: str
    issues: tuple[str, ...]
    versions: dict[str, str]
    state: CellState
    at: float

    @property
    def day(self) -> str:
        """The date, in UTC."""
        return time.strftime("%Y-%m-%d", time.gmtime(self.at))
