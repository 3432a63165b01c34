"""1-d max pooling as 2-d pooling over rows of height one, because the kernel of the former fixes the length.

`torch.max_pool1d` is composed in C++ of whole numbers; `torch.max_pool2d` is known to fake tensors with symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import calls_any
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim


def pool_as_2d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """The values of `torch.max_pool1d`: (channels, length) or (batch, channels, length), any floating dtype."""
    import torch

    def single(value: Any) -> Any:
        return value[0] if isinstance(value, tuple | list) else value

    size = single(kernel_size)
    step = size if stride is None or stride in ([], ()) else single(stride)
    pooled = torch.max_pool2d(
        input.unsqueeze(-2), (1, size), (1, step), (0, single(padding)), (1, single(dilation)), ceil_mode
    )
    return pooled.squeeze(-2)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    if not calls_any(call, [(torch, "max_pool1d")]):
        raise NotApplicable("forward does not pool in one dimension")
    with patch_attribute(torch, "max_pool1d", pool_as_2d):
        yield call


SHIM = Shim(
    id="max-pool-1d-as-2d",
    title="Pools over rows of height one, so that the length stays dynamic",
    soundness="precondition",
    enter=_enter,
    precondition="each row is pooled to more than one value, and nothing depends on the strides of the result",
    does=(
        "`torch.max_pool1d` takes sizes as numbers when it is traced, and fixes the length. `torch.max_pool2d` of the"
        " same values with one more dimension, of size one, gives the same maxima. Its trace"
        " refuses rows that give one value, and its strides follow those of the input."
    ),
    cures=(Cure(kinds=("dynamic_dim_specialised",)),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.MaxPool1d.html",
    retire="torch.export keeps the length of torch.max_pool1d dynamic",
    rank=20,
    replaces=(Replacement(target="torch:max_pool1d", by="exportdoctor.shims.own.max_pool_1d:pool_as_2d"),),
)
