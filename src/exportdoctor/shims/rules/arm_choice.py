"""What code with merged branches calls: an arm by its condition, both arms and `torch.where`, or `torch.cond`.

`torch.where` computes both arms, `torch.cond` only the one that is taken. The latter is used where an arm may refuse
values for which it is not taken: that is observed in eager runs, in which both arms of every branch are computed. Where
torch does not take such arms, the shim does not apply, and `refused` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from exportdoctor.shims.record import NotApplicable
from exportdoctor.torch_internals.shape_env import has_unbacked_size, same_sizes
from exportdoctor.torch_internals.trees import tree_flatten, tree_unflatten

CHOOSE, VALUE, BOTH, EITHER, NOT = "_choose_arm", "_value_of", "_both_hold", "_either_holds", "_does_not_hold"
NUMBER, EQUAL = "_number_of", "_all_equal"
"""The names by which the code calls them."""

_UNBOUND, _NOTHING = object(), object()
"""The value of a name that an arm binds and that has none before; what an arm gave that raised."""

_REFUSES = frozenset({
    "argwhere", "bincount", "cholesky", "cross_entropy", "eigh", "embedding", "embedding_bag", "gather", "index_add",
    "index_copy", "index_fill", "index_put", "index_select", "inv", "inverse", "lstsq", "lu_factor", "masked_select",
    "nll_loss", "nonzero", "one_hot", "pinverse", "repeat_interleave", "scatter", "scatter_add", "scatter_reduce",
    "solve", "take", "take_along_dim", "unique", "unique_consecutive",
})  # fmt: skip
_DIVIDES = frozenset({
    "div", "floor_divide", "remainder", "fmod", "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__",
})  # fmt: skip
"""Functions that may refuse values: places out of range, singular matrices, nothing found; whole numbers by zero."""


class Unmergeable(Exception):
    """The results of two arms cannot be chosen between by `torch.where`."""


@dataclass
class _Branch:
    """What was observed of one: whether an arm may refuse values, and how its results are laid out.

    `layout` is None where they are not tensors alone, or laid out in one way by one arm and in another by the other.
    """

    refuses: bool = False
    layout: Any = None


@dataclass
class ArmChoices:
    """The functions that the code calls, and what was observed of each branch, by its name."""

    observing: bool = False
    branches: dict[str, _Branch] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def names(self) -> dict[str, Any]:
        """What the names mean in the code."""
        return {CHOOSE: self.choose, VALUE: value_of, BOTH: both_hold, EITHER: either_holds, NOT: does_not_hold,
                NUMBER: number_of, EQUAL: all_equal}  # fmt: skip

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Within it, what eager runs of the code show is noted."""
        self.observing = True
        try:
            yield
        finally:
            self.observing = False

    def choose(
        self, branch: str, condition: Any, then: Callable[..., Any], other: Callable[..., Any], *before: Any
    ) -> Any:
        """The result of the arm that the condition says, also where only a run of the program can tell."""
        if self.observing:
            return self._observe(branch, condition, then, other, before)
        if not _is_open(condition):
            return then(*before) if condition else other(*before)
        chosen, known = _as_truth(condition), self.branches.get(branch)
        if known is not None and (known.refuses or (known.layout is not None and _is_traced_by_dynamo())):
            return self._by_cond(branch, chosen, then, other, before, known.layout)
        watch = _watch()
        try:
            with watch:
                results = then(*before), other(*before)
            if watch.refuses:
                raise self._refuse(branch, "no eager run came there")
            return _merge(chosen, *results)
        except Unmergeable:
            return then(*before) if condition else other(*before)  # fails where it did

    def _by_cond(self, branch: str, chosen: Any, then: Any, other: Any, before: tuple[Any, ...], layout: Any) -> Any:
        """The results by `torch.cond`, whose arms return tensors alone, of equal strides, that no input shares.

        Raises NotApplicable, and notes it in `refused`, where torch does not take the arms.
        """
        import torch

        def tensors(arm: Any) -> tuple[Any, ...]:
            return tuple(leaf.clone(memory_format=torch.contiguous_format) for leaf in tree_flatten(arm(*before))[0])

        why = "their results are not laid out in one way"
        if layout is not None:
            try:
                found = torch.cond(chosen, lambda: tensors(then), lambda: tensors(other), ())
                return tree_unflatten(found, layout)
            except Exception as error:
                why = f"torch.cond does not take them: {type(error).__name__}"
        raise self._refuse(branch, why)

    def _refuse(self, branch: str, why: str) -> NotApplicable:
        self.refused.append(f"an arm of {branch} may refuse values for which it is not taken, and {why}")
        return NotApplicable(self.refused[-1])

    def _observe(self, branch: str, condition: Any, then: Any, other: Any, before: tuple[Any, ...]) -> Any:
        known, results = self.branches.setdefault(branch, _Branch()), []
        for arm in (then, other):
            watch = _watch()
            try:
                with watch:
                    results.append(arm(*before))
            except Exception as error:
                results.append(_NOTHING)
                known.refuses |= not isinstance(error, Unmergeable)
            known.refuses |= watch.refuses
        known.layout = _common_layout([value for value in results if value is not _NOTHING])
        try:
            holds = bool(condition)
        except Exception:  # without values both arms are seen nevertheless
            return _merge(_as_truth(condition), *results)
        taken, left = results if holds else results[::-1]
        known.refuses |= _has_nan(left) and not _has_nan(taken)
        return (then if holds else other)(*before) if taken is _NOTHING else taken


