"""What functions and operators of torch read, write and give, by their names and tags."""

from __future__ import annotations

import functools
from typing import Any

from exportdoctor.torch_internals.trees import tree_leaves

VALUE_READS = frozenset({
    "__array__", "__bool__", "__complex__", "__contains__", "__dlpack__", "__float__", "__format__", "__index__",
    "__int__", "__reduce_ex__", "__repr__", "_local_scalar_dense", "_to_dlpack", "allclose", "equal", "is_nonzero",
    "item", "numpy", "to_dlpack", "tolist",
})  # fmt: skip
"""Functions of torch that give Python a value of a tensor."""


SIZED_BY_VALUES = frozenset(
    {"nonzero", "unique", "unique_consecutive", "masked_select", "repeat_interleave", "bincount", "argwhere"}
)
"""The size of what these give depends on values."""

VALUE_FREE = frozenset({
    "ones_like", "zeros_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full",
    "new_tensor",
})  # fmt: skip
"""What these give follows from no value of their first operand."""

FIXED_SIZE = frozenset({
    "add", "as_tensor", "clamp", "div", "fill_", "full_like", "masked_fill", "masked_fill_", "mul", "new_tensor", "pow",
    "roll", "scalar_tensor", "select", "sub", "tensor", "tril", "triu",
})  # fmt: skip
"""The size of what these give follows from no value, though they read numbers from tensors."""

SIZE_ARGUMENT = {"full": 0, "new_full": 1}
"""Which argument of functions that read numbers from tensors is a size."""

_NUMBER_OF_PIECES = frozenset(
    {"chunk", "dsplit", "hsplit", "split", "split_with_sizes", "tensor_split", "unbind", "unbind_copy", "unsafe_chunk",
     "unsafe_split", "split_copy", "vsplit"}
)  # fmt: skip
"""How many tensors these give follows from the size of one."""

_NO_SIZES = frozenset({
    "_version", "data_ptr", "dense_dim", "dim", "element_size", "get_device", "itemsize", "ndim", "ndimension",
    "sparse_dim", "storage_offset",
})  # fmt: skip
"""Methods and properties that give whole numbers which follow from no size."""

SIZED_AS_FIRST = frozenset({
    "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "masked_fill", "masked_scatter", "put",
    "scatter", "scatter_add", "scatter_reduce", "select_scatter", "slice_scatter",
})  # fmt: skip
"""What these give has the size of their first operand."""

MADE_OF_NUMBERS = frozenset({"as_tensor", "asarray", "new", "tensor"})
"""What these give of a list of tensors follows from numbers in them, which no operator shows."""


def tensors_of(tree: Any) -> list[Any]:
    """The tensors among the leaves, in order. Operators are given few containers but tuples, lists and dicts."""
    import torch

    if isinstance(tree, torch.Tensor):
        return [tree]
    if type(tree) in (tuple, list):
        return [tensor for one in tree for tensor in tensors_of(one)]
    if type(tree) is dict:
        return [tensor for one in tree.values() for tensor in tensors_of(one)]
    if tree is None or type(tree) in (int, float, bool, str):
        return []
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@functools.cache
def _may_depend_on_values(operator: Any) -> bool:
    """Whether sizes of what an operator gives may."""
    import torch

    tags, name = getattr(operator, "tags", ()), operator.__name__
    return torch.Tag.dynamic_output_shape in tags or "sparse" in name or "pack_padded" in name


def sizing_tensors(operator: Any, given: Any) -> list[Any]:
    """The tensors on whose values the sizes of an operator's results depend."""
    import torch

    if not _may_depend_on_values(operator):
        return []
    name = operator.__name__.partition(".")[0]
    if name == "index":
        return [one for one in tensors_of(given[0][1]) if one.dtype in (torch.bool, torch.uint8)]
    return tensors_of(given[0][1] if name == "masked_select" else given)


@functools.cache
def reads_number(operator: Any) -> bool:
    """Whether an operator gives Python a value of a tensor."""
    import torch

    return torch.Tag.data_dependent_output in getattr(operator, "tags", ())


def gives_size(func: Any, name: str, made: Any) -> bool:
    """Whether Python gets a size from a function of a tensor, or the number of the pieces of one."""
    if name == "__get__":
        name = getattr(func.__self__, "__name__", "")
    numbers = made if isinstance(made, tuple | list) else [made]
    return name in _NUMBER_OF_PIECES or (name not in _NO_SIZES and any(type(one) is int for one in numbers))


def has_bounds(places: Any) -> bool:
    """Whether a slice among these indices begins or ends at the value of a tensor."""
    import torch

    slices = (one for one in (places if isinstance(places, tuple) else (places,)) if isinstance(one, slice))
    return any(isinstance(bound, torch.Tensor) for one in slices for bound in (one.start, one.stop, one.step))


@functools.cache
def writes_first(name: str) -> bool:
    """Whether a function of that name writes into its first operand."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
