"""What the makers of a repro and its processes say to each other: one JSON object a line. Torch-free."""

from __future__ import annotations

import msgspec

from exportdoctor.core.outcome import Exporter, Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.target import TargetRef


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A script to run in a fresh copy of a warm process; the answer is an Outcome whose `probe` is this `id`.

    `timeout` is in seconds, `memory_mb` in MiB on top of what the warm process has.
    """

    id: str
    source: str
    timeout: float = 20.0
    memory_mb: float = 1000.0


class Harvest(msgspec.Struct, frozen=True, kw_only=True):
    """Build the target, ask `probe` once more and write down what its failure needs."""

    target: TargetRef
    probe: Probe
    logs: str | None = None
    shim_files: tuple[str, ...] = ()


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """One self-contained version of the failing code. `what` says how it was made, `notes` what it had to leave in."""

    what: str
    source: str
    notes: tuple[str, ...] = ()


class Harvested(msgspec.Struct, frozen=True, kw_only=True):
    """The failure as it was seen again, and drafts of it, the most promising first."""

    outcome: Outcome
    exporter: Exporter
    drafts: tuple[Draft, ...]
    environment: dict[str, str]
    notes: tuple[str, ...] = ()


class Unharvested(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is nothing to reduce."""

    error: str
    hint: str = ""
