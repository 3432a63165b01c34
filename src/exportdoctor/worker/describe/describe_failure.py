"""Turns an exception into a Failure: the only place that reads tracebacks, and it reads frames, never text.

Dynamo interprets the user's code instead of running it, so its frames are taken from its interpreter objects,
which are found on the same traceback.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch

from exportdoctor.core.failure.frames import is_our_file, is_user_file
from exportdoctor.core.outcome import ExceptionFact, Failure, Frame, Stage
from exportdoctor.worker.describe.partial_graph import custom_ops, last_op
from exportdoctor.worker.describe.python_frames import python_frame, segment, source_line, tracebacks

Names = Mapping[int, str]


def describe_failure(error: BaseException, *, stage: Stage, names: Names) -> Failure:
    """What `error` says. `names` maps `state_id(module)` to its FQN within the scanned part."""
    chain = tuple(cause_chain(error))
    return Failure(
        stage=stage,
        exceptions=tuple(ExceptionFact(type=qualified_name(type(e)), message=_message(e)) for e in chain),
        frames=tuple(_stack(chain, names)),
        op=last_op(chain),
        custom_ops=custom_ops(chain),
    )


def state_id(module: torch.nn.Module) -> int:
    """Names a module by its attribute dictionary: torch's tracer hands out proxies that share it with the original."""
    return id(vars(module))


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and each exception that it was raised from, outermost first; implicit contexts are left out."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def qualified_name(kind: type) -> str:
    """`package.module.Class`, or `Class` alone for a builtin."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _stack(chain: tuple[BaseException, ...], names: Names) -> Iterator[Frame]:
    """The stack of the exception in `chain` that saw the most user code, else dynamo's own record of it."""
    stacks = [tuple(_frames(error, names)) for error in chain]
    best = max(stacks, key=lambda stack: (sum(frame.user for frame in stack), len(stack)), default=())
    best = _with_recorded(best, chain)
    module: str | None = None
    for frame in best:
        # a helper function runs on behalf of the submodule that called it
        module = frame.module if frame.module is not None else module
        if not is_our_file(frame.file):
            yield msgspec.structs.replace(frame, module=module)


def _with_recorded(stack: tuple[Frame, ...], chain: tuple[BaseException, ...]) -> tuple[Frame, ...]:
    """Dynamo shortens tracebacks, in strict mode to nothing, in the body of a higher-order op to the call of it.

    Its own record of the user's stack then tells the rest; what it repeats of `stack` is left out.
    """
    known = {(frame.file, frame.line) for frame in stack if frame.user}
    for error in reversed(chain):
        recorded = tuple(_recorded_frames(error))
        fresh = tuple(frame for frame in recorded if (frame.file, frame.line) not in known)
        if any(frame.user for frame in fresh):
            return (*stack, *fresh) if known else recorded
    return stack


def _frames(error: BaseException, names: Names) -> Iterator[Frame]:
    """The frames of one traceback, with dynamo's interpreters replaced by the code that they interpret."""
    seen: set[int] = set()
    for link in tracebacks(error):
        frame = link.tb_frame
        owner = frame.f_locals.get("self")
        if not _is_dynamo_interpreter(owner):
            module = names.get(state_id(owner)) if isinstance(owner, torch.nn.Module) else None
            yield python_frame(frame, link, module)
        elif id(owner) not in seen:
            seen.add(id(owner))
            yield _dynamo_frame(owner, names)


def _is_dynamo_interpreter(owner: object) -> bool:
    return all(hasattr(type(owner), name) or hasattr(owner, name) for name in ("symbolic_locals", "f_code", "lineno"))


def _dynamo_frame(interpreter: Any, names: Names) -> Frame:
    code = interpreter.f_code
    line = interpreter.lineno if isinstance(interpreter.lineno, int) and interpreter.lineno > 0 else code.co_firstlineno
    user = is_user_file(code.co_filename)
    positions = getattr(getattr(interpreter, "current_instruction", None), "positions", None)
    spot = (
        (positions.lineno, positions.end_lineno, positions.col_offset, positions.end_col_offset) if positions else None
    )
    return Frame(
        file=code.co_filename,
        line=line,
        function=getattr(code, "co_qualname", code.co_name),
        source=source_line(code.co_filename, line),
        module=_dynamo_module(interpreter, names),
        user=user,
        expression=segment(code.co_filename, spot) if user and spot else None,
    )


def _dynamo_module(interpreter: Any, names: Names) -> str | None:
    variable = interpreter.symbolic_locals.get("self")
    value = getattr(variable, "value", None)
    key = getattr(variable, "module_key", None)
    if value is None and key is not None:
        value = getattr(getattr(interpreter, "output", None), "nn_modules", {}).get(key)
    return names.get(state_id(value)) if isinstance(value, torch.nn.Module) else None


def _recorded_frames(error: BaseException) -> Iterator[Frame]:
    """Dynamo's errors carry the user's stack as `real_stack` when their traceback was shortened."""
    for entry in getattr(error, "real_stack", None) or ():
        line = entry.lineno or 0
        yield Frame(
            file=entry.filename,
            line=line,
            function=entry.name,
            source=source_line(entry.filename, line),
            user=is_user_file(entry.filename),
        )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # an exception whose __str__ raises is still a failure to be told
        return f"<{type(error).__name__} whose message cannot be read: {type(broken).__name__}>"
