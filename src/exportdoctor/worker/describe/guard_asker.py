"""What asked torch to decide a size while it traced: an operator, a function of torch's, or Python for the user's code.

Guards with equal messages may have different causes: a branch of the user's on a size, a slice of a table that is
shorter, a recurrence that is unrolled.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType, FrameType

from exportdoctor.core.failure.identity import CONDITION, outermost_operation
from exportdoctor.torch_internals.tracer_frames import dispatched_op
from exportdoctor.worker.describe.python_frames import expression_at, is_user_frame
from exportdoctor.worker.describe.symbol_origins import frames_below_attempt

_DECIDED = "__bool__"
_CONVERSIONS = frozenset({_DECIDED, "__int__", "__index__", "__float__"})
"""Methods of symbolic numbers by which Python asks for a value."""


@dataclass(frozen=True)
class GuardAsker:
    """Who asked: `name` if it is known at once, else the user's instruction at `place` of `code`."""

    name: str = ""
    code: CodeType | None = None
    place: int = 0

    @property
    def operation(self) -> str:
        """The operator, as `aten.slice`, torch's function, or the operation of the user's code; empty if not known."""
        if self.name or self.code is None:
            return self.name
        return outermost_operation(expression_at(self.code, self.place))


NOBODY = GuardAsker()


def asker_of(frame: FrameType | None) -> GuardAsker:
    """What asked for the guard that is made in this frame: the innermost operator, or who asked for a number."""
    how = ""
    caller: FrameType | None = None
    last: FrameType | None = None
    for one in frames_below_attempt(frame):
        if (found := dispatched_op(one)) is not None:
            return GuardAsker(str(getattr(found[0], "overloadpacket", found[0])))
        if caller is None and how:
            caller = one
        elif not how and one.f_code.co_name in _CONVERSIONS:
            how = one.f_code.co_name
        last = one
    if caller is not None and not is_user_frame(caller):
        return GuardAsker(caller.f_code.co_name)
    if how == _DECIDED:
        return GuardAsker(CONDITION)
    return GuardAsker(code=last.f_code, place=last.f_lasti) if last is not None and is_user_frame(last) else NOBODY
