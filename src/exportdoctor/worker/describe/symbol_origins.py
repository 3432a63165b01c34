"""Where the unbacked symbols of a failure were created: recorded while torch creates them, because it forgets it.

`ShapeEnv.var_to_stack` is meant for this but is empty in torch 2.13 outside of its extended debugging.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from exportdoctor.core.exception_text import cause_of, context_of
from exportdoctor.core.failure.frames import OUR_FOLDER, is_user_file
from exportdoctor.core.records.outcome import Frame, SymbolOrigin
from exportdoctor.torch_internals.dynamo_frames import current_stack
from exportdoctor.torch_internals.shape_env import after_each_new_symbol, symbols_of_condition
from exportdoctor.torch_internals.tracer_frames import dispatched_op
from exportdoctor.worker.describe.python_frames import is_user_frame, source_line

_KEPT = 10_000
_EXPORTING = frozenset(
    OUR_FOLDER + os.path.join("worker", *file)
    for file in (("attempt", "export_attempt.py"), ("repro", "candidate_server.py"))
)
"""Our files that call an exporter. The user's frames above them called the export, and are no part of the forward."""


@dataclass
class SymbolOrigins:
    """The symbols of one attempt; where two tracings create a symbol of the same name, the later one counts."""

    by_symbol: dict[str, SymbolOrigin] = field(default_factory=dict)

    def of(self, chain: tuple[BaseException, ...]) -> tuple[SymbolOrigin, ...]:
        """The origins of the symbols in the condition that could not be decided."""
        return tuple(self.by_symbol[name] for name in undecided_symbols(chain) if name in self.by_symbol)


def undecided_symbols(chain: tuple[BaseException, ...]) -> tuple[str, ...]:
    """The symbols in the condition that could not be decided.

    Dynamo raises an error of its own while it handles that one, which is then no cause but a context.
    """
    errors = (*chain, *_contexts(chain[-1])) if chain else ()
    return tuple(sorted(symbols_of_condition(errors), key=_by_number))


def _contexts(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current = context_of(error)
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = cause_of(current) or context_of(current)


@contextmanager
def record_symbol_origins() -> Iterator[SymbolOrigins]:
    """Record every unbacked symbol that is created inside, up to 10,000."""
    found = SymbolOrigins()

    def record(symbol: str) -> None:
        if len(found.by_symbol) < _KEPT:
            found.by_symbol[symbol] = _symbol_origin(symbol, sys._getframe(1))

    with after_each_new_symbol(record):
        yield found


def _symbol_origin(symbol: str, frame: FrameType | None) -> SymbolOrigin:
    ops = (str(found[0]) for one in frames_below_attempt(frame) if (found := dispatched_op(one)) is not None)
    return SymbolOrigin(symbol=symbol, op=next(ops, None), frame=user_frame_of(frame))


def frames_below_attempt(frame: FrameType | None) -> Iterator[FrameType]:
    """This frame and its callers, up to the innermost of the user's or to the attempt itself."""
    for found in frames_of_attempt(frame):
        yield found
        if is_user_frame(found):
            return


def frames_of_attempt(frame: FrameType | None) -> Iterator[FrameType]:
    """This frame and its callers, up to the attempt itself."""
    while frame is not None and frame.f_code.co_filename not in _EXPORTING:
        yield frame
        frame = frame.f_back


def user_frame_of(frame: FrameType | None) -> Frame | None:
    """The innermost of the user's frames that this one runs for; in strict mode from dynamo's record of them."""
    for found in frames_below_attempt(frame):
        if is_user_frame(found):
            code = found.f_code
            source = source_line(code.co_filename, found.f_lineno)
            return Frame(
                file=code.co_filename, line=found.f_lineno, function=code.co_qualname, source=source, user=True
            )
    return _dynamo_frame()


def _dynamo_frame() -> Frame | None:
    """The innermost of the user's lines in dynamo's own record, while it interprets."""
    for entry in current_stack():
        if is_user_file(entry.filename):
            line = entry.lineno or 0
            source = source_line(entry.filename, line)
            return Frame(file=entry.filename, line=line, function=entry.name, source=source, user=True)
    return None


def _by_number(symbol: str) -> tuple[int, str]:
    digits = "".join(filter(str.isdigit, symbol))
    return (int(digits) if digits else 0, symbol)
