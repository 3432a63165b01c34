"""A draft server without torch for tests/repro/test_draft_client.py: an error of its own follows the first draft."""

from __future__ import annotations

import os
from collections.abc import Iterator

from exportdoctor.core.codec import decode
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.repro import BuildStep, DraftReply, DraftRequest, ReproducedFailure, ScriptDraft
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.worker.standard_streams import take_line_streams, write_line


def write_draft() -> str:
    """What fails."""
    raise KeyError("lost")


def answers(request: DraftRequest) -> Iterator[DraftReply]:
    """The replies, each sent when it is asked for."""
    outcome = Outcome(probe=request.probe.id, status=OutcomeStatus.FAILED)
    yield BuildStep(is_over=True)
    yield ReproducedFailure(outcome=outcome, exporter=request.probe.exporter, environment={})
    yield ScriptDraft(what="the first", source="import torch\n")
    try:
        write_draft()
    except KeyError as error:
        yield Refused.from_error(error)


def main() -> None:
    """One request, and then a line for each further reply that is wanted."""
    requests, replies = take_line_streams()
    with os.fdopen(requests, "rb") as lines:
        for answer in answers(decode(lines.readline(), DraftRequest)):
            write_line(replies, answer)
            if not lines.readline():
                return


if __name__ == "__main__":
    main()
