"""Packed attention without a loop: sequences in one row, with boundaries in `cu_seqlens`.

A module that cuts queries, keys and values at those boundaries loops over lengths read out of a tensor. One attention
over the whole row with a mask that is true within a segment has the same values for any lengths. The module's own code
runs; its split makes two stand-ins for any number of segments. They may be attended to, both alike, and their answers
put together again: whatever else happens to them could differ from segment to segment, and is refused.
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
from exportdoctor.shims.rewriting import function_tree, rebind_globals
from exportdoctor.shims.segmented_call import Boundaries, SegmentedCall

BOUNDARIES = "cu_seqlens"


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


def block_diagonal(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a packed attention, without the loop over its segments."""
    plain: Any = inspect.unwrap(forward)
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def attend_packed(self: Any, *args: Any, **kwargs: Any) -> Any:
        segmented = SegmentedCall()
        names: dict[str, Any] = {}
        if "ALL_ATTENTION_FUNCTIONS" in plain.__globals__:
            table = plain.__globals__["ALL_ATTENTION_FUNCTIONS"]
            names["ALL_ATTENTION_FUNCTIONS"] = AttentionFunctions(table, segmented.keep)
        if "eager_attention_forward" in plain.__globals__:
            names["eager_attention_forward"] = segmented.keep(plain.__globals__["eager_attention_forward"])
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments[BOUNDARIES] = Boundaries(bound.arguments[BOUNDARIES])
        with _watch(segmented):
            return segmented.finish(rebind_globals(plain, names)(*bound.args, **bound.kwargs))

    return attend_packed


def _watch(segmented: SegmentedCall) -> Any:
    """A context in which each torch function of the forward is called through `segmented`."""
    from torch.overrides import TorchFunctionMode

    class SegmentMode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return segmented.call(func, args, kwargs or {})

    return SegmentMode()


def splits_by_boundaries(forward: Callable[..., Any]) -> bool:
    """Whether a forward takes `cu_seqlens` and has a split by a `.tolist()`."""
    tree = function_tree(forward)
    if tree is None or BOUNDARIES not in inspect.signature(inspect.unwrap(forward)).parameters:
        return False
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "tolist"
        for node in ast.walk(tree)
    ) and any(isinstance(node, ast.Attribute) and node.attr == "split" for node in ast.walk(tree))


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
        "segments, also empty ones; the program asserts that they cover all rows, as a split does. Refused "
        "where anything else is done to a segment, and where the module's attention, tried on drawn numbers, "
        "does not keep to such a mask. "
        "Memory and time of the mask grow with the square of the sequence length."
    ),
    cures=(
        Cure(
            kinds=("data_dependent_guard", "data_dependent_value", "dynamic_dim_specialised"),
            where=r"lengths\.tolist\(\)|cu_seqlens|VisionAttention\.forward|split\(.*tolist\(\)",
        ),
    ),
    precondition="queries, keys and values are finite: an infinity or NaN in one segment may make others NaN",
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
