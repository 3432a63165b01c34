"""What the makers of a repro and its processes say to each other: one JSON object a line. Torch-free."""

from __future__ import annotations

import msgspec

from exportdoctor.core.exporters import Exporter
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.target import TargetRef


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A script to run in a fresh copy of a warm process; the answer is an Outcome whose `probe` is this `id`.

    `timeout` is in seconds, `memory_mb` in MiB on top of what the warm process has. With `eager` the module must first
    run without export; where it does not, the failure's stage is `capture`.
    """

    id: str
    source: str
    timeout: float = 20.0
    memory_mb: float = 1000.0
    eager: bool = False


class Harvest(msgspec.Struct, frozen=True, kw_only=True):
    """Build the target, ask `probe` once more and write down what its failure needs.

    A failure with the signature key `signature` may be seen by a short way: by a capture of that one call alone.
    """

    target: TargetRef
    probe: Probe
    signature: str = ""
    logs: str | None = None
    shim_files: tuple[str, ...] = ()


class HarvestReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="say"):
    """From a harvest: first Harvested or Unharvested; then, for each line it is sent, a Draft, at last NoMore."""


class Harvested(HarvestReply, frozen=True, kw_only=True, tag="harvested"):
    """The failure as it was seen again."""

    outcome: Outcome
    exporter: Exporter
    environment: dict[str, str]


class Draft(HarvestReply, frozen=True, kw_only=True, tag="draft"):
    """One self-contained version of the failing code. `what` says how it was made, `notes` what it had to leave in."""

    what: str
    source: str
    notes: tuple[str, ...] = ()


class NoMore(HarvestReply, frozen=True, kw_only=True, tag="no_more"):
    """Every way to write a draft was tried; `notes` tell which failed."""

    notes: tuple[str, ...] = ()


class Unharvested(HarvestReply, frozen=True, kw_only=True, tag="unharvested"):
    """Why there is nothing to reduce."""

    error: str
    hint: str = ""


AnyHarvestReply = Harvested | Draft | NoMore | Unharvested
