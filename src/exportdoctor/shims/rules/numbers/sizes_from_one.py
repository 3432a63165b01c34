"""A size that is read from a tensor may be any number for torch: here the program asserts that it is at least one.

torch then knows that what has such sizes has elements, which a view, for example, asks for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.shims.rules.numbers.tensor_sizes import SHAPES, replace_sizes
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.shape_env import has_unbacked_size
from exportdoctor.torch_internals.trees import tree_leaves


@dataclass
class _Checks:
    """Whether forward was traced, and how many sizes it then took that follow from values of tensors."""

    traced: bool = False
    made: int = 0

    def check(self, size: Any) -> Any:
        """The number of the size, which is asserted to be at least one where it follows from a tensor's values."""
        import torch

        number = size.item() if isinstance(size, torch.Tensor) else size
        if isinstance(number, torch.SymInt) and has_unbacked_size(number):
            torch._check(number >= 1, lambda: "a size that is read from a tensor is less than one")
            self.made += 1
        return number


def _checking_mode(checks: _Checks) -> Any:
    from torch.overrides import TorchFunctionMode

    class Checking(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if getattr(func, "__name__", "") in SHAPES:
                args, kwargs = replace_sizes(func, args, kwargs, checks.check)
            return func(*args, **kwargs)

    return Checking()


def _with_checks(checks: _Checks, forward: Forward) -> Forward:
    def checking_forward(*args: Any, **kwargs: Any) -> Any:
        if not any(map(is_fake, tree_leaves((args, kwargs)))):
            return forward(*args, **kwargs)
        checks.traced = True
        with _checking_mode(checks):
            return forward(*args, **kwargs)

    return checking_forward


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    checks = _Checks()
    with patch_root_forward(call.module, functools.partial(_with_checks, checks)):
        yield call
    if checks.traced and not checks.made:
        raise NotApplicable("no size follows from the values of a tensor")


SHIM = Shim(
    id="sizes-from-one",
    title="Asserts that sizes which are read from tensors are at least one",
    soundness="precondition",
    enter=_enter,
    does=(
        "`x.view(height, width, -1)`, `torch.zeros(count)` and their like take numbers that follow from values of "
        "tensors, such as an image grid. They may be any number for torch, which cannot decide then whether what they "
        "shape has elements. Here the program asserts that each such size is at least one, which torch uses as it "
        "traces. All sizes stay dynamic."
    ),
    precondition="sizes that are read from tensors are at least one; the program refuses others",
    cures=(Cure(kinds=("data_dependent_guard",), operator=r"\bitem\b|_local_scalar_dense"),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch._check.html",
    retire="the code states the bounds of such sizes by torch._check",
    rank=22,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="sizes that are read from tensors",
            before="x.view(height, -1)\n",
            after="torch._check(height >= 1)\nx.view(height, -1)\n",
        ),
    ),
)
