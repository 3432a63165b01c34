"""Where a value was made that torch refuses when the forward is over: it keeps no line of it then.

Two failures are of this sort: an output of a type that pytree does not know, and a fake tensor among the program's
constants. They are rare, so nothing is recorded for them in a first attempt: a second one, in the same process, is
watched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from exportdoctor.core.exception_text import text_of
from exportdoctor.core.failure.frames import frames_in_text
from exportdoctor.core.failure.messages import LEAKED_CONSTANT, first_line
from exportdoctor.core.records.outcome import Frame
from exportdoctor.torch_internals.fake_tensors import around_each_dispatch
from exportdoctor.torch_internals.tracer_frames import leaked_constant
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.describe.describe_failure import cause_chain
from exportdoctor.worker.describe.partial_graph import leaked_constant_user
from exportdoctor.worker.describe.python_frames import is_user_frame, source_line, tracebacks
from exportdoctor.worker.describe.symbol_origins import user_frame_of

_KEPT = 200_000
_UNKNOWN_OUTPUT = "in output, which is not a known type"
_UNKNOWN_TO_DYNAMO = "Encountered unrecognized type "
_OF_AUTOGRAD = re.compile(r"\b(?:autograd\.)?grad\(|\.backward\(|\bvjp\(|\bjacrev\(")
"""A line that computes gradients: autograd brings a tensor back that it saved, past the tracer."""


def _is_found_late(chain: tuple[BaseException, ...]) -> bool:
    """Whether torch refuses a value when the forward is over, so that its stack has no line of it."""
    said = (_UNKNOWN_OUTPUT, _UNKNOWN_TO_DYNAMO, LEAKED_CONSTANT)
    return any(words in text_of(error) for error in chain for words in said)


@dataclass
class ValueOrigins:
    """What was seen of an attempt: where each tensor came up first, or what functions of the user's returned."""

    tensors: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    lines: dict[tuple[str, int], Frame] = field(default_factory=dict)
    returned: list[tuple[object, Frame, Any]] = field(default_factory=list)

    def of(self, chain: tuple[BaseException, ...], module: torch.nn.Module | None) -> Frame | None:
        """The line that made the value which the error is about, or computes gradients with it; None where neither was
        seen."""
        for error in chain:
            message = first_line(error)
            if _UNKNOWN_OUTPUT in message or _UNKNOWN_TO_DYNAMO in message:
                return self._returned_by(module, message)
        leaked = _leaked_tensor(chain)
        if leaked is None:
            return None
        users = filter(None, map(_line_of_user, chain))
        of_autograd = next((line for line in users if _OF_AUTOGRAD.search(line.source)), None)
        if of_autograd is None:
            return self.tensors.get(leaked)
        return self.lines.get((of_autograd.file, of_autograd.line), of_autograd)

    def note_tensors(self, values: Any, frame: FrameType) -> None:
        """Note where these tensors came up, unless they were seen before. None is kept alive: torch takes a constant
        that nobody holds any more for none that leaked."""
        for value in tree_leaves(values):
            if isinstance(value, torch.Tensor) and value not in self.tensors and len(self.tensors) < _KEPT:
                line = self.tensors[value] = user_frame_of(frame)
                if line is not None:
                    self.lines[line.file, line.line] = line

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

    None where that one does not fail in the same way, of the same value. `module` is the one whose output it may be.
    """
    if not _is_found_late(chain):
        return None
    first, second = _leaked_tensor(chain), tuple[BaseException, ...]()
    with record_value_origins(tensors=first is not None) as values:
        try:
            attempt_again()
        except Exception as error:
            second = tuple(cause_chain(error))
    same = [type(one) for one in second] == [type(one) for one in chain]
    alike = _in_words(first) == _in_words(_leaked_tensor(second))
    return values.of(second, module) if same and alike else None


def _line_of_user(error: BaseException) -> Frame | None:
    """The line of the user's code that uses the leaked constant; None where the graph does not say."""
    node = leaked_constant_user(error)
    frames = list(frames_in_text(node.meta.get("stack_trace") or "")) if node is not None else []
    return next((frame for frame in reversed(frames) if frame.user), None)


def _leaked_tensor(chain: tuple[BaseException, ...]) -> Any:
    """The fake tensor among the constants, which the error is about; None where it is about another value."""
    for link in (link for error in chain for link in tracebacks(error)):
        if (found := leaked_constant(link.tb_frame)) is not None:
            return found[1].constants.get(found[0])
    return None


def _in_words(tensor: Any) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else ""


@contextmanager
def record_value_origins(*, tensors: bool) -> Iterator[ValueOrigins]:
    """Record where tensors come up inside, or else what functions of the user's return, which are kept alive."""
    found = ValueOrigins()
    if tensors:
        with around_each_dispatch(lambda values: found.note_tensors(values, sys._getframe(1))):
            yield found
        return
    before = sys.getprofile()
    sys.setprofile(found.note_return)
    try:
        yield found
    finally:
        sys.setprofile(before)
