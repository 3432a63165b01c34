"""The events of a run. Progress, the terminal interface, reports, resume and the cache all read this one stream.

Events are appended and never changed; a reader skips the kinds it does not know.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from exportdoctor.core.errors import ExitCode
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.protocol.scan import Captured, Opened
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run.report import AuditRecord, Evidence, ModuleStatus, NumbersCheck, PartVerdict, Prescription
from exportdoctor.core.scan_options import ScanOptions

SCHEMA = "exportdoctor.events/1"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """`at` is seconds since the epoch, when the event was written."""

    at: float = 0.0


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """First line of every file. `python`: the interpreter of `--python`, or of the project; empty for our own."""

    run: str
    target: TargetRef
    options: ScanOptions
    version: str
    schema: str = SCHEMA
    command: tuple[str, ...] = ()
    title: str = ""
    python: str = ""


class RunResumed(Event, frozen=True, kw_only=True, tag="run_resumed"):
    """A later process goes on with this run."""

    version: str


class StepStarted(Event, frozen=True, kw_only=True, tag="stepped"):
    """The scan began a new step; `text` describes it to the user."""

    text: str


class TargetOpened(Event, frozen=True, kw_only=True, tag="target_opened"):
    """The worker has the target in memory."""

    opened: Opened


class PartCaptured(Event, frozen=True, kw_only=True, tag="part_captured"):
    """A part's modules, calls and inputs are known."""

    captured: Captured


class ProbeStarted(Event, frozen=True, kw_only=True, tag="probe_started"):
    """An attempt runs in process `pid`."""

    probe: Probe
    pid: int


class ProbeFinished(Event, frozen=True, kw_only=True, tag="probe_finished"):
    """An attempt has ended. `cached`: it was answered before, in an earlier run or for another part."""

    probe: Probe
    outcome: Outcome
    cached: bool = False


class ModuleJudged(Event, frozen=True, kw_only=True, tag="module_judged"):
    """A verdict for one or more modules of a part; a later one for the same module replaces it."""

    part: str
    fqns: tuple[str, ...]
    status: ModuleStatus
    evidence: Evidence = "asked"
    same_as: str | None = None
    stages: dict[str, str] = {}
    seconds: float = 0.0
    finding: str | None = None
    note: str = ""


class FindingMade(Event, frozen=True, kw_only=True, tag="finding_made"):
    """A finding, new or with more known of it; it replaces the one with the same id."""

    finding: Finding


class PartFinished(Event, frozen=True, kw_only=True, tag="part_finished"):
    """A part's verdict; of the submodules in `only` where they alone were asked."""

    part: str
    verdict: PartVerdict
    exporter: str
    seconds: float
    asked: int
    prescription: Prescription | None = None
    only: tuple[str, ...] = ()
    audit: AuditRecord | None = None
    numbers: NumbersCheck | None = None
    lost_writes: tuple[str, ...] = ()
    is_random: bool = False


class NoteAdded(Event, frozen=True, kw_only=True, tag="noted"):
    """Something a reader of the report should know."""

    text: str


class RunFinished(Event, frozen=True, kw_only=True, tag="run_finished"):
    """Last line of a run that ended by itself. `exit_code` is the process's."""

    exit_code: int
    seconds: float
    peak_rss_mb: float = 0.0
    complete: bool = True
    error: str | None = None

    @property
    def status(self) -> Literal["finished", "error", "cut off"]:
        """How the run ended; `error`: by one of its target, its options or exportdoctor, and nobody interrupted it."""
        if self.complete:
            return "finished"
        return "error" if self.exit_code in (ExitCode.USAGE, ExitCode.TARGET, ExitCode.INTERNAL) else "cut off"


AnyEvent = (
    RunStarted
    | RunResumed
    | StepStarted
    | TargetOpened
    | PartCaptured
    | ProbeStarted
    | ProbeFinished
    | ModuleJudged
    | FindingMade
    | PartFinished
    | NoteAdded
    | RunFinished
)
