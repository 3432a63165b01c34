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
from dataclasses import dataclass, field
from itertools import accumulate
from types import MethodType
from typing import Any, Literal

from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rewriting import function_tree, rebind_globals
from exportdoctor.torch_internals.tracing_modes import outside_all_modes
from exportdoctor.torch_internals.trees import tree_leaves, tree_map_only

BOUNDARIES = "cu_seqlens"
_TRIED_LENGTHS = (2, 4, 1)
_SEED = 20


@dataclass(eq=False)
class Boundaries:
    """Boundaries, int (segments + 1,), whose differences are not computed: one segment would be a size of its own.

    `part` says what it stands for: all of them, the `ends` of segments, their `starts`, or their `lengths`. For all
    but a split by the lengths it is that tensor.
    """

    tensor: Any
    part: Literal["all", "ends", "starts", "lengths"] = "all"

    @property
    def value(self) -> Any:
        """The tensor."""
        match self.part:
            case "ends":
                return self.tensor[1:]
            case "starts":
                return self.tensor[:-1]
            case "lengths":
                return self.tensor[1:] - self.tensor[:-1]
        return self.tensor

    def __getitem__(self, place: Any) -> Any:
        if self.part == "all" and place in (slice(1, None), slice(None, -1)):
            return Boundaries(self.tensor, "ends" if place.start else "starts")
        return self.value[place]

    def __sub__(self, other: Any) -> Any:
        parts = (self.part, getattr(other, "part", ""))
        if parts == ("ends", "starts") and self.tensor is other.tensor:
            return Boundaries(self.tensor, "lengths")
        return self.value - (other.value if isinstance(other, Boundaries) else other)

    def tolist(self) -> Lengths:
        """What a split takes."""
        if self.part != "lengths":
            raise NotApplicable("it makes a list of boundaries")
        return Lengths(self.tensor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __len__(self) -> int:
        return len(self.value)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """In any torch function it is its tensor."""
        args, kwargs = tree_map_only(cls, lambda one: one.value, (args, kwargs or {}))
        return func(*args, **kwargs)


@dataclass(eq=False)
class Lengths:
    """Stands for the list of lengths of the segments between `boundaries`; a split takes it, and nothing else."""

    boundaries: Any

    def __iter__(self) -> Iterator[Any]:
        raise NotApplicable("lengths of segments are used outside of a split")

    __len__ = __getitem__ = __index__ = __iter__  # type: ignore[assignment]


@dataclass(eq=False)
class StandIn:
    """The first or second of two segments that stand for any number: `value` for a part of `whole`.

    `source` is what it was cut by: boundaries, or the attention that answered, of whose outputs it is number `leaf`.
    """

    value: Any
    whole: Any
    second: bool
    source: Any
    leaf: int = 0


@dataclass(eq=False)
class SegmentAttention:
    """One attention over whole rows, which the forward calls once for each segment."""

    attend: Callable[..., Any]
    rows: tuple[Any, ...]
    boundaries: Any
    options: dict[str, Any]
    boolean: bool
    answer: Any = None
    second: bool = False
    joined: bool = False

    def run(self) -> Any:
        """The answer for the whole rows."""
        self.answer = self.attend(*self.rows, self._mask(self.boundaries, self.rows[0]), **self.options)
        return self.answer

    def _mask(self, boundaries: Any, query: Any) -> Any:
        mask = same_segment(boundaries, query.shape[-2])
        if not self.boolean:
            mask = _additive(mask, query.dtype)
        return mask[None, None] if query.dim() == 4 else mask

    def is_alike(self, other: SegmentAttention) -> bool:
        """Whether the other call differs from this one in nothing but its segment."""
        mine, its = (tree_leaves([one.rows, one.boundaries, one.options]) for one in (self, other))
        return len(mine) == len(its) and all(map(_is_same, mine, its)) and self.options.keys() == other.options.keys()

    def check(self, leaf: int, dim: int) -> None:
        """Raises NotApplicable unless output `leaf` on drawn numbers is that of each segment alone, joined at `dim`."""
        import torch

        generator = torch.Generator().manual_seed(_SEED)
        with outside_all_modes(), torch.no_grad():
            shapes = [(*row.shape[:-2], sum(_TRIED_LENGTHS), row.shape[-1]) for row in self.rows]
            try:
                rows = [
                    2 * torch.randn([int(size) for size in shape], generator=generator).to(row.dtype)
                    for shape, row in zip(shapes, self.rows, strict=True)
                ]
                found = self.attend(
                    *rows, self._mask(torch.tensor([0, *accumulate(_TRIED_LENGTHS)]), rows[0]), **self.options
                )
                segments = zip(*(torch.split(row, list(_TRIED_LENGTHS), -2) for row in rows), strict=True)
                apart = [tree_leaves(self.attend(*segment, None, **self.options))[leaf] for segment in segments]
                one, other = tree_leaves(found)[leaf], torch.cat(apart, dim)
            except Exception as error:
                raise NotApplicable(f"its attention cannot be given a mask: {type(error).__name__}: {error}") from error
        close = 1e-4 if one.dtype in (torch.float32, torch.float64) else 5e-2
        if one.shape != other.shape or not torch.allclose(one, other, close, close):
            raise NotApplicable("its attention with a mask is not its attention to each segment alone")


@dataclass(eq=False)
class SegmentedCall:
    """What one call of a packed attention's forward does with the stand-ins, by the identity of their tensors."""

    found: dict[int, StandIn] = field(default_factory=dict)
    attentions: list[SegmentAttention] = field(default_factory=list)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A torch function that the forward calls: on stand-ins, only those that mean the same for any segment."""
        import torch

        name = getattr(func, "__name__", "")
        if name == "split" and any(isinstance(leaf, Lengths) for leaf in (*args, *kwargs.values())):
            return self._split(*args, **kwargs)
        if name in ("cat", "concat", "concatenate") and any(id(leaf) in self.found for leaf in tree_leaves(args)):
            return self._join(*args, **kwargs)
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self._attend_sdpa(func, *args, **kwargs)
        self._refuse((args, kwargs), name)
        return func(*args, **kwargs)

    def _refuse(self, values: Any, where: str) -> None:
        if any(id(leaf) in self.found for leaf in tree_leaves(values)):
            raise NotApplicable(f"its segments are not only attended to: {where}")

    def _stand_ins(self, whole: Any, source: Any, leaf: int = 0) -> tuple[Any, Any]:
        made = [StandIn(whole.view_as(whole), whole, second, source, leaf) for second in (False, True)]
        self.found.update((id(one.value), one) for one in made)
        return made[0].value, made[1].value

    def _split(self, tensor: Any, split_size_or_sections: Any, dim: int = 0, **sizes: Any) -> tuple[Any, Any]:
        self._refuse(tensor, "split")
        lengths = sizes.get("split_size", split_size_or_sections)
        if dim % tensor.dim() != tensor.dim() - 2 or tensor.dim() < 3:
            raise NotApplicable("it splits another dimension than the rows of an attention")
        return self._stand_ins(tensor, lengths.boundaries)

    def keep(self, attention: Callable[..., Any], *, boolean: bool = False) -> Callable[..., Any]:
        """The attention; where it is given stand-ins, the whole rows with a mask."""

        @functools.wraps(attention)
        def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
            def attend_masked(query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
                return attention(module, query, key, value, attention_mask=mask, **kwargs)

            rows = (query, key, value)
            if not any(id(row) in self.found for row in rows):
                return attention(module, *rows, attention_mask=attention_mask, **kwargs)
            return self._attend(attend_masked, rows, attention_mask, kwargs, boolean=boolean)

        return attend

    def _attend_sdpa(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        def attend_masked(query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
            return func(query, key, value, mask, **kwargs)

        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        rows = tuple(given.pop(name) for name in names[:3])
        if not any(id(row) in self.found for row in rows):
            return func(*args, **kwargs)
        return self._attend(attend_masked, rows, given.pop("attn_mask", None), given, boolean=True)

    def _attend(self, attend: Any, rows: Any, mask: Any, options: dict[str, Any], *, boolean: bool) -> Any:
        import torch

        segments = [self.found.get(id(row)) for row in rows]
        self._refuse(options, "attention")
        if mask is not None:
            raise NotApplicable("its attention to a segment has a mask already")
        if len({(one.second, id(one.source)) for one in segments if one}) != 1 or None in segments:
            raise NotApplicable("it attends from one segment to another")
        whole = tuple(one.whole for one in segments if one)
        made = SegmentAttention(attend, whole, segments[0].source, options, boolean)  # type: ignore[union-attr]
        if not segments[0].second:  # type: ignore[union-attr]
            self.attentions.append(made)
            made.run()
        else:
            waiting = [one for one in self.attentions if not one.second]
            if not waiting or not waiting[0].is_alike(made):
                raise NotApplicable("its segments are not all attended to alike")
            made = waiting[0]
            made.second = True
        count = iter(range(len(tree_leaves(made.answer))))

        def stand_in(tensor: Any) -> Any:
            return self._stand_ins(tensor, made, next(count))[made.second]

        return tree_map_only(torch.Tensor, stand_in, made.answer)

    def _join(self, tensors: Any, dim: int = 0, **kwargs: Any) -> Any:
        parts = [self.found.get(id(tensor)) for tensor in tensors]
        first, *rest = parts
        attention = first.source if first else None
        if (
            not isinstance(attention, SegmentAttention)
            or [one and (one.source, one.leaf, one.second) for one in rest] != [(attention, first.leaf, True)]  # type: ignore[union-attr]
            or first.second  # type: ignore[union-attr]
            or kwargs
        ):
            raise NotApplicable("it does not join the segments in their order")
        attention.check(first.leaf, dim)  # type: ignore[union-attr]
        attention.joined = True
        return first.whole  # type: ignore[union-attr]

    def finish(self, answer: Any) -> Any:
        """The forward's answer. Raises NotApplicable where segments are in it, or were attended to and not joined."""
        self._refuse(answer, "returned")
        if not all(one.joined and one.second for one in self.attentions):
            raise NotApplicable("it does not join its segments")
        return answer


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
    """bool (length, length): whether two positions lie between the same boundaries, int (segments + 1,).

    The program asserts what a split does: no length is negative, and their sum is `length`.
    """
    import torch

    # no roll and no slice: their sizes are guarded on where a run decides how many boundaries there are
    before = (torch.arange(boundaries.shape[0], device=boundaries.device) - 1).clamp(min=0)
    fits = (boundaries >= boundaries[before]).all() & (boundaries[-1] - boundaries[0] == length)
    torch.ops.aten._assert_async.msg(fits, "the segments do not cover the rows")
    positions = torch.arange(length, device=boundaries.device) + boundaries[0]
    segments = (positions.unsqueeze(1) >= boundaries.unsqueeze(0)).sum(1)
    return segments.unsqueeze(1) == segments.unsqueeze(0)


def _additive(mask: Any, dtype: Any) -> Any:
    """Each position attends to itself at least, so that minus infinity is safe."""
    import torch

    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))


def _is_same(one: Any, other: Any) -> bool:
    import torch

    return one is other or (type(one) is type(other) and not isinstance(one, torch.Tensor) and bool(one == other))


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
        "does not keep to such a mask. Memory and time of the mask grow with the square of the sequence length."
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
