"""The nature of what failed: an operator, Python on a symbolic value, a construct, a type, or the call as a whole."""

from __future__ import annotations

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.finding import Culprit
from exportdoctor.core.outcome import Failure, Frame, OutcomeStatus

_HIGHER_ORDER = "/torch/_higher_order_ops/"
_DYNAMO = "torch._dynamo.exc."


def culprit_of(failure: Failure, *, kind: FailureKind, status: OutcomeStatus) -> Culprit | None:
    """What a failure is about. None where the process died: its stack is not reliable.

    - `op`: an operator raised, or an operator's own kernel lies
    - `python`: the user's code asked a symbolic value for what nobody knows, or did what tracing cannot follow
    - `higher_order_op`: the body of `torch.cond` and the like was refused
    - `pytree`: a type that no pytree is registered for
    - `dynamo`: a construct that dynamo does not trace
    - `call`: found when tracing was over, in the inputs, the outputs or the constraints
    """
    if status != OutcomeStatus.FAILED:
        return None
    if kind is FailureKind.UNREGISTERED_PYTREE:
        return "pytree"
    inner = _below_the_user(failure.frames)
    if any(_HIGHER_ORDER in frame.file.replace("\\", "/") for frame in inner):
        return "higher_order_op"
    if failure.op is not None and failure.op.raised:
        return "op"
    if kind is FailureKind.UNSUPPORTED_PYTHON and any(fact.type.startswith(_DYNAMO) for fact in failure.exceptions):
        return "dynamo"
    return "python" if failure.culprit is not None else "call"


def _below_the_user(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames inside of the user's innermost one that runs as itself, and not as the body of an operator."""
    entrance = next((i for i, frame in enumerate(frames) if frame.user or frame.module is not None), len(frames))
    return frames[entrance:]
