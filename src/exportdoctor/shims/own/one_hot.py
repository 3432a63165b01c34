"""`one_hot` reads the number of classes from the values. Here it is what `item` gives, and the rows are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.function_stand_ins import stand_in_for_functions
from exportdoctor.shims.record import Replacement, Shim


def _one_hot(input: Any, num_classes: Any = -1) -> Any:
    import torch

    if input.dtype != torch.int64:
        raise TypeError(f"one_hot takes int64, found {input.dtype}")
    classes = num_classes.item() if isinstance(num_classes, torch.Tensor) else num_classes
    if isinstance(classes, int) and classes == -1:
        classes = input.max().item() + 1
    fits = ((input >= 0) & (input < classes)).all()
    torch.ops.aten._assert_async.msg(fits, "a class that is not in one_hot's range")
    return (input.unsqueeze(-1) == torch.arange(classes, device=input.device)).to(torch.int64).contiguous()


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    with stand_in_for_functions(call.module, {"one_hot": _one_hot}):
        yield call


SHIM = Shim(
    id="one-hot-as-comparison",
    title="Computes `one_hot` of a number of classes that depends on values by a comparison",
    soundness="exact",
    enter=_enter,
    does=(
        "Without `num_classes`, `one_hot` reads the largest value, which a traced tensor does not have; nor does it "
        "take a number of classes that is read from a tensor. Here each value is compared with the numbers of the "
        "classes. The program asserts that they are in range, as `one_hot` does."
    ),
    precondition="a number of classes that is read from a tensor is not negative",
    cures=(Cure(kinds=("data_dependent_value",), where=r"\bone_hot\("),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.one_hot.html",
    retire="torch.nn.functional.one_hot takes a symbolic number of classes",
    rank=16,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="torch.nn.functional.one_hot",
            before="one_hot(x)\n",
            after="(x[..., None] == torch.arange(x.max().item() + 1)).long()\n",
        ),
    ),
)
