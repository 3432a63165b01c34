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
    with python_builtins():
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
    with python_builtins():
        return tuple(operator(test, step, tuple(state)))


def python_builtins() -> AbstractContextManager[object]:
    """Within it `max`, `min` and `math.pow` are Python's own. A non-strict export has replaced them, and dynamo, which
    traces what an operator runs, takes its `max` of two numbers for `min`."""
    import torch

    return nullcontext() if torch.compiler.is_dynamo_compiling() else _put_back()


@contextmanager
def _put_back() -> Iterator[None]:
    with ExitStack() as stack:
        for holder, name, value in _OWN:
            stack.enter_context(patch_attribute(holder, name, value))
        yield


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

HOOKS = (SCAN, WHILE_LOOP)
