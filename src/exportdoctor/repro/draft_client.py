"""Client of worker/repro/draft_server.py: reproduces a failure, and takes drafts of a script one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from exportdoctor.core.errors import ExportdoctorError, TargetError
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.repro import (
    BuildStep,
    DraftReply,
    DraftRequest,
    NoMoreDrafts,
    ReproducedFailure,
    ScriptDraft,
)
from exportdoctor.process.client import Closing, spawn
from exportdoctor.process.supervise import Limits, build_limits, keep_within
from exportdoctor.report.wording import build_killed
from exportdoctor.repro.candidates.candidate_runner import ONE_THREAD


class DraftClient(Closing):
    """A context manager that ends the process.

    After the last draft `notes` are what there is to say of them, and `error` is why there are no more, if one is.
    `building` is what it may take while it builds and captures the target.
    """

    def __init__(self, request: DraftRequest, *, log: Path | None = None, building: Limits | None = None) -> None:
        self.request = request
        self.notes: tuple[str, ...] = ()
        self.error: ExportdoctorError | None = None
        self._log = log
        self._building = building or build_limits()
        self._client = spawn("worker.repro.draft_server", log=log, environment=ONE_THREAD)

    def reproduce(self) -> ReproducedFailure:
        """The failure, seen again. Raises UsageError where it is gone, TargetError where the target does not build."""
        reply = self._ask_while_building(self.request)
        while isinstance(reply, BuildStep):
            reply = self._ask("next") if reply.is_over else self._ask_while_building("next")
        if isinstance(reply, Refused):
            raise reply.to_error()
        assert isinstance(reply, ReproducedFailure)
        return reply

    def drafts(self) -> Iterator[ScriptDraft]:
        """Drafts, the barest first; each is written when it is asked for."""
        while True:
            match self._ask("next"):
                case ScriptDraft() as draft:
                    yield draft
                case NoMoreDrafts(notes=notes):
                    self.notes = notes
                    return
                case Refused() as refusal:
                    self.error = refusal.to_error()
                    return

    def _ask(self, message: object) -> DraftReply:
        """Its reply. Raises TargetError where it ends: it is the target's code that runs there."""
        reply: DraftReply | None = self._client.ask(message, DraftReply)
        if reply is None:
            raise TargetError("The process that writes draft scripts has ended", hint=self._hint())
        return reply

    def _ask_while_building(self, message: object) -> DraftReply:
        """Its next reply, while the target is built or captured. Raises TargetError where that exceeds the limits."""
        with keep_within(self._client.pid, self._building, log=self._log) as supervisor:
            try:
                return self._ask(message)
            except TargetError as error:
                if (reason := supervisor.kill_reason) is None:
                    raise
                text = build_killed(
                    "", reason.signal, seconds=reason.seconds, memory_mb=reason.memory_mb, limit_mb=reason.limit_mb
                )
                raise TargetError(text, hint=self._hint()) from error

    def _hint(self) -> str:
        return f"What it printed is in {self._log}" if self._log else ""

    def close(self) -> None:
        """End the process; calling it again does no harm."""
        self._client.close()
