"""`1.0 - mask` of a tensor of whole numbers: torch.onnx finds no form of what it decomposes that to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import Replacement, Shim


def subtract_promoted(tensor: Any, other: Any, plain: Callable[..., Any], **how: Any) -> Any:
    """`plain(tensor, other)`, of `tensor` in the dtype of the result where a float is taken from whole numbers."""
    import torch

    if isinstance(other, float) and isinstance(tensor, torch.Tensor) and _is_of_integers(tensor.dtype):
        tensor = tensor.to(torch.result_type(tensor, other))
    return plain(tensor, other, **how)


def _is_of_integers(dtype: Any) -> bool:
    """Whether it is one of whole numbers; torch refuses to subtract truth values."""
    import torch

    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    operator, function = torch.Tensor.__rsub__, torch.rsub

    def minus(self: Any, other: Any) -> Any:
        return subtract_promoted(self, other, operator)

    def rsub(input: Any, other: Any, **how: Any) -> Any:
        return subtract_promoted(input, other, function, **how)

    with patch_attribute(torch.Tensor, "__rsub__", minus), patch_attribute(torch, "rsub", rsub):
        yield call


SHIM = Shim(
    id="float-minus-integers",
    title="Converts whole numbers before a float is taken from them: `1.0 - mask`",
    soundness="exact",
    enter=_enter,
    does=(
        "torch.onnx decomposes `1.0 - mask` of a tensor of whole numbers into a subtraction for which it finds no "
        "form. Here the tensor is converted to the dtype of the result first, as eager does by itself."
    ),
    cures=(Cure(kinds=("translate",), message="OpOverload for aten.sub"),),
    needs={"torch": ">=2.13"},
    link="https://docs.pytorch.org/docs/stable/onnx_export.html",
    retire="torch.onnx translates a float minus a tensor of whole numbers",
    rank=20,
    replaces=(
        Replacement(
            target="torch.Tensor.__rsub__",
            before="bias = 1.0 - mask\n",
            after="bias = 1.0 - mask.to(torch.float32)\n",
        ),
    ),
)
