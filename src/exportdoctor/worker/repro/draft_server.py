"""Asks a failing probe once more, watched, and writes drafts of a script that fails in the same way.

A process of its own, for one finding, which speaks core/protocol/repro.py. The attempt runs in a forked child, because
it may crash, hang or spoil the model.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator

import msgspec

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.repro import BuildStep, DraftReply, DraftRequest, NoMoreDrafts, ReproducedFailure
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX, Capture, Open
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.report import wording
from exportdoctor.worker import environment
from exportdoctor.worker.capture.session import PartCapture
from exportdoctor.worker.open_target import OpenTarget
from exportdoctor.worker.repro.draft_variants import write_drafts
from exportdoctor.worker.repro.script.operator_schemas import declare_operators
from exportdoctor.worker.repro.script.recorder import Record
from exportdoctor.worker.repro.single_call import can_be_captured_alone, one_call
from exportdoctor.worker.repro.watched_run import run_watched
from exportdoctor.worker.standard_streams import take_line_streams, write_line

_TIMES = 2  # attempts, because a failure may come and go


def _reproduce_and_draft(command: DraftRequest) -> Iterator[DraftReply]:
    """The reproduced failure, then drafts of a script, each written when it is asked for."""
    target, probe = OpenTarget(), command.probe
    target.open(Open(target=command.target, isolation="fork", shim_files=command.shim_files))
    alone = _capture_alone(target, command)
    yield BuildStep(is_over=True)
    found = _by_short_cut(alone, command) if alone is not None else None
    if found is None:
        yield BuildStep(is_over=False)
        target.capture(Capture(part=probe.part, exporter=probe.exporter))
        yield BuildStep(is_over=True)
        whole = _by_capture(target.parts[probe.part], probe)
        if isinstance(whole, Refused):
            yield whole
            return
        found = whole
    part, outcome, record, times = found
    yield ReproducedFailure(outcome=outcome, exporter=probe.exporter, environment=environment.versions())
    notes: list[str] = []
    remarks = (wording.repro_flaky_attempts(times),) if times > 1 else ()
    for draft in write_drafts(part, probe, outcome, record, notes):
        yield msgspec.structs.replace(draft, source=declare_operators(draft.source), notes=(*remarks, *draft.notes))
    yield NoMoreDrafts(notes=tuple(notes))


_Reproduction = tuple[PartCapture, Outcome, Record, int]
"""The part, how the attempt ended, what ran in it, and how many attempts that took."""


def _capture_alone(target: OpenTarget, command: DraftRequest) -> PartCapture | None:
    """The part with the one call that it is about; None where that cannot be had alone."""
    probe = command.probe
    is_small = probe.part.endswith(SMALL_MODEL_SUFFIX)  # of which nothing is captured but the root
    if not command.signature or not can_be_captured_alone(probe) or target.built is None or is_small:
        return None
    try:
        return one_call(target.built.part(probe.part), probe.fqn)
    except Exception:  # the whole capture reports it properly
        traceback.print_exc()
        return None


def _by_short_cut(part: PartCapture, command: DraftRequest) -> _Reproduction | None:
    """By the one call that it is about; None where that does not show the very same failure."""
    outcome, record = run_watched(part, command.probe, exporting=True)
    signature = signature_of(outcome)
    return (part, outcome, record, 1) if signature is not None and signature.key == command.signature else None


def _by_capture(part: PartCapture, probe: Probe) -> _Reproduction | Refused:
    """By the whole part, and a second attempt where the first passes."""
    if probe.fqn not in part.distinct or probe.call >= len(part.distinct[probe.fqn]):
        return Refused(message=f"{probe.fqn or 'the root'} is no longer called", fault="usage", hint="Scan again")
    for times in range(1, _TIMES + 1):
        outcome, record = run_watched(part, probe, exporting=True)
        if not outcome.passed:
            return part, outcome, record, times
    return Refused(message="The failure no longer occurs: this module exports now", fault="usage", hint="Scan again")


def _answers(command: DraftRequest) -> Iterator[DraftReply]:
    """The replies, whatever goes wrong."""
    try:
        yield from _reproduce_and_draft(command)
    except ExportdoctorError as error:
        yield Refused.from_error(error)
    except GeneratorExit:
        raise
    except BaseException as error:  # also what would end the process
        traceback.print_exc()
        yield Refused.from_error(error)


def main() -> None:
    """One request, and then a line for each further reply that is wanted."""
    requests, replies = take_line_streams()
    with os.fdopen(requests, "rb") as lines:
        for answer in _answers(decode(lines.readline(), DraftRequest)):
            write_line(replies, answer)
            if not lines.readline():
                return


if __name__ == "__main__":
    main()
