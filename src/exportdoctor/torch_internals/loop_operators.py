"""The operators that run a function for each row, or as long as a condition holds; torch has them under private names
alone."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import CodeType
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.hook import Hook

_OWN = ((builtins, "max", max), (builtins, "min", min), (math, "pow", math.pow))
"""This file is imported before any export."""


def run_steps(
    step: Callable[[Any, Any], tuple[Any, Any]], state: Sequence[Any], rows: Sequence[Any]
) -> tuple[Any, Any]:
    """The last state, and the outputs of all steps with the steps as dimension 0.

    `step` takes the state and a row of each of `rows`, which have the steps as dimension 0. It returns the new state,
    of the same shapes and dtypes, and its outputs; none of them may be one of its inputs.
    """
    from torch._higher_order_ops.scan import scan as operator

    _forget_what_was_compiled(operator)
    with plain_tracing():
        found: tuple[Any, Any] = operator(step, list(state), list(rows))
    return found


def run_while(test: Callable[..., Any], step: Callable[..., tuple[Any, ...]], state: Sequence[Any]) -> tuple[Any, ...]:
    """The state after as many calls of `step` as `test` allows.

    Both take the tensors of the state. `test` gives a tensor, bool (), and `step` the new state, of the same shapes and
    dtypes, none of which may be one of its inputs.
    """
    from torch._higher_order_ops.while_loop import while_loop

    operator: Any = while_loop  # which has no annotations
    _forget_what_was_compiled(operator)
    with plain_tracing():
        return tuple(operator(test, step, tuple(state)))


def plain_tracing() -> AbstractContextManager[object]:
    """Within it dynamo can trace what an operator runs, where a non-strict export or an error of its own is in its way.

    `max`, `min` and `math.pow` are Python's own: an export has replaced them, and dynamo takes its `max` of two numbers
    for `min`. A size that the code reads from outside is given to a call also where dynamo has found it equal to one of
    a tensor inside: of that it has only a promise (`LazyProxy`), which no call takes.
    """
    import torch

    return nullcontext() if torch.compiler.is_dynamo_compiling() else _mend_tracing()


@contextmanager
def _mend_tracing() -> Iterator[None]:
    with ExitStack() as stack:
        for holder, name, value in _OWN:
            stack.enter_context(patch_attribute(holder, name, value))
        if SIZES.is_supported():
            stack.enter_context(_sizes_from_promises())
        yield


def _sizes_from_promises() -> AbstractContextManager[None]:
    from torch._dynamo.output_graph import LazyProxy, SubgraphTracer

    plain = SubgraphTracer.lift_tracked_freevar_to_input

    def lift(tracer: SubgraphTracer, proxy: Any) -> Any:
        found = plain(tracer, proxy)
        if isinstance(found, LazyProxy):
            size = proxy.node.meta["example_value"]
            tracer.lookup_unbound_symbols(size)  # which reads the sizes that are only promised
            found = tracer.bound_symbols[size.node.expr]
        return found

    return patch_attribute(SubgraphTracer, plain.__name__, lift)


def _forget_what_was_compiled(operator: Any) -> None:
    """The operator is compiled each time. What an earlier export compiled for fixed sizes would be taken for symbolic
    sizes with the same example, and fix them."""
    import torch
    from torch._dynamo.eval_frame import remove_from_cache

    for code in () if torch.compiler.is_dynamo_compiling() else _codes_inside(operator.__code__):
        remove_from_cache(code)


def _codes_inside(code: CodeType) -> tuple[CodeType, ...]:
    return tuple(one for one in code.co_consts if isinstance(one, CodeType))


def _has_scan() -> bool:
    from torch._higher_order_ops.scan import scan

    return _can_be_forgotten(scan)


def _has_while_loop() -> bool:
    from torch._higher_order_ops.while_loop import while_loop

    return _can_be_forgotten(while_loop)


def _has_promises() -> bool:
    from torch._dynamo.output_graph import LazyProxy, SubgraphTracer

    lift, look_up = SubgraphTracer.lift_tracked_freevar_to_input, SubgraphTracer.lookup_unbound_symbols
    used = {*lift.__code__.co_names} & {*look_up.__code__.co_names}
    return callable(LazyProxy) and "bound_symbols" in used


def _can_be_forgotten(operator: Any) -> bool:
    from torch._dynamo.eval_frame import remove_from_cache

    return callable(remove_from_cache) and bool(_codes_inside(operator.__code__))


SCAN = Hook(
    id="scan-operator",
    api="torch._higher_order_ops.scan.scan, torch._dynamo.eval_frame.remove_from_cache",
    used_for="loops over a dynamic dimension that carry state",
    lost="the shims loops-as-scan and rnn-as-scan, without which such loops fix the dimension",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_scan,
)
WHILE_LOOP = Hook(
    id="while-loop-operator",
    api="torch._higher_order_ops.while_loop.while_loop, torch._dynamo.eval_frame.remove_from_cache",
    used_for="loops that a tensor's value ends",
    lost="the shim while-as-while-loop, without which such loops do not export",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_while_loop,
)
SIZES = Hook(
    id="promised-sizes",
    api="torch._dynamo.output_graph.{LazyProxy, SubgraphTracer.{lift_tracked_freevar_to_input, ...}}",
    used_for="loops, and branches as torch.cond, that give a dynamic size to several calls, as in `v.view(b, 1)`",
    lost="most of them do not export with the shims for loops and branches",
    seen_on=("2.13.0",),
    is_there=_has_promises,
)

HOOKS = (SCAN, WHILE_LOOP, SIZES)
