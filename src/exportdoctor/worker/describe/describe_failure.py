"""Turns an exception into a Failure, from the frames of its traceback and not from their text.

Dynamo interprets the user's code instead of running it, so its frames are taken from its interpreter objects,
which are found on the same traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import FrameType, TracebackType

import msgspec
import torch

from exportdoctor.core.exception_text import cause_of, context_of, text_of
from exportdoctor.core.failure.frames import is_our_file, is_user_file
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, Stage
from exportdoctor.torch_internals.dynamo_frames import interpreted_frame, is_interpreter, recorded_stack
from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.torch_internals.tracer_frames import symbolic_node
from exportdoctor.worker.describe.module_stack import (
    Names,
    innermost_of,
    is_call_of_module,
    module_of_method,
    runs_module,
)
from exportdoctor.worker.describe.partial_graph import custom_ops, last_op
from exportdoctor.worker.describe.python_frames import (
    is_raised_by_user,
    python_frame,
    segment,
    source_line,
    tracebacks,
)

_LONGEST_MESSAGE = 1_000_000
_NAMED_CALL = re.compile(r'The following call raised this error:\n  File "([^"\n]+)", line (\d+), in (\S+)')
"""In the message of a data-dependent failure (torch 2.8 to 2.13)."""


def describe_failure(error: BaseException, *, stage: Stage, names: Names) -> Failure:
    """The failure that `error` is. `names` maps `state_id(module)` to its FQN within the scanned part."""
    chain = tuple(cause_chain(error))
    return Failure(
        stage=stage,
        exceptions=tuple(
            ExceptionFact(type=qualified_name(type(e)), message=text_of(e, _LONGEST_MESSAGE)) for e in chain
        ),
        frames=tuple(_stack(chain, names)),
        op=last_op(chain),
        custom_ops=custom_ops(chain),
    )


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and each exception that it was raised from, outermost first.

    What user code raises while it handles a failure was caused by that failure, whether it says `from` or not. Other
    implicit contexts are left out: torch raises many errors while it handles one that it expects.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = cause_of(current) or (context_of(current) if is_raised_by_user(current) else None)


def qualified_name(kind: type) -> str:
    """`package.module.Class`, or `Class` alone for a builtin."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _stack(chain: tuple[BaseException, ...], names: Names) -> Iterator[Frame]:
    """The stack of the exception in `chain` that saw the most user code, else dynamo's own record of it.

    Where user code raised an exception because of another, only the other's stack leads to what failed.
    """
    causes = [error for error in chain if not is_raised_by_user(error)] or list(chain[-1:])
    stacks = [tuple(_frames(links, names)) for error, links in _spliced_tracebacks(chain) if error in causes]
    best = max(stacks, key=lambda stack: (sum(frame.user for frame in stack), len(stack)), default=())
    best = _with_named_call(_with_recorded(best, chain), chain)
    module: str | None = None
    for frame in best:
        module = innermost_of(module, frame.module)
        if not is_our_file(frame.file):
            yield msgspec.structs.replace(frame, module=module)


def _spliced_tracebacks(
    chain: tuple[BaseException, ...],
) -> Iterator[tuple[BaseException, tuple[TracebackType, ...]]]:
    """Each exception with the links of its traceback, outermost first, from the export's call on.

    The traceback of an exception that was caught begins where it was caught; what called that is on the one that was
    raised then.
    """
    outer: tuple[TracebackType, ...] = ()
    for error in chain:
        links = tuple(tracebacks(error))
        caught = links[0].tb_frame if links else None
        callers = next((outer[:index] for index, link in enumerate(outer) if link.tb_frame is caught), ())
        outer = (*callers, *links)
        yield error, outer


def _with_recorded(stack: tuple[Frame, ...], chain: tuple[BaseException, ...]) -> tuple[Frame, ...]:
    """Dynamo shortens tracebacks, in strict mode to nothing, in the body of a higher-order op to the call of it.

    Its own record of the user's stack has the rest; frames that are in `stack` already are left out.
    """
    known = {(frame.file, frame.line) for frame in stack if frame.user}
    for error in reversed(chain):
        recorded = tuple(_recorded_frames(error))
        fresh = tuple(frame for frame in recorded if (frame.file, frame.line) not in known)
        if any(frame.user for frame in fresh):
            return (*stack, *fresh) if known else recorded
    return stack


def _with_named_call(stack: tuple[Frame, ...], chain: tuple[BaseException, ...]) -> tuple[Frame, ...]:
    """A traceback that user code took from an exception ends at its `raise`; torch's message names the line."""
    for error in chain:
        named = _NAMED_CALL.search(text_of(error, _LONGEST_MESSAGE)) if is_raised_by_user(error) else None
        if named is not None:
            file, line, function = named[1], int(named[2]), named[3]
            known = any((frame.file, frame.line) == (file, line) for frame in stack)
            source, user = source_line(file, line), is_user_file(file)
            return (
                stack if known else (*stack, Frame(file=file, line=line, function=function, source=source, user=user))
            )
    return stack


def _frames(links: tuple[TracebackType, ...], names: Names) -> Iterator[Frame]:
    """The frames of one traceback, with dynamo's interpreters replaced by the code that they interpret."""
    seen: set[int] = set()
    for link in links:
        frame = link.tb_frame
        yield from _traced_frames(frame, links, names)
        owner = frame.f_locals.get("self")
        if not is_interpreter(owner):
            module = module_of_method(frame) if runs_module(frame) else None
            yield python_frame(frame, link, None if module is None else names.get(state_id(module)))
        elif id(owner) not in seen:
            seen.add(id(owner))
            yield _dynamo_frame(owner, names)


def _traced_frames(frame: FrameType, links: tuple[TracebackType, ...], names: Names) -> Iterator[Frame]:
    """The user's stack when the operator was traced that the TorchScript exporter translates in this frame."""
    found = symbolic_node(frame)
    if found is None:
        return
    _, scope, stack = found
    given = [link.tb_frame.f_locals.get("model") for link in links]
    root = next((names.get(state_id(one)) for one in given if isinstance(one, torch.nn.Module)), None)
    module = None if root is None else ".".join(filter(None, (root, scope)))
    for file, line, function in stack:
        if is_user_file(file):
            yield Frame(
                file=file, line=line, function=function, source=source_line(file, line), module=module, user=True
            )


def _dynamo_frame(interpreter: object, names: Names) -> Frame:
    found = interpreted_frame(interpreter)
    code, path = found.code, found.code.co_filename
    user = is_user_file(path)
    runs = user or is_call_of_module(code.co_name)
    return Frame(
        file=path,
        line=found.line,
        function=getattr(code, "co_qualname", code.co_name),
        source=source_line(path, found.line),
        module=names.get(state_id(found.owner)) if isinstance(found.owner, torch.nn.Module) and runs else None,
        user=user,
        expression=segment(path, found.positions) if user and found.positions else None,
    )


def _recorded_frames(error: BaseException) -> Iterator[Frame]:
    """The user's stack that dynamo's errors carry when their traceback was shortened."""
    for entry in recorded_stack(error):
        line = entry.lineno or 0
        yield Frame(
            file=entry.filename,
            line=line,
            function=entry.name,
            source=source_line(entry.filename, line),
            user=is_user_file(entry.filename),
        )
