"""Dynamo interprets the user's code instead of running it: where it is, by its interpreters and its own record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType
from typing import Any

from exportdoctor.torch_internals.hook import Hook

Positions = tuple[int | None, int | None, int | None, int | None]
"""First and last line, first and last column."""


@dataclass(frozen=True, kw_only=True)
class InterpretedFrame:
    """Where an interpreter of dynamo is. `owner` is the `self` of the code, `positions` those of its expression."""

    code: CodeType
    line: int
    owner: object
    positions: Positions | None


def is_interpreter(value: object) -> bool:
    """Whether it is one of dynamo's interpreters (`InstructionTranslatorBase`)."""
    names = ("symbolic_locals", "f_code", "lineno")
    return _is_of_dynamo(value) and all(hasattr(type(value), name) or hasattr(value, name) for name in names)


def _is_of_dynamo(value: object) -> bool:
    """Other objects are not asked for an attribute: their own `__getattr__` may raise, or do something."""
    return type(value).__module__.startswith("torch._dynamo.")


def interpreted_frame(interpreter: Any) -> InterpretedFrame:
    """The code that it interprets, and where it is."""
    code, line = interpreter.f_code, interpreter.lineno
    found = getattr(getattr(interpreter, "current_instruction", None), "positions", None)
    positions = (found.lineno, found.end_lineno, found.col_offset, found.end_col_offset) if found else None
    line = line if isinstance(line, int) and line > 0 else code.co_firstlineno
    return InterpretedFrame(code=code, line=line, owner=_owner(interpreter), positions=positions)


def interpreted_graph(value: object) -> Any:
    """The graph that an interpreter of dynamo's has traced; None for any other value."""
    return getattr(getattr(value, "output", None), "graph", None) if _is_of_dynamo(value) else None


def _owner(interpreter: Any) -> object:
    variable = interpreter.symbolic_locals.get("self")
    value = getattr(variable, "value", None)
    key = getattr(variable, "module_key", None)
    if value is None and key is not None:
        return getattr(getattr(interpreter, "output", None), "nn_modules", {}).get(key)
    return value


def _has_interpreters() -> bool:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    wanted = {"symbolic_locals", "f_code", "lineno", "current_instruction", "output"}
    return wanted <= {*InstructionTranslatorBase.__annotations__, *InstructionTranslatorBase.__init__.__code__.co_names}


INTERPRETERS = Hook(
    id="dynamo-interpreters",
    api="torch._dynamo.symbolic_convert.InstructionTranslatorBase.{symbolic_locals, f_code, lineno, ...}",
    used_for="the user's line, expression and submodule in strict mode",
    lost="findings of --exporter export-strict have a shorter stack",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_interpreters,
)


def recorded_stack(error: BaseException) -> tuple[Any, ...]:
    """The user's stack as dynamo's errors carry it (`real_stack`), as `traceback.FrameSummary`; else empty."""
    return tuple(getattr(error, "real_stack", None) or ())


def current_stack() -> Iterator[Any]:
    """The user's stack where dynamo is now, innermost first, as `traceback.FrameSummary`; else nothing."""
    from torch._guards import TracingContext

    if TracingContext.try_get() is not None:
        yield from reversed(TracingContext.extract_stack())


def partial_code(error: BaseException) -> str:
    """The graph that torch itself put on an error as text (`partial_fx_graph`); empty without one."""
    text = getattr(error, "partial_fx_graph", None)
    return text.strip() if isinstance(text, str) else ""


def _has_record() -> bool:
    from torch._dynamo.exc import Unsupported
    from torch._guards import TracingContext

    return "real_stack" in Unsupported.__init__.__code__.co_names and callable(TracingContext.extract_stack)


RECORDED_STACK = Hook(
    id="dynamo-stack",
    api="torch._dynamo.exc.Unsupported.real_stack, torch._guards.TracingContext.{try_get, extract_stack}",
    used_for="the user's stack where dynamo has shortened the traceback",
    lost="some findings of --exporter export-strict have no line",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_record,
)


def keep_interpreter_frames() -> AbstractContextManager[Any]:
    """Within it, the frames of dynamo's interpreter stay on the traceback of its errors."""
    import torch._dynamo.config as config

    patched: AbstractContextManager[Any] = config.patch(verbose=True)
    return patched


def _has_verbose() -> bool:
    import torch._dynamo.config as config

    return hasattr(config, "verbose") and callable(config.patch)


VERBOSE = Hook(
    id="dynamo-verbose",
    api="torch._dynamo.config.patch(verbose=True)",
    used_for="tracebacks with dynamo's frames, from which the user's are read",
    lost="no attempts with --exporter export-strict",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_verbose,
)


def references_by_dynamo(module: Any) -> int:
    """How many weak references dynamo holds to an nn.Module: once it has been used, it notes when each is made."""
    import sys

    tracker = getattr(sys.modules.get("torch._dynamo.mutation_guard"), "GenerationTracker", None)
    return int(module in getattr(tracker, "generation_values", ()))


def _has_generations() -> bool:
    from torch._dynamo.mutation_guard import GenerationTracker

    return hasattr(GenerationTracker, "generation_values")


GENERATIONS = Hook(
    id="dynamo-generations",
    api="torch._dynamo.mutation_guard.GenerationTracker.generation_values",
    used_for="equal submodules of a model that is built after dynamo was used",
    lost="there each submodule is attempted itself, and nothing is answered from the cache",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_generations,
)

HOOKS = (INTERPRETERS, RECORDED_STACK, VERBOSE, GENERATIONS)
