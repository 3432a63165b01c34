"""The operator that runs a function once for each row and carries state; torch has it under a private name alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from exportdoctor.torch_internals.hook import Hook


def run_steps(
    step: Callable[[Any, Any], tuple[Any, Any]], state: Sequence[Any], rows: Sequence[Any]
) -> tuple[Any, Any]:
    """The last state, and the outputs of all steps with the steps as dimension 0.

    `step` takes the state and a row of each of `rows`, which have the steps as dimension 0. It returns the new state,
    of the same shapes and dtypes, and its outputs; none of them may be one of its inputs.
    """
    import torch
    from torch._dynamo.eval_frame import remove_from_cache
    from torch._higher_order_ops.scan import scan as operator

    # The operator is compiled each time. What an earlier export compiled for fixed sizes would be taken here for
    # symbolic sizes with the same example, and fix them.
    for code in () if torch.compiler.is_dynamo_compiling() else _codes_inside(operator.__code__):
        remove_from_cache(code)
    found: tuple[Any, Any] = operator(step, list(state), list(rows))
    return found


def _codes_inside(code: CodeType) -> tuple[CodeType, ...]:
    return tuple(one for one in code.co_consts if isinstance(one, CodeType))


def _has_scan() -> bool:
    from torch._dynamo.eval_frame import remove_from_cache
    from torch._higher_order_ops.scan import scan as operator

    return callable(remove_from_cache) and bool(_codes_inside(operator.__code__))


SCAN = Hook(
    id="scan-operator",
    api="torch._higher_order_ops.scan.scan, torch._dynamo.eval_frame.remove_from_cache",
    used_for="loops over a dynamic dimension that carry state",
    lost="the shims loops-as-scan and rnn-as-scan, without which such loops fix the dimension",
    seen_on=("2.13.0", "2.14.1"),
    is_there=_has_scan,
)

HOOKS = (SCAN,)
