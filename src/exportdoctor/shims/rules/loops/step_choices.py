"""What a step of a loop calls in place of its branches: the arms are run for each step of the program.

dynamo traces a step, so that nothing can be watched in it: what eager runs have shown of a branch decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exportdoctor.shims.rules.branches.arm_choice import VALUE, ArmChoices
from exportdoctor.shims.rules.branches.arm_watch import Unmergeable
from exportdoctor.shims.rules.branches.chosen_numbers import choose_tensor
from exportdoctor.shims.rules.code.observed_rewrite import UNBOUND, value_of
from exportdoctor.shims.rules.loops.loop_conditions import truth_of
from exportdoctor.torch_internals.shape_env import same_sizes

CHOOSE_IN_STEP = "_choose_in_step"


class StepChoices(ArmChoices):
    """The branches in the steps of loops, by their names. `codes` and `refused` are those of the loops' rewrite."""

    @property
    def names(self) -> dict[str, Any]:
        """What the names mean in the code."""
        return {CHOOSE_IN_STEP: self.choose_in_step, VALUE: value_of}

    def choose_in_step(
        self,
        branch: str,
        condition: Any,
        then: Callable[..., Any],
        other: Callable[..., Any],
        *before: Any,
        asked: Callable[[], Any],
        flags: tuple[bool, ...] = (),
    ) -> Any:
        """The result of the arm that the condition says. `flags`: which of its values are only asked whether they
        hold."""
        import torch

        if self.observing:
            return self._observe(branch, condition, then, other, before)
        if not torch.compiler.is_exporting():
            return then(*before) if asked() else other(*before)
        if condition is True or condition is False:
            return then(*before) if condition else other(*before)
        known, chosen = self.branches.get(branch), truth_of(condition)
        if known is None or len(known.arms) < 2 or known.unmergeable:
            raise self.refuse(f"no eager run computes both arms of {branch}, or one of them does more than compute")
        if known.refuses or known.undefined:
            return self._by_cond(branch, chosen, then, other, before, known)
        return choose(chosen, then(*before), other(*before), flags)


def choose(chosen: Any, one: Any, other: Any, flags: tuple[bool, ...] = ()) -> Any:
    """One of two values by a tensor, bool (): tensors of one dtype, or numbers of one type, also in tuples. Those of
    `flags` may be a tensor and a bool. Raises Unmergeable."""
    import torch

    if type(one) is tuple and type(other) is tuple and len(one) == len(other):
        rows = zip(one, other, flags or [False] * len(one), strict=True)
        return tuple(choose(chosen, left, right, (True,) if is_flag else ()) for left, right, is_flag in rows)
    if one is UNBOUND or other is UNBOUND:  # the arm that does not bind a name leads nowhere that reads it
        return other if one is UNBOUND else one
    tensors = [isinstance(value, torch.Tensor) for value in (one, other)]
    if all(tensors):
        if not same_sizes(one, other) or one.dtype != other.dtype or one.device != other.device:
            raise Unmergeable("the arms give tensors of other sizes or dtypes")
        return choose_tensor(chosen, one, other)
    if any(tensors):
        left, right = (_flag(value, chosen) for value in (one, other))
        if not flags or left is None or right is None:
            raise Unmergeable("one arm gives a tensor, the other none")
        return choose_tensor(chosen, left, right)
    if one is None and other is None:
        return None
    for kind, dtype in ((bool, torch.bool), (int, torch.int64), (float, torch.float64)):
        if type(one) is kind and type(other) is kind:
            left, right = (torch.full((), value, dtype=dtype, device=chosen.device) for value in (one, other))
            return choose_tensor(chosen, left, right).item()
    raise Unmergeable("the arms give values of several types")


def _flag(value: Any, chosen: Any) -> Any:
    """A flag as a tensor, bool (); None for anything else."""
    import torch

    if isinstance(value, torch.Tensor):
        return value if value.dtype is torch.bool and value.dim() == 0 else None
    return torch.full((), value, dtype=torch.bool, device=chosen.device) if value is True or value is False else None
