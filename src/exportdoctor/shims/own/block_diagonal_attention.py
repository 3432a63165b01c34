"""Packed attention without a loop: sequences in one row, with boundaries in `cu_seqlens`.

A module that cuts queries, keys and values at those boundaries loops over lengths read out of a tensor. One attention
over the whole row with a mask that is true within a segment has the same values for any number and any lengths of
segments. The module's own code runs; only the boundaries that it sees are those of one segment.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rewriting import Overlay, function_tree, rebind_globals

BOUNDARIES = "cu_seqlens"


class Offsets:
    """Boundaries known to Python: sliced, subtracted and listed as a tensor would be, without a tensor."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: Any) -> Any:
        found = self.values[place]
        return Offsets(*found) if isinstance(place, slice) else found

    def __sub__(self, other: Offsets) -> Offsets:
        return Offsets(*(mine - its for mine, its in zip(self.values, other.values, strict=True)))

    def tolist(self) -> Segments:
        """The values; a split into one piece is known by this list."""
        return Segments(self.values)

    def max(self) -> Offsets:
        """The longest of one segment is that segment."""
        return self

    def item(self) -> Any:
        """The only value."""
        return self.values[0]

    @property
    def shape(self) -> tuple[int]:
        """As a tensor of one dimension."""
        return (len(self.values),)


class Segments(list[Any]):
    """Lengths of segments that came from Offsets."""


class AttentionFunctions:
    """The table of attention functions, each made to keep to the segments."""

    def __init__(self, below: Any, keep: Callable[..., Any]) -> None:
        self.below, self.keep = below, keep

    def __getitem__(self, name: str) -> Any:
        return self.keep(self.below[name], boolean=name == "sdpa")

    def get(self, name: str, default: Any = None) -> Any:
        """As a mapping's `get`."""
        return self[name] if name in self.below else default

    def get_interface(self, name: str, default: Any) -> Any:
        """As transformers 5 calls it; the default is the module's own eager attention, wrapped already."""
        return self[name] if name in self.below else default


def same_segment(boundaries: Any, length: Any) -> Any:
    """bool (length, length): whether two positions lie between the same boundaries, int (segments + 1,)."""
    import torch

    positions = torch.arange(length, device=boundaries.device)
    segments = (positions.unsqueeze(1) >= boundaries.unsqueeze(0)).sum(1)
    return segments.unsqueeze(1) == segments.unsqueeze(0)


def block_diagonal(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a packed attention, without the loop over its segments."""
    plain = inspect.unwrap(forward)
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def attend_packed(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        packed, boundaries = list(bound.arguments.values())[1], bound.arguments[BOUNDARIES]
        length = packed.shape[-2]
        bound.arguments[BOUNDARIES] = Offsets(0, length)
        return rebind_globals(plain, _names(plain, boundaries, length))(*bound.args, **bound.kwargs)

    return attend_packed


def _names(plain: Any, boundaries: Any, length: Any) -> dict[str, Any]:
    """What the forward's global names mean while its row is one segment."""

    def keep(attention: Callable[..., Any], *, boolean: bool = False) -> Callable[..., Any]:
        @functools.wraps(attention)
        def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
            mask = same_segment(boundaries, length)[None, None]
            if not boolean or attention_mask is not None:
                mask = _additive(mask, query.dtype)
            if attention_mask is not None:
                mask = mask + attention_mask
            return attention(module, query, key, value, attention_mask=mask, **kwargs)

        return attend

    found = plain.__globals__
    names: dict[str, Any] = {}
    if "ALL_ATTENTION_FUNCTIONS" in found:
        names["ALL_ATTENTION_FUNCTIONS"] = AttentionFunctions(found["ALL_ATTENTION_FUNCTIONS"], keep)
    if "eager_attention_forward" in found:
        names["eager_attention_forward"] = keep(found["eager_attention_forward"])
    if "torch" in found:
        names["torch"] = Overlay(found["torch"], split=_split)
    return names


def _split(tensor: Any, sizes: Any, dim: int = 0) -> Any:
    import torch

    return (tensor,) if isinstance(sizes, Segments) else torch.split(tensor, sizes, dim)


def _additive(mask: Any, dtype: Any) -> Any:
    import torch

    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def splits_by_boundaries(forward: Callable[..., Any]) -> bool:
    """Whether a forward takes `cu_seqlens` and cuts by them: a split by a `.tolist()`, or a loop over them."""
    tree = function_tree(forward)
    if tree is None or BOUNDARIES not in inspect.signature(inspect.unwrap(forward)).parameters:
        return False
    return any(_cuts(node) for node in ast.walk(tree))


def _cuts(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="split"), args=arguments):
            return any("tolist" in ast.unparse(argument) for argument in arguments)
        case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=arguments)):
            return any(f"len({BOUNDARIES})" in ast.unparse(argument) for argument in arguments)
    return False


def _asks_for_flash(module: Any) -> bool:
    return "flash" in str(getattr(getattr(module, "config", None), "_attn_implementation", ""))


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = [module for module in call.module.modules() if splits_by_boundaries(type(module).forward)]
    found = [module for module in found if not _asks_for_flash(module)]
    if not found:
        raise NotApplicable(f"no submodule splits its input at {BOUNDARIES}")
    new = {owner: block_diagonal(owner.forward) for owner in {type(module) for module in found}}
    # another library may have left a forward on the module, which hides the class's
    own = [module for module in found if "forward" in vars(module)]
    on_classes = ((owner, "forward", forward) for owner, forward in new.items())
    on_modules = ((module, "forward", MethodType(new[type(module)], module)) for module in own)
    with patch_attributes([*on_classes, *on_modules]):
        yield call


SHIM = Shim(
    id="block-diagonal-attention",
    title="Uses one block-diagonal mask for packed attention instead of a loop over segments",
    soundness="exact",
    enter=_enter,
    does=(
        "A submodule that splits queries, keys and values at `cu_seqlens` attends to the whole sequence "
        "at once, with a mask that is true within each segment. Valid for any number and lengths of "
        "segments. Memory and time of the mask grow with the square of the sequence length."
    ),
    cures=(
        Cure(
            kinds=("data_dependent_guard", "data_dependent_value", "dynamic_dim_specialised"),
            where=r"lengths\.tolist\(\)|cu_seqlens|VisionAttention\.forward|split\(.*tolist\(\)",
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://github.com/huggingface/transformers/pull/41992",
    retire="transformers implements packed vision attention with an operator that takes cu_seqlens",
    rank=20,
    conflicts=("hf.chunked-vision-attention", "od.Qwen2_5_VLVisionAttention"),
    replaces=(
        Replacement(
            target="transformers.models.qwen2_5_vl.modeling_qwen2_5_vl:Qwen2_5_VLVisionAttention.forward",
            by="exportdoctor.shims.own.block_diagonal_attention:block_diagonal",
        ),
    ),
)
