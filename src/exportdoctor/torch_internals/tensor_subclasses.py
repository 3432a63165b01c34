"""Tensors of subclasses that are plain in memory and may have a `__torch_function__`: as plain ones, and copied."""

from __future__ import annotations

import copy
from typing import Any

from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.hook import Hook


def has_own_functions(tensor: Any) -> bool:
    """Whether it is of a subclass with memory of its own, whose `__torch_function__` may change results."""
    import torch

    kind = type(tensor)
    if not issubclass(kind, torch.Tensor) or kind in (torch.Tensor, torch.nn.Parameter) or is_fake(tensor):
        return False
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or not SUBCLASSES.is_supported():
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return bool(tensor.layout == torch.strided)


def name_with_functions(value: Any) -> str:
    """The name of a class with a `__torch_function__` of its own, of which a value is; else empty."""
    import torch

    if not isinstance(value, torch.Tensor):
        return ""
    kind: Any = type(value)
    is_own = any("__torch_function__" in vars(one) for one in kind.__mro__[: kind.__mro__.index(torch.Tensor)])
    return kind.__name__ if is_own and has_own_functions(value) else ""


def as_plain_tensor(tensor: Any) -> Any:
    """The same values as a plain tensor."""
    import torch

    if not has_own_functions(tensor):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def copy_with_class(tensor: Any) -> Any:
    """A copy with the class and the attributes, of which torch makes none where `new_empty` gives a plain tensor."""
    import torch

    with torch._C.DisableTorchFunctionSubclass():
        copied = tensor.detach().as_subclass(torch.Tensor).clone().as_subclass(type(tensor))
        copied.requires_grad_(tensor.requires_grad)
    for name, value in vars(tensor).items():
        object.__setattr__(copied, name, copy.deepcopy(value))
    return copied


def _can_leave_functions() -> bool:
    import torch

    return hasattr(torch._C, "DisableTorchFunctionSubclass")


SUBCLASSES = Hook(
    id="tensor-subclasses",
    api="torch._C.DisableTorchFunctionSubclass",
    used_for="inputs of a tensor subclass with `__torch_function__`",
    lost="programs that take such inputs are not compared with eager",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_can_leave_functions,
)

HOOKS = (SUBCLASSES,)
