"""Whether an attention function does the same for any number of rows, with a mask and without.

Attention to whole rows with a mask stands for attention to each segment without one only if the function does not
decide by the number of rows or by whether there is a mask. torch's and transformers' own functions are known not to.
Any other one is run on fake tensors with an unknown number of rows, once without and once with a mask. Both runs must
call the same torch functions, all of them known ones, and differ only in that the second adds the mask.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from exportdoctor.shims.record import NotApplicable
from exportdoctor.torch_internals.shape_env import UNKNOWN_SIZES, UnknownSize, is_symbolic
from exportdoctor.torch_internals.tracing_modes import outside_all_modes, outside_modes_but
from exportdoctor.torch_internals.trees import tree_leaves, tree_map

_PACKAGES = ("torch", "transformers")
_READS = frozenset({"shape", "size", "dtype", "device", "dim", "ndim", "numel", "is_floating_point", "requires_grad"})
"""What is computed with a size that these give is seen later: in another call, or as a guard."""

_LAYOUT = frozenset({
    "view", "reshape", "expand", "unsqueeze", "squeeze", "transpose", "permute", "swapaxes", "swapdims", "movedim",
    "flatten", "unflatten", "contiguous", "clone", "repeat", "repeat_interleave", "T", "mT",
})  # fmt: skip
_VALUES = frozenset({
    "add", "radd", "sub", "rsub", "mul", "rmul", "div", "true_divide", "rdiv", "neg", "pow", "exp", "tanh", "sigmoid",
    "relu", "clamp", "nan_to_num", "to", "type", "type_as", "float", "half", "bfloat16", "double", "softmax", "matmul",
    "rmatmul", "bmm", "einsum", "dropout", "scaled_dot_product_attention",
})  # fmt: skip
_OF_MASK = frozenset({"to", "type", "type_as", "float", "half", "bfloat16", "double", "contiguous", "clone", "expand"})
"""What may be done to a mask before it is added; also a slice that leaves all of it."""

_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def check_is_uniform(
    function: Callable[..., Any], attend: Callable[..., Any], rows: Sequence[Any], options: dict[str, Any]
) -> None:
    """Raises NotApplicable unless the function is known, or does the same for any number of rows and with a mask.

    `attend(*rows, mask, **options)` calls it.
    """
    if is_known_attention(function):
        return
    if not UNKNOWN_SIZES.is_supported():
        raise NotApplicable("its attention function is not one of torch or transformers")
    without, with_mask = (_record(attend, rows, options, masked=masked) for masked in (False, True))
    if without != with_mask:
        raise NotApplicable("its attention does something else where it is given a mask")


def is_known_attention(function: Callable[..., Any]) -> bool:
    """Whether torch or transformers defines it, and every decorator around it."""
    import torch

    if function is torch.nn.functional.scaled_dot_product_attention:
        return True
    known, one = True, function
    while known and one is not None:
        code = getattr(one, "__code__", None)
        known = code is not None and os.path.realpath(code.co_filename).startswith(_folders())
        one = getattr(one, "__wrapped__", None)  # type: ignore[assignment]
    return known


def _folders() -> tuple[str, ...]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES)
    return tuple(os.path.dirname(os.path.realpath(file)) + os.sep for file in files if file)


@dataclass
class _Run:
    """The torch functions that an attention calls, each with its arguments; a tensor is told by its name.

    `names` are those of tensors by identity: `mask` for what is made of the mask alone. `held` keeps them alive.
    """

    size: Any
    names: dict[int, str] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)

    def name(self, tensor: Any, name: str) -> None:
        """From here on the tensor is told by this name."""
        self.names[id(tensor)] = name
        self.held.append(tensor)

    def name_of(self, value: Any) -> Any:
        """How a value is told; a tensor of the function's own is told by its identity."""
        import torch

        if isinstance(value, torch.Tensor):
            return self.names.get(id(value), id(value))
        return str(value) if is_symbolic(value) or not isinstance(value, int | float | str | None) else value

    def note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """One call. Raises NotApplicable for one that could tell rows apart."""
        import torch

        name = _name_of_function(func)
        if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(made)):
            if name not in _READS:
                raise NotApplicable(f"its attention calls {name}")
            return
        given = [self.name_of(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if given and set(given) == {"mask"}:
            self._note_mask(name, args, made)
        elif name == "add" and len(args) == 2 and not kwargs and given.count("mask") == 1:
            scores = next(one for one in args if self.name_of(one) != "mask")
            self.name(made, self.name_of(scores))
        else:
            self._note_call(name, args, kwargs, made)

    def _note_mask(self, name: str, args: Any, made: Any) -> None:
        """What is made of the mask is the mask."""
        import torch

        if not (name in _OF_MASK or name == "getitem") or str(made.shape[-2:]) != str(torch.Size([self.size] * 2)):
            raise NotApplicable(f"its attention calls {name} with its mask")
        if name == "getitem" and not all(_is_slice_of_all(one, self.size) for one in _places(args[1])):
            raise NotApplicable("its attention takes a part of its mask")
        self.name(made, "mask")

    def _note_call(self, name: str, args: Any, kwargs: Any, made: Any) -> None:
        if name == "scaled_dot_product_attention":
            args, kwargs = (), {**dict(zip(_SDPA, args, strict=False)), **kwargs}
            if kwargs.pop("is_causal", False) or kwargs.get("dropout_p", 0.0):
                raise NotApplicable("its attention is causal or drops values")
            if self.name_of(kwargs.get("attn_mask")) in ("mask", None):
                kwargs.pop("attn_mask", None)
        if name == "dropout" and kwargs.get("training", True) and kwargs.get("p", 0.5):
            raise NotApplicable("its attention drops values")
        if name == "getitem" and not all(_is_slice_of_all(one, None) for one in _places(args[1])):
            raise NotApplicable("its attention takes a part of its rows")
        told = [self.name_of(leaf) for leaf in tree_leaves((args, kwargs))]
        sizes = any(map(is_symbolic, tree_leaves((args, kwargs))))
        if "mask" in told or name not in _LAYOUT | _VALUES | {"getitem"} or (sizes and name not in _LAYOUT):
            raise NotApplicable(f"its attention calls {name}")
        self.calls.append((name, told, sorted(kwargs)))
        if id(made) not in self.names:
            self.name(made, f"result {len(self.calls)}")


def _record(attend: Callable[..., Any], rows: Sequence[Any], options: dict[str, Any], *, masked: bool) -> Any:
    """What it calls for an unknown number of rows, and what of that it returns."""
    import torch

    with outside_all_modes():
        unknown = UnknownSize()
        shapes: list[list[int | None]] = [[*map(int, row.shape[:-2]), None, int(row.shape[-1])] for row in rows]
        given = [unknown.make(shape, row.dtype) for shape, row in zip(shapes, rows, strict=True)]
        sides: list[int | None] = [None, None]
        mask = unknown.make([1, 1, *sides] if len(shapes[0]) == 4 else sides, rows[0].dtype)
    run = _Run(given[0].shape[-2])
    for name, tensor in zip(("query", "key", "value", "mask"), (*given, mask), strict=True):
        run.name(tensor, name)
    try:
        with torch.no_grad(), outside_modes_but(run.note), unknown.mode:
            answer = attend(*given, mask if masked else None, **options)
    except NotApplicable:
        raise
    except Exception as error:
        raise NotApplicable(f"its attention is not known for any number of rows: {error}") from error
    if unknown.is_asked_for():
        raise NotApplicable("its attention decides by the number of rows")
    return run.calls, tree_map(run.name_of, answer)


def _name_of_function(func: Any) -> str:
    name = getattr(func, "__name__", "")
    return str(getattr(func.__self__, "__name__", "") if name == "__get__" else name).strip("_")


def _places(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_slice_of_all(place: Any, size: Any) -> bool:
    """Whether an index leaves a dimension as it is, adds one, or ends where the rows end."""
    if place is None or place is Ellipsis:
        return True
    if not isinstance(place, slice) or place.start not in (None, 0) or place.step is not None:
        return False
    return place.stop is None or (size is not None and is_symbolic(place.stop) and str(place.stop) == str(size))
