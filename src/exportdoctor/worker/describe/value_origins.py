"""Where a value was made that torch refuses when the forward is over: it keeps no line of it then.

Two failures are of this sort: an output of a type that pytree does not know, and a fake tensor among the program's
constants. They are rare, so nothing is recorded for them in a first attempt: a second one, in the same process, is
watched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from exportdoctor.core.exception_text import text_of
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.records.outcome import Frame
from exportdoctor.torch_internals.fake_tensors import around_each_dispatch
from exportdoctor.torch_internals.tracer_frames import leaked_constant
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.describe.describe_failure import cause_chain
from exportdoctor.worker.describe.python_frames import is_user_frame, source_line, tracebacks
from exportdoctor.worker.describe.symbol_origins import user_frame_of

_KEPT = 200_000
_UNKNOWN_OUTPUT = "in output, which is not a known type"
_UNKNOWN_TO_DYNAMO = "Encountered unrecognized type "
_LEAKED_CONSTANT = "fake tensor in the exported program constant's list"


def _is_found_late(chain: tuple[BaseException, ...]) -> bool:
    """Whether torch refuses a value when the forward is over, so that its stack has no line of it."""
    said = (_UNKNOWN_OUTPUT, _UNKNOWN_TO_DYNAMO, _LEAKED_CONSTANT)
    return any(words in text_of(error) for error in chain for words in said)


@dataclass
class ValueOrigins:
    """What was seen of an attempt: where each tensor came up first, and what functions of the user's returned."""

    tensors: dict[int, Frame | None] = field(default_factory=dict)
    returned: list[tuple[object, Frame, Any]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def of(self, chain: tuple[BaseException, ...], module: torch.nn.Module | None) -> Frame | None:
        """The line that made the value which the error is about; None where it was not seen."""
        for error in chain:
            message = first_line(error)
            if _UNKNOWN_OUTPUT in message or _UNKNOWN_TO_DYNAMO in message:
                return self._returned_by(module, message)
            for link in tracebacks(error):
                found = leaked_constant(link.tb_frame)
                if found is not None:
                    return self.tensors.get(id(found[1].constants.get(found[0])))
        return None

    def note_tensors(self, values: Any, frame: FrameType) -> None:
        """Note where these tensors came up, unless they were seen before."""
        for value in tree_leaves(values):
            if isinstance(value, torch.Tensor) and id(value) not in self.tensors and len(self.kept) < _KEPT:
                self.kept.append(value)  # else another tensor may get its id
                self.tensors[id(value)] = user_frame_of(frame)

    def note_return(self, frame: FrameType, event: str, value: Any) -> None:
        """A profile function: notes what the user's functions return, but for what they were given, as hooks are."""
        if event != "return" or value is None or isinstance(value, torch.Tensor) or not is_user_frame(frame):
            return
        code, line = frame.f_code, frame.f_lineno
        given = (frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount])
        if len(self.returned) < _KEPT and not any(one is value for one in given):
            source = source_line(code.co_filename, line)
            place = Frame(file=code.co_filename, line=line, function=code.co_qualname, source=source, user=True)
            owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            self.returned.append((owner, place, value))

    def _returned_by(self, module: torch.nn.Module | None, message: str) -> Frame | None:
        """The `return` of this module's own function that handed the value out, the outermost such one."""
        for owner, place, value in reversed(self.returned):
            if not isinstance(owner, torch.nn.Module) or module is None or vars(owner) is not vars(module):
                continue
            kinds = [type(leaf) for leaf in tree_leaves(value)]
            if any(f"{kind}" in message or f"({kind.__name__})" in message for kind in kinds):
                return place
        return None


def find_value_origin(
    chain: tuple[BaseException, ...], attempt_again: Callable[[], Any], module: torch.nn.Module | None = None
) -> Frame | None:
    """The line that made the value which torch refused late: seen in a second attempt, for which this is called.

    None where that one does not fail in the same way. `module` is the one whose output it may be.
    """
    if not _is_found_late(chain):
        return None
    second: tuple[BaseException, ...] = ()
    with record_value_origins() as values:
        try:
            attempt_again()
        except Exception as error:
            second = tuple(cause_chain(error))
    same = [type(one) for one in second] == [type(one) for one in chain]
    return values.of(second, module) if same else None


@contextmanager
def record_value_origins() -> Iterator[ValueOrigins]:
    """Record where tensors come up inside, and what functions of the user's return."""
    found = ValueOrigins()
    before = sys.getprofile()
    with around_each_dispatch(lambda values: found.note_tensors(values, sys._getframe(1))):
        sys.setprofile(found.note_return)
        try:
            yield found
        finally:
            sys.setprofile(before)
