"""Client of worker/repro/draft_server.py: reproduces a failure, and takes drafts of a script one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from exportdoctor.core.errors import ExportdoctorError, TargetError, WorkerLost
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.repro import DraftReply, DraftRequest, NoMoreDrafts, ReproducedFailure, ScriptDraft
from exportdoctor.process.client import Closing, spawn
from exportdoctor.repro.candidates.candidate_runner import ONE_THREAD


class DraftClient(Closing):
    """A context manager that ends the process.

    After the last draft `notes` are what there is to say of them, and `error` is why there are no more, if one is.
    """

    def __init__(self, request: DraftRequest, *, log: Path | None = None) -> None:
        self.request = request
        self.notes: tuple[str, ...] = ()
        self.error: ExportdoctorError | None = None
        self._log = log
        self._client = spawn("worker.repro.draft_server", log=log, environment=ONE_THREAD)

    def reproduce(self) -> ReproducedFailure:
        """The failure, seen again. Raises UsageError where it is gone, TargetError where the target does not build."""
        try:
            reply = self._ask(self.request)
        except WorkerLost as error:  # it is the target's code that runs there
            raise TargetError(error.message, hint=error.hint) from error
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
        reply: DraftReply | None = self._client.ask(message, DraftReply)
        if reply is None:
            hint = f"Its output: {self._log}" if self._log else ""
            raise WorkerLost("The process that writes draft scripts has ended", hint=hint)
        return reply

    def close(self) -> None:
        """End the process; calling it again does no harm."""
        self._client.close()