def _is_traced_by_dynamo() -> bool:
    """Whether this runs inside an arm of `torch.cond` or in a strict export, which take no function mode."""
    import torch

    return torch.compiler.is_dynamo_compiling()


def _common_layout(results: Sequence[Any]) -> Any:
    """That of tensors alone, the same for all results; else None."""
    layouts = [_layout_of(value) for value in results]
    return layouts[0] if layouts and all(layout == layouts[0] for layout in layouts) else None


def _layout_of(value: Any) -> Any:
    leaves, layout = tree_flatten(value)
    return layout if leaves and all(map(_is_tensor, leaves)) else None


def _has_nan(value: Any) -> bool:
    return any(bool(leaf.isnan().any()) for leaf in tree_flatten(value)[0] if _is_tensor(leaf))


def _watch() -> Any:
    """Notes in `refuses` whether a function may refuse values; a write into a tensor raises `Unmergeable`: the arm that
    is not taken must leave nothing behind."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        refuses = False

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or "out" in (kwargs or {}):
                raise Unmergeable(f"an arm calls {name}")
            found = func(*args, **(kwargs or {}))
            looks_up = name == "__getitem__" and any(map(_is_tensor, tree_flatten(args[1:])[0]))
            divides = name in _DIVIDES and isinstance(found, torch.Tensor) and not found.is_floating_point()
            self.refuses |= looks_up or divides or name.removeprefix("linalg_") in _REFUSES
            return found

    return Watch()


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


# --- conditions


def value_of(read: Callable[[], Any]) -> Any:
    """What `read` gives, or a mark where the name is not bound yet."""
    try:
        return read()
    except NameError:
        return _UNBOUND


def both_hold(one: Any, other: Callable[[], Any]) -> Any:
    """`one and other()`."""
    return _as_truth(one) & _as_truth(other()) if _is_open(one) else one and other()


def either_holds(one: Any, other: Callable[[], Any]) -> Any:
    """`one or other()`."""
    return _as_truth(one) | _as_truth(other()) if _is_open(one) else one or other()


def does_not_hold(value: Any) -> Any:
    """`not value`."""
    return ~_as_truth(value) if _is_open(value) else not value


def number_of(value: Any, is_read: bool) -> Any:
    """A side of a comparison in which `.item()` reads a number, this one if `is_read`. The comparison must give what
    that of Python's numbers of 64 bits gives; a tensor would make another number one of its own dtype."""
    import torch

    exporting = torch.compiler.is_exporting()
    if not is_read:
        return torch.scalar_tensor(value, dtype=torch.float64) if type(value) is float and exporting else value
    if not exporting or not _is_tensor(value) or value.is_complex() or value.dtype is torch.uint64:
        return value.item()
    return value.reshape(()).to(torch.float64 if value.is_floating_point() else torch.int64)


def all_equal(one: Any, other: Any) -> Any:
    """`torch.equal(one, other)`, as a tensor where only a run of the program can tell."""
    import torch

    open_ = _is_open(one) and _is_open(other)
    alike = open_ and one.dtype == other.dtype and one.device == other.device and same_sizes(one, other)
    return (one == other).all() if alike else torch.equal(one, other)


def _is_open(value: Any) -> bool:
    """Whether only a run of the program knows it."""
    import torch

    if isinstance(value, torch.SymBool | torch.SymInt | torch.SymFloat):
        return has_unbacked_size(value)
    return isinstance(value, torch.Tensor) and torch.compiler.is_exporting()


def _as_truth(value: Any) -> Any:
    """A condition as a tensor, bool ()."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.reshape(()).to(torch.bool)
    if isinstance(value, torch.SymBool):
        return torch.scalar_tensor(torch.sym_ite(value, 1, 0), dtype=torch.int64) != 0
    if isinstance(value, torch.SymInt | torch.SymFloat):
        number: Any = value
        return torch.scalar_tensor(number) != 0
    return torch.full((), bool(value))


def _merge(chosen: Any, one: Any, other: Any) -> Any:
    import torch

    if one is other or other is _UNBOUND:  # the arm that does not bind a name leads nowhere that reads it
        return one
    if one is _UNBOUND:
        return other
    (left, layout), (right, same) = tree_flatten(one), tree_flatten(other)
    if layout != same:
        raise Unmergeable("the arms give results of other structure")
    if len(left) == 1 and left[0] is one:
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return _same_value(one, other)
        return torch.where(chosen, *_alike(one, other))
    return tree_unflatten([_merge(chosen, a, b) for a, b in zip(left, right, strict=True)], layout)


def _same_value(one: Any, other: Any) -> Any:
    if type(one) is type(other) and isinstance(one, bool | int | float | str | type(None)) and one == other:
        return one
    raise Unmergeable(f"the arms give {one!r:.40} and {other!r:.40}")


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    if not same_sizes(one, other) or one.dtype != other.dtype or one.device != other.device:
        raise Unmergeable("the arms give tensors of other sizes or dtypes")
    return one, other
