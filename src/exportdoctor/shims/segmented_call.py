"""A call of a packed attention in which stand-ins take the place of the segments that it splits its input into.

The stand-ins may be attended to, both alike, and their answers put together again; all else is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.uniform_attention import check_is_uniform
from exportdoctor.torch_internals.tracing_modes import outside_all_modes
from exportdoctor.torch_internals.trees import tree_leaves, tree_map_only

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
    """One attention over whole rows, which the forward calls once for each segment.

    `attend` calls `function`. `causal`: each position attends to those up to itself; the mask says so, since torch 2.14
    takes either a mask or `is_causal`.
    """

    function: Callable[..., Any]
    attend: Callable[..., Any]
    rows: tuple[Any, ...]
    boundaries: Any
    options: dict[str, Any]
    boolean: bool
    causal: bool = False
    answer: Any = None
    second: bool = False
    joined: bool = False

    def run(self) -> Any:
        """The answer for the whole rows."""
        self.answer = self.attend(*self.rows, self._mask(self.boundaries, self.rows[0]), **self.options)
        return self.answer

    def _mask(self, boundaries: Any, query: Any) -> Any:
        import torch

        mask = same_segment(boundaries, query.shape[-2])
        if self.causal:
            positions = torch.arange(query.shape[-2], device=query.device)
            mask = mask & (positions.unsqueeze(1) >= positions.unsqueeze(0))
        if not self.boolean:
            mask = _additive(mask, query.dtype)
        return mask[None, None] if query.dim() == 4 else mask

    def is_alike(self, other: SegmentAttention) -> bool:
        """Whether the other call differs from this one in nothing but its segment."""
        mine, its = (tree_leaves([one.rows, one.boundaries, one.options, one.causal]) for one in (self, other))
        return len(mine) == len(its) and all(map(_is_same, mine, its)) and self.options.keys() == other.options.keys()

    def check(self, leaf: int, dim: int) -> None:
        """Raises NotApplicable unless output `leaf` on drawn numbers is that of each segment alone, joined at `dim`.

        It is drawn for few lengths: whether the others are like these is told by `check_is_uniform`.
        """
        import torch

        check_is_uniform(self.function, self.attend, self.rows, self.options)
        alone = {**self.options, "is_causal": True} if self.causal else self.options
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
                apart = [tree_leaves(self.attend(*segment, None, **alone))[leaf] for segment in segments]
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
            whole = SegmentAttention(attention, attend_masked, rows, None, kwargs, boolean)
            return self._attend(whole, attention_mask)

        return attend

    def _attend_sdpa(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        def attend_masked(query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
            return func(query, key, value, mask, **kwargs)

        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        rows = tuple(given.pop(name) for name in names[:3])
        if not any(id(row) in self.found for row in rows):
            return func(*args, **kwargs)
        mask, causal = given.pop("attn_mask", None), bool(given.pop("is_causal", False))
        return self._attend(SegmentAttention(func, attend_masked, rows, None, given, True, causal), mask)

    def _attend(self, made: SegmentAttention, mask: Any) -> Any:
        """The answer for the rows of `made`, which are stand-ins, and are made whole."""
        import torch

        segments = [self.found.get(id(row)) for row in made.rows]
        self._refuse(made.options, "attention")
        if mask is not None:
            raise NotApplicable("its attention to a segment has a mask already")
        if len({(one.second, id(one.source)) for one in segments if one}) != 1 or None in segments:
            raise NotApplicable("it attends from one segment to another")
        made.rows, made.boundaries = tuple(one.whole for one in segments if one), segments[0].source  # type: ignore[union-attr]
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
