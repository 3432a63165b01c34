"""The operator that runs a function once for each row and carries state; torch has it under a private name alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from exportdoctor.torch_internals.hook import Hook


def run_steps(
    step: Callable[[Any, Any], tuple[Any, Any]], state: Sequence[Any], rows: Sequence[Any]
) -> tuple[Any, Any]:
    """The last state, and the outputs of all steps with the steps as dimension 0.

    `step` takes the state and a row of each of `rows`, which have the steps as dimension 0. It returns the new state,
    of the same shapes and dtypes, and its outputs; none of them may be one of its inputs.
    """
    from torch._higher_order_ops.scan import scan as operator

    found: tuple[Any, Any] = operator(step, list(state), list(rows))
    return found


def _has_scan() -> bool:
    from torch._higher_order_ops.scan import scan as operator

    return callable(operator)


SCAN = Hook(
    id="scan-operator",
    api="torch._higher_order_ops.scan.scan",
    used_for="loops over a dynamic dimension that carry state",
    lost="the shims loops-as-scan and rnn-as-scan, without which such loops fix the dimension",
    seen_on=("2.13.0",),
    is_there=_has_scan,
)

HOOKS = (SCAN,)
