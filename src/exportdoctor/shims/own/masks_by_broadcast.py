"""Attention masks made on broadcast index tensors instead of by nested `torch.vmap` over single indices.

transformers builds its masks from small functions of four indices. Those are comparisons and indexing, so four index
tensors of shapes (b, 1, 1, 1), (1, h, 1, 1), (1, 1, q, 1) and (1, 1, 1, k) give the same mask without a transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim

_MASKING = "transformers.masking_utils"
_INDEXING = "TransformGetItemToIndex"
_EXPANSIONS = ("_vmap_for_bhqkv", "_vmap_expansion_sdpa")


def broadcast_expansion(mask_function: Callable[..., Any], bh_indices: bool = True) -> Callable[..., Any]:
    """In place of the vmapped function: takes 1-d indices, bool (b, h, q, k), or (q, k) without the first two."""
    _refuse_unknown(mask_function)

    def expand_mask(batch: Any, head: Any, query: Any, key: Any) -> Any:
        if not bh_indices:
            return mask_function(batch, head, query[:, None], key[None, :]).expand(query.shape[0], key.shape[0])
        found = mask_function(
            batch[:, None, None, None], head[None, :, None, None], query[None, None, :, None], key[None, None, None, :]
        )
        return found.expand(batch.shape[0], head.shape[0], query.shape[0], key.shape[0])

    return expand_mask


def _refuse_unknown(mask_function: Any) -> None:
    """A mask function of somebody else might do more than compare and index; then the two ways could differ."""
    if getattr(mask_function, "__module__", "") != _MASKING:
        name = getattr(mask_function, "__qualname__", mask_function)
        raise NotApplicable(f"the mask function {name} is not one of transformers")
    for cell in mask_function.__closure__ or ():
        inner = cell.cell_contents if isinstance(cell.cell_contents, tuple) else (cell.cell_contents,)
        for function in filter(callable, inner):
            _refuse_unknown(function)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    from transformers import masking_utils

    found = [name for name in _EXPANSIONS if name in vars(masking_utils)]
    if not found:
        raise NotApplicable(f"{_MASKING} does not use vmap")
    changes: list[tuple[Any, str, Any]] = [(masking_utils, name, broadcast_expansion) for name in found]
    if _INDEXING in vars(masking_utils):  # made for indices inside of vmap; tensors can index by themselves
        changes.append((masking_utils, _INDEXING, nullcontext))
    with patch_attributes(changes):
        yield call


SHIM = Shim(
    id="mask-without-vmap",
    title="Builds attention masks by broadcasting instead of vmap",
    soundness="exact",
    enter=_enter,
    does=(
        "The mask functions of transformers are called once on broadcasting index tensors instead of "
        "through four nested `torch.vmap`. Mask functions that are not part of transformers are refused, "
        "because they might do more than compare and index."
    ),
    cures=(
        Cure(kinds=("vmap",)),
        Cure(where=r"masking_utils\.py.*(vmap|_mask)", message=r"vmap|is not tracked with proxy|not registered"),
        Cure(kinds=("torchscript_trace",), where=r"masking_utils"),
        Cure(kinds=("torchscript_trace",), message=r"unordered_map::at|_Map_base::at"),
    ),
    needs={"torch": ">=2.8", "transformers": ">=4.53"},
    link="https://github.com/pytorch/pytorch/issues/163713",
    retire=(
        "versions before torch 2.10 and transformers 5 are no longer supported: torch 2.10 traces vmap, "
        "transformers 5 does not use it"
    ),
    rank=10,
    conflicts=("hf.broadcast-mask-expansion", "od._vmap_for_bhqkv"),
    replaces=tuple(
        Replacement(
            target=f"{_MASKING}:{name}",
            by="exportdoctor.shims.own.masks_by_broadcast:broadcast_expansion",
            optional=True,
        )
        for name in _EXPANSIONS
    ),
)
