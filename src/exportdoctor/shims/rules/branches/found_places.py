"""Places that were found in a tensor, `rows, slot = torch.where(mask)`: whatever is found, they are below its sizes.

So what looks up such places, in a tensor of the same size, refuses no values. Plain numbers that are made a tensor are
places, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exportdoctor.shims.rules.code.torch_functions import tensors_of
from exportdoctor.torch_internals.shape_env import is_always

_KEEP = frozenset({
    "chunk", "clone", "contiguous", "cpu", "cuda", "detach", "expand", "expand_as", "flatten", "flip", "__getitem__",
    "index_select", "long", "masked_select", "narrow", "permute", "ravel", "repeat", "reshape", "select", "split",
    "squeeze", "swapaxes", "t", "to", "transpose", "unbind", "unsqueeze", "view", "view_as",
})  # fmt: skip
"""Functions that give values of their first operand, where the dtype stays."""
_LOOK_UP = frozenset({
    "gather", "index_add", "index_copy", "index_fill", "index_select", "scatter", "scatter_add",
})  # fmt: skip
"""Functions that are given a dimension, and places in it."""


@dataclass
class _Bounds:
    """The values of a tensor are whole numbers from 0 to below `size`; or along a dimension to below one of `columns`,
    as long as nothing writes into it after `version`."""

    version: int
    size: Any = None
    columns: tuple[Any, ...] = ()
    dim: int = 1


class FoundPlaces:
    """Follows them through the functions of torch that are called, each with what it was given and gave."""

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._bounds: Any = WeakIdKeyDictionary()

    def note(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        """A call of the function of that name, without the `_` of one that works in place."""
        given = tensors_of((args, kwargs))
        if name == "tensor" and not given and _is_tensor(made):
            numbers = args[0] if type(args[0]) is list else [args[0]]
            if numbers and all(type(one) is int and one >= 0 for one in numbers):
                self._bounds[made] = _Bounds(_version(made), max(numbers) + 1)
        if not given:
            return
        if is_search(name, args, kwargs):
            self._note_found(tuple(given[0].shape), made)
        elif (known := self._bounds_of(given[0])) is not None and given[0] is next(iter(args), None):
            self._note_kept(known, name, args, kwargs, made)

    def holds(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call finds places, or looks up places that are within the tensor for all values."""
        if is_search(name, args, kwargs) or name == "masked_select":
            return True
        if name in ("__getitem__", "__setitem__"):
            return self._are_within(args[1], tuple(args[0].shape))
        if name == "index_put":
            places = args[1] if len(args) > 1 else kwargs.get("indices")
            return isinstance(places, tuple | list) and self._are_within(tuple(places), tuple(args[0].shape))
        if name in _LOOK_UP:
            dim, places = (*args[1:3], *(kwargs[key] for key in ("dim", "index") if key in kwargs), None, None)[:2]
            return type(dim) is int and _is_tensor(places) and self._is_below(places, args[0].shape[dim])
        return False

    def _bounds_of(self, tensor: Any) -> _Bounds | None:
        known = self._bounds.get(tensor)
        is_as_noted = known is not None and not tensor.is_inference() and known.version == tensor._version
        return known if is_as_noted else None

    def _note_found(self, sizes: tuple[Any, ...], made: Any) -> None:
        if isinstance(made, tuple | list):
            for one, size in zip(made, sizes, strict=False):
                self._bounds[one] = _Bounds(_version(one), size)
        elif len(sizes) == 1:
            self._bounds[made] = _Bounds(_version(made), sizes[0])
        elif sizes:
            self._bounds[made] = _Bounds(_version(made), None, sizes)

    def _note_kept(self, known: _Bounds, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        dtype = args[0].dtype
        results = [one for one in tensors_of(made) if one.dtype == dtype]
        if known.columns:
            self._note_columns(known, name, args, kwargs, results)
        elif name in _KEEP:
            for one in results:
                self._bounds[one] = _Bounds(_version(one), known.size)
        elif name in ("__floordiv__", "__mod__", "remainder", "floor_divide") and _divides_plainly(name, args, kwargs):
            by = args[1]
            is_rest = name in ("__mod__", "remainder")
            size = by if is_rest else known.size // by if is_always(known.size % by == 0) else known.size
            for one in results:
                self._bounds[one] = _Bounds(_version(one), size)

    def _note_columns(
        self, known: _Bounds, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any]
    ) -> None:
        """A column of what `nonzero` gives, or all of them."""
        if name == "t" and results:
            self._bounds[results[0]] = _Bounds(_version(results[0]), None, known.columns, 1 - known.dim)
            return
        if name == "unbind" and (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % 2 == known.dim:
            for one, size in zip(results, known.columns, strict=False):
                self._bounds[one] = _Bounds(_version(one), size)
            return
        place: Any = None
        match name, args:
            case "__getitem__", (_, int() as place) if known.dim == 0:
                pass
            case "__getitem__", (_, (slice() as every, int() as place)) if known.dim == 1:
                place = place if every == slice(None) else None
        if place is not None and results and -len(known.columns) <= place < len(known.columns):
            self._bounds[results[0]] = _Bounds(_version(results[0]), known.columns[place])

    def _are_within(self, places: Any, sizes: tuple[Any, ...]) -> bool:
        parts = places if isinstance(places, tuple) else (places,)
        if not any(map(_is_tensor, parts)) or any(type(one) in (bool, list, tuple) for one in parts):
            return False
        taken = [_dimensions_of(one) for one in parts]
        dim = 0
        for one, count in zip(parts, taken, strict=True):
            if one is Ellipsis:
                dim += len(sizes) - sum(taken)
            elif _is_tensor(one) and not _is_mask(one) and (dim >= len(sizes) or not self._is_below(one, sizes[dim])):
                return False
            dim += count
        return True

    def _is_below(self, places: Any, size: Any) -> bool:
        known = self._bounds_of(places)
        return known is not None and known.size is not None and is_always(known.size <= size)


def is_search(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of the function of that name gives the places at which a tensor is not zero."""
    return name in ("nonzero", "argwhere") or (name == "where" and len(args) + len(kwargs) == 1)


def _divides_plainly(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return not kwargs and len(args) == 2 and type(args[1]) is int and args[1] > 0


def _dimensions_of(place: Any) -> int:
    if place is None or place is Ellipsis:
        return 0
    return place.dim() if _is_tensor(place) and _is_mask(place) else 1


def _is_mask(tensor: Any) -> bool:
    import torch

    return tensor.dtype in (torch.bool, torch.uint8)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)
