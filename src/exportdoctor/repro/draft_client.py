"""Speaks with a harvest process: sees the failure again, and takes drafts of a script one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import UsageError, WorkerLost
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.repro import DraftReply, DraftRequest, NoMoreDrafts, ReproducedFailure, ScriptDraft
from exportdoctor.repro.candidate_runner import end, started


@dataclass
class Harvesting:
    """A context manager that ends the process. `notes` fill up as drafts are taken."""

    command: DraftRequest
    talk: Path | None = None
    notes: tuple[str, ...] = ()

    def __enter__(self) -> Harvesting:
        self._process = started("repro.draft_server", talk=self.talk)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; more than once does no harm."""
        end(self._process)

    def again(self) -> ReproducedFailure:
        """The failure, seen again. Raises UsageError where it is gone or the target does not build any more."""
        reply = self._ask(encode(self.command))
        if isinstance(reply, Refused):
            raise UsageError(reply.message, hint=reply.hint)
        assert isinstance(reply, ReproducedFailure)
        return reply

    def drafts(self) -> Iterator[ScriptDraft]:
        """Drafts, the barest first; each is written when it is asked for."""
        while True:
            match self._ask(b"next"):
                case ScriptDraft() as draft:
                    yield draft
                case NoMoreDrafts(notes=notes):
                    self.notes = notes
                    return
                case Refused(message=text):
                    self.notes = (text,)
                    return

    def _ask(self, line: bytes) -> DraftReply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise WorkerLost(
                "The process that harvests has ended", hint=f"Its output: {self.talk}" if self.talk else ""
            )
        reply: DraftReply = decode(answer, DraftReply)
        return reply
