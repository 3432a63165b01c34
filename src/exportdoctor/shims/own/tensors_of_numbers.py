"""`x.new_tensor([height, width])` and its like of symbolic numbers, and `torch.tensor([a, b])` of tensors.

`torch.tensor` takes symbolic numbers; the other functions ask each for a number of Python. Of tensors without
dimensions both read the values, which `torch.stack` does not. The dtype is the one that torch infers: of all elements
promoted, where that of a number is torch's default one of its kind (torch/csrc/utils/tensor_new.cpp,
infer_scalar_type).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.known_tensors import torch_name
from exportdoctor.shims.record import Replacement, Shim
from exportdoctor.shims.root_forward import Forward, patch_root_forward

_MAKERS = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})
_OPTIONS = frozenset({"data", "obj", "dtype", "device", "requires_grad", "copy"})
_LEGACY = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "LongTensor": "int64",
    "IntTensor": "int32",
    "ShortTensor": "int16",
    "CharTensor": "int8",
    "ByteTensor": "uint8",
    "BoolTensor": "bool",
}
_MADE = r"\b(?:new_tensor|as_tensor|asarray|new|(?:Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Tensor)\("


def make_tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """As `torch.tensor`, of lists of symbolic numbers and of tensors without dimensions, whose values are not read."""
    import torch

    leaves = list(_leaves(data))
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return torch.tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)
    kind = dtype or functools.reduce(torch.promote_types, map(_dtype_of, leaves))
    where = device or torch.get_default_device()
    return _stack(data, kind, where).requires_grad_(requires_grad)


def _stack(data: Any, dtype: Any, device: Any) -> Any:
    import torch

    if isinstance(data, list | tuple):
        return torch.stack([_stack(item, dtype, device) for item in data])
    if isinstance(data, torch.Tensor):
        return data.detach().to(device=device, dtype=dtype, copy=True)
    return torch.scalar_tensor(data.item() if _is_of_numpy(data) else data, dtype=dtype, device=device)


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, list | tuple):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def _dtype_of(leaf: Any) -> Any:
    import torch

    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    if _is_of_numpy(leaf):  # torch takes it for an array, whose dtype it has
        return torch.from_numpy(leaf.reshape(1)).dtype
    if isinstance(leaf, bool | torch.SymBool):
        return torch.bool
    return torch.int64 if isinstance(leaf, int | torch.SymInt) else torch.get_default_dtype()


def _is_of_numpy(leaf: Any) -> bool:
    """Whether it is a real number of numpy, of a dtype that torch has."""
    import numpy as np

    return isinstance(leaf, np.signedinteger | np.uint8 | np.float16 | np.float32 | np.float64)


def _is_taken(name: str, data: Any) -> bool:
    """Whether it is a list of what is no plain number: symbolic ones, or tensors without dimensions, of one length in
    each row. A tensor itself is none, and torch.tensor takes symbolic numbers by itself."""
    import torch

    leaves = list(_leaves(data))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    symbols = [leaf for leaf in leaves if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool)]
    numbers = [
        leaf for leaf in leaves if not isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)
    ]
    plain = all(type(leaf) in (bool, int, float) or _is_of_numpy(leaf) for leaf in numbers)
    if not plain or any(one.dim() or one.is_complex() for one in tensors):
        return False
    if tensors:
        return isinstance(data, list | tuple) and _has_rows(data)
    return bool(symbols) and name != "tensor"


def _has_rows(data: Any) -> bool:
    """Whether lists in it are as long and as deep as those beside them."""

    def shape(one: Any) -> Any:
        if not isinstance(one, list | tuple):
            return ()
        shapes = {shape(item) for item in one}
        return (len(one), *shapes.pop()) if len(shapes) == 1 and None not in shapes else None

    return shape(data) is not None


def _mode() -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    class MakesTensors(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, name = kwargs or {}, torch_name(func)
            if torch.compiler.is_dynamo_compiling() or (name not in _MAKERS and name != "new"):
                return func(*args, **kwargs)
            owner, rest = (args[0], args[1:]) if name in {"new_tensor", "new"} and args else (None, args)
            data = rest[0] if rest else kwargs.get("data", kwargs.get("obj"))
            if len(rest) > 1 or not kwargs.keys() <= _OPTIONS or not _is_taken(name, data):
                return func(*args, **kwargs)
            if name == "new" and not isinstance(data, list | tuple):  # a size
                return func(*args, **kwargs)
            how = {key: kwargs[key] for key in ("dtype", "device", "requires_grad") if kwargs.get(key) is not None}
            if owner is not None:
                how = {"dtype": owner.dtype, "device": owner.device, **how}
            return make_tensor(data, **how)

    return MakesTensors()


def _legacy(plain: Any, dtype_name: str) -> Any:
    """What stands for a class such as torch.FloatTensor: it makes tensors of lists, and is one for isinstance."""
    import torch

    class Legacy(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, plain)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and not kwargs and isinstance(args[0], list | tuple) and _is_taken("", args[0]):
                return make_tensor(args[0], dtype=getattr(torch, dtype_name), device="cpu")
            return plain(*args, **kwargs)

        def __getattr__(cls, name: str) -> Any:
            return getattr(plain, name)

    return Legacy(f"torch.{plain.__name__}", (), {})  # by this name Tensor.type() knows it


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    changes: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (torch, name, functools.partial(_legacy, dtype_name=dtype)) for name, dtype in _LEGACY.items()
    ]

    def wrap(forward: Forward) -> Forward:
        def with_makers(*args: Any, **kwargs: Any) -> Any:
            made = [(holder, name, change(getattr(holder, name))) for holder, name, change in changes]
            with _mode(), patch_attributes(made):
                return forward(*args, **kwargs)

        return with_makers

    with patch_root_forward(call.module, wrap):
        yield call


SHIM = Shim(
    id="numbers-as-tensor",
    title="Makes tensors of symbolic numbers and of scalar tensors without reading their values",
    soundness="exact",
    enter=_enter,
    does=(
        "`new_tensor`, `torch.as_tensor`, `torch.asarray` and `torch.FloatTensor` of a list with dynamic sizes ask "
        "each for a number of Python, which fixes it. Here `torch.tensor` makes the tensor, which takes symbolic "
        "numbers, with the dtype and the device that the call gives. `torch.tensor` of a list of tensors without "
        "dimensions reads their values, which traced tensors do not have: here they are stacked, as `torch.stack` does."
    ),
    cures=(
        Cure(kinds=("dynamic_dim_specialised",), guard=_MADE),
        Cure(kinds=("data_dependent_value", "data_dependent_guard"), where=_MADE),
        Cure(kinds=("python_error",), message="its data is not allocated yet"),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.tensor.html",
    retire="`new_tensor` and `torch.as_tensor` take symbolic numbers, as `torch.tensor` does",
    rank=16,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="`x.new_tensor([height, width])`",
            before="size = x.new_tensor([height, width])\n",
            after="size = torch.tensor([height, width], dtype=x.dtype, device=x.device)\n",
        ),
    ),
)
