"""The protocol of `exportdoctor numbers` and its worker: one request, progress, then one result."""

from __future__ import annotations

from typing import Literal

import msgspec

from exportdoctor.core.protocol.export import ExportProgress, StageFailure
from exportdoctor.core.protocol.reply import Refused, Reply
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.core.records.target import TargetRef

LadderVerdict = Literal["agrees", "agrees_but_ties", "differs", "stops"]
"""`agrees_but_ties`: equal but for the choice among equal values. `stops`: a stage could not be made or run."""

Excuse = Literal["", "tie", "duplicates", "rounding", "random", "unwritten"]
"""Why a value that differs is no fault: a choice among equal values, indices written twice, rounding (float64 is as far
from the reference as from this value), a random number, or memory that nobody has written."""

CauseKind = Literal["value", "input", "absent", "raises", "state", "weight"]
"""`input`: a step is given others than the reference's operation is. `absent`: the reference ran something of which the
candidate has nothing. `state`: a change that the candidate does not make. `weight`: a parameter or buffer with other
values."""

Side = Literal["reference", "candidate", "neither", "unknown"]


class LadderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one part, stage by stage. `against` is a file that was made elsewhere, '' for our own.

    `seconds` is for drawing input sets.
    """

    target: TargetRef
    part: str
    against: str = ""
    shims: tuple[str, ...] = ()
    shim_files: tuple[str, ...] = ()
    opset: int = 0
    seconds: float = 20.0


class LadderValue(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a stage beside the stage before: largest absolute differences.

    `local`: with the reference's inputs. `inherited`: with its own. `allowed` is what the dtype allows of `local`.
    """

    name: str
    op: str
    local: float
    inherited: float
    allowed: float
    module: str = ""
    file: str = ""
    line: int = 0
    excuse: Excuse = ""


class LadderCause(msgspec.Struct, frozen=True, kw_only=True):
    """Where wrong numbers begin: the first value that is wrong on right inputs.

    `right` is the side nearer to float64. `steps` counts the candidate's nodes that the error may come from: those
    between the last values with a counterpart and this one.
    """

    kind: CauseKind
    inputs: str
    message: str
    node: str = ""
    op: str = ""
    module: str = ""
    module_class: str = ""
    file: str = ""
    line: int = 0
    source: str = ""
    expression: str = ""
    right: Side = "unknown"
    steps: int = 1


class LadderStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage. `rows` compare its outputs and state with eager's.

    `values` are compared with those of the stage before, on the sets `walked`; `unmatched` counts values of
    the stage before for which this one has no counterpart. On the sets `excused` other outputs come of ties alone.
    """

    name: str
    before: str
    rows: tuple[Agreement, ...] = ()
    walked: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()
    values: tuple[LadderValue, ...] = ()
    unmatched: int = 0
    cause: LadderCause | None = None
    failure: StageFailure | None = None
    notes: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[LadderValue, ...]:
        """The values whose local error is above what is allowed, without excuse."""
        return tuple(one for one in self.values if one.local > one.allowed and not one.excuse)

    @property
    def holds(self) -> bool:
        """Whether it gives eager's numbers wherever it answers."""
        return (
            self.failure is None
            and self.cause is None
            and all(row.holds or row.refused or row.inputs in self.excused for row in self.rows)
        )


class LadderResult(Reply, frozen=True, kw_only=True, tag="ladder"):
    """The ladder from eager down."""

    verdict: LadderVerdict
    stages: tuple[LadderStage, ...]
    target: str = ""
    part: str = ""
    weights: str = ""
    dtype: str = ""
    shims: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def cause(self) -> tuple[LadderStage, LadderCause] | None:
        """The first stage with a cause, and it."""
        return next(((one, one.cause) for one in self.stages if one.cause is not None), None)


LadderReply = ExportProgress | Refused | LadderResult
