"""Where the unbacked symbols of a failure were born: noted as they are made, because torch forgets it.

`ShapeEnv.var_to_stack` is meant for this but is empty in torch 2.13 outside of its extended debugging.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from exportdoctor.core.failure.frames import OUR_FOLDER, is_user_file
from exportdoctor.core.outcome import Frame, SymbolOrigin
from exportdoctor.worker.describe.python_frames import is_user_frame, source_line

_MAKERS = ("create_unbacked_symint", "create_unbacked_symfloat", "create_unbacked_symbool")
_KEPT = 10_000
_ATTEMPT = OUR_FOLDER + os.path.join("worker", "attempt", "export_attempt.py")


@dataclass
class SymbolOrigins:
    """The births of one attempt, by symbol; where two tracings name the same symbol, the later one counts."""

    births: dict[str, SymbolOrigin] = field(default_factory=dict)

    def of(self, chain: tuple[BaseException, ...]) -> tuple[SymbolOrigin, ...]:
        """The births of the symbols in the condition that could not be decided."""
        return tuple(self.births[name] for name in undecided_symbols(chain) if name in self.births)


def undecided_symbols(chain: tuple[BaseException, ...]) -> tuple[str, ...]:
    """The symbols in the condition that could not be decided (`GuardOnDataDependentSymNode.cond`).

    Dynamo raises an error of its own while it handles that one, which is then no cause but a context.
    """
    names = {
        str(symbol)
        for error in (chain[:1] and (*chain, *_contexts(chain[-1])))
        for symbol in getattr(getattr(error, "cond", None), "free_symbols", ())
    }
    return tuple(sorted(names, key=_by_number))


def _contexts(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current = error.__context__
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


@contextmanager
def record_symbol_origins() -> Iterator[SymbolOrigins]:
    """Note every unbacked symbol that is made inside."""
    registry = SymbolOrigins()
    originals = {name: getattr(ShapeEnv, name) for name in _MAKERS if hasattr(ShapeEnv, name)}
    for name, original in originals.items():
        setattr(ShapeEnv, name, _record_symbols(original, registry))
    try:
        yield registry
    finally:
        for name, original in originals.items():
            setattr(ShapeEnv, name, original)


def _record_symbols(original: Callable[..., Any], registry: SymbolOrigins) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(self: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        if len(registry.births) < _KEPT:
            # a SymBool is the expression Eq(u0, 1); the others are the symbol itself
            for symbol in made.node.expr.free_symbols:
                registry.births[str(symbol)] = _symbol_origin(str(symbol), sys._getframe(1))
        return made

    return make


def _symbol_origin(symbol: str, frame: FrameType | None) -> SymbolOrigin:
    operator = next(
        (
            str(found.f_locals["func"])
            for found in frames_below_attempt(frame)
            if _is_operator(found.f_locals.get("func"))
        ),
        None,
    )
    return SymbolOrigin(symbol=symbol, op=operator, frame=user_frame_of(frame))


def _is_operator(value: object) -> bool:
    return isinstance(value, torch._ops.OpOverload)


def frames_below_attempt(frame: FrameType | None) -> Iterator[FrameType]:
    """This frame and its callers up to the innermost of the user's, or to the attempt: who asked for it is no part."""
    while frame is not None and frame.f_code.co_filename != _ATTEMPT:
        yield frame
        if is_user_frame(frame):
            return
        frame = frame.f_back


def user_frame_of(frame: FrameType | None) -> Frame | None:
    """The innermost of the user's frames that this one runs for; in strict mode what dynamo notes of it."""
    for found in frames_below_attempt(frame):
        if is_user_frame(found):
            code = found.f_code
            source = source_line(code.co_filename, found.f_lineno)
            return Frame(
                file=code.co_filename, line=found.f_lineno, function=code.co_qualname, source=source, user=True
            )
    return _dynamo_frame()


def _dynamo_frame() -> Frame | None:
    """Dynamo's own record of the user's stack, while it interprets."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return None
    for entry in reversed(torch._guards.TracingContext.extract_stack()):
        if is_user_file(entry.filename):
            line = entry.lineno or 0
            source = source_line(entry.filename, line)
            return Frame(file=entry.filename, line=line, function=entry.name, source=source, user=True)
    return None


def _by_number(symbol: str) -> tuple[int, str]:
    digits = "".join(filter(str.isdigit, symbol))
    return (int(digits) if digits else 0, symbol)
