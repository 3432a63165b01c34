"""The protocols of `exportdoctor repro` and its two workers: one JSON object a line.

The candidate server answers each Candidate with an Outcome. The draft server answers a DraftRequest with
ReproducedFailure or Refused, after some BuildSteps; then each further line that it is sent with a ScriptDraft, at last
with NoMoreDrafts. Every reply waits for such a line.
"""

from __future__ import annotations

import msgspec

from exportdoctor.core.exporters import Exporter
from exportdoctor.core.limits import CANDIDATE_MB, CANDIDATE_SECONDS
from exportdoctor.core.protocol.reply import Refused, Reply
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef

CANDIDATE_FILE = "/repro/repro.py"
"""The file name that a candidate's frames have."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A script to run in a forked copy of a warm process; the answer is an Outcome whose `probe` is this `id`.

    `timeout` is in seconds, `memory_mb` in MiB on top of what the warm process has. With `eager` the module must first
    run without export; where it does not, the failure's stage is `capture`.
    """

    id: str
    source: str
    timeout: float = CANDIDATE_SECONDS
    memory_mb: float = CANDIDATE_MB
    eager: bool = False


class DraftRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Build the target, attempt `probe` once more, and write scripts that hold what its failure needs.

    Where `signature`, a signature's key, is given, a capture of that one call alone is tried first.
    """

    target: TargetRef
    probe: Probe
    signature: str = ""
    logs: str | None = None
    shim_files: tuple[str, ...] = ()


class BuildStep(Reply, frozen=True, kw_only=True, tag="build_step"):
    """The target is built or captured now, or (`is_over`) an attempt runs, which has limits of its own."""

    is_over: bool


class ReproducedFailure(Reply, frozen=True, kw_only=True, tag="reproduced"):
    """The failure, as a fresh attempt showed it."""

    outcome: Outcome
    exporter: Exporter
    environment: dict[str, str]


class ImportNote(msgspec.Struct, frozen=True, kw_only=True):
    """The note on a name whose code cannot be copied, so that a script imports it from `module`."""

    module: str
    text: str


class ScriptDraft(Reply, frozen=True, kw_only=True, tag="draft"):
    """A self-contained version of the failing code.

    `what` is how it was made, `notes` what it had to leave in; `remarks` belong into the script's head.
    """

    what: str
    source: str
    notes: tuple[str, ...] = ()
    imports: tuple[ImportNote, ...] = ()
    remarks: tuple[str, ...] = ()


class NoMoreDrafts(Reply, frozen=True, kw_only=True, tag="no_more"):
    """Every way to write a draft was tried; `notes` name those that failed."""

    notes: tuple[str, ...] = ()


DraftReply = BuildStep | ReproducedFailure | ScriptDraft | NoMoreDrafts | Refused
