"""Copies of captured inputs, made before the call, which may change them.

Tensors keep shape, strides, storage offset, dtype, device, flags, attributes and shared memory. That one is a view is
not kept: `.data` of a view that is an input fails with an error about strides, which hides the failure that the model
has. Of a tensor inside torch.vmap the first example is kept, which is what the module sees of it.
Real values are kept up to a budget; larger floating-point tensors are kept as fake ones, because an export needs
their shapes alone.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from exportdoctor.core.patch_attribute import set_on_object
from exportdoctor.targets.held_state import attributes_of
from exportdoctor.torch_internals.fake_tensors import is_fake, new_fake_mode
from exportdoctor.torch_internals.tracing_modes import without_transforms

# Shared, never copied: copying them would be wrong (modules, code) or pointless (immutable)
_BY_REFERENCE = (
    torch.nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType,
    str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.Size,
    torch.Generator, torch.SymInt,
)  # fmt: skip


@dataclass
class CopyBudget:
    """How many bytes of real values one part's capture may keep, and the copies of its fake tensors by identity."""

    left: int = 512 * 2**20
    mode: Any = field(default_factory=new_fake_mode)
    faked: int = 0
    _fakes: dict[int, tuple[Any, torch.Tensor]] = field(default_factory=dict)

    def device(self, device: torch.device) -> torch.device:
        """What stands in a copy for a device that an input names."""
        return device

    def keep(self, tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
        """A copy of `tensor` that shares memory only with the copies of `memo` whose originals shared it."""
        if is_fake(tensor):
            return self._keep_fake(tensor)
        if tensor.is_conj():
            return self.keep(tensor.conj(), memo).conj()
        if tensor.is_neg():
            negated = torch.ops.aten._neg_view
            kept: torch.Tensor = negated(self.keep(negated(tensor), memo))
            return kept
        size = tensor.numel() * tensor.element_size()
        exact = not tensor.is_floating_point() or size <= 4096
        if tensor.layout != torch.strided or exact or size <= self.left:
            self.left -= 0 if exact else size
            return copy_view(tensor, memo) if is_plain(tensor) else with_grad_of(_clone(tensor), tensor)
        self.faked += 1
        return with_grad_of(self.mode.from_tensor(tensor.detach()), tensor)

    def _keep_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Another tensor object over the same storage, which holds no values that a call could change.

        One for all calls that are given the same tensor, unless it was changed in place between them.
        """
        known = self._fakes.get(id(tensor))
        if known is not None and known[0]() is tensor and _looks_like(known[1], tensor):
            return known[1]
        copied = with_grad_of(tensor.detach(), tensor)
        if vars(tensor).keys() <= vars(copied).keys():
            self._fakes[id(tensor)] = weakref.ref(tensor), copied
        return copied


def _looks_like(copied: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a copy still shows what the tensor is."""
    same = copied.shape == tensor.shape and copied.stride() == tensor.stride() and copied.dtype == tensor.dtype
    has_grad = tensor.requires_grad and tensor.is_leaf
    names = vars(tensor).keys() <= vars(copied).keys()
    return same and names and copied.storage_offset() == tensor.storage_offset() and copied.requires_grad == has_grad


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is no more than a view of a storage."""
    strided = tensor.layout == torch.strided and tensor.device.type != "meta"
    special = tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg()
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and strided and not special


def copy_view(tensor: torch.Tensor, memo: dict[Any, Any], device: torch.device | None = None) -> torch.Tensor:
    """The same view of a copy of the storage, on the device. Of that copy only what a view shows is ever written, so
    needs memory."""
    storage = tensor.untyped_storage()
    key = "storage", storage._cdata
    with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
        if key not in memo:
            memo[key] = (
                torch.empty(storage.nbytes(), dtype=torch.uint8, device=device or tensor.device).untyped_storage(),
                storage,
            )
        copied = memo[key][0]
        if tensor.numel():
            width = tensor.element_size()
            reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            begin, length = tensor.storage_offset() * width, (reach + 1) * width
            _view(copied, torch.uint8, begin, (length,), (1,)).copy_(
                _view(storage, torch.uint8, begin, (length,), (1,))
            )
        view = _view(copied, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(view, requires_grad=tensor.requires_grad)
    return with_grad_of(view, tensor)


def _view(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: Any, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)  # type: ignore[call-overload, no-any-return]


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """A clone with the same strides, if it has any, of a tensor that is more than a view of memory."""
    return tensor.detach().clone()


def with_grad_of(copied: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """The copy, a leaf that records gradients if the original is one."""
    return copied.requires_grad_(True) if original.requires_grad and original.is_leaf else copied


def snapshot(value: Any, *, budget: CopyBudget) -> Any:
    """A deep copy of `value` in which tensors are copied by `budget`, and modules and code are shared."""
    return _copy(value, {}, budget)


def _copy(value: Any, memo: dict[Any, Any], budget: CopyBudget) -> Any:
    if isinstance(value, torch.device):
        return budget.device(value)
    if isinstance(value, _BY_REFERENCE):
        return value
    if id(value) in memo:
        return memo[id(value)]
    copied = _copy_new(value, memo, budget)
    memo[id(value)] = copied
    memo[~id(value)] = value  # keeps the original alive, so that its id stays its own
    return copied


def _copy_new(value: Any, memo: dict[Any, Any], budget: CopyBudget) -> Any:
    if isinstance(value, torch.Tensor):
        try:
            with without_transforms(value) as tensor:
                copied = memo[id(value)] = budget.keep(tensor, memo)
                for name in vars(tensor).keys() - vars(copied).keys():  # of nn.Buffer, say
                    vars(copied)[name] = _copy(vars(tensor)[name], memo, budget)
                return copied
        except RuntimeError:  # as for objects: a mode of torch that the target left on may refuse every copy
            return value
    if type(value) in (list, set, frozenset):
        return type(value)(_copy(item, memo, budget) for item in value)
    if isinstance(value, tuple):
        items = [_copy(item, memo, budget) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict) and not hasattr(value, "__dataclass_fields__"):
        return _copy_dict(value, memo, budget)
    return _copy_object(value, memo, budget)


def _copy_dict(value: dict[Any, Any], memo: dict[Any, Any], budget: CopyBudget) -> Any:
    copied = copy.copy(value)
    for key in list(copied):
        copied[key] = _copy(value[key], memo, budget)
    return copied


def _copy_object(value: Any, memo: dict[Any, Any], budget: CopyBudget) -> Any:
    """Caches, ModelOutputs, dataclasses: a shallow copy whose attributes are then copied one by one."""
    try:
        copied = copy.copy(value)
    except Exception:  # an object that cannot be copied is used as it is; if that matters, the export fails
        return value
    memo[id(value)] = copied
    if isinstance(copied, dict):
        for key in list(copied):
            dict.__setitem__(copied, key, _copy(value[key], memo, budget))
    for name, item in list(attributes_of(value).items()):
        copied.__dict__[name] = _copy(item, memo, budget)
    for name in _slots(type(value)):
        if hasattr(value, name):
            set_on_object(copied, name, _copy(getattr(value, name), memo, budget))
    return copied


def _slots(kind: type) -> tuple[str, ...]:
    names: list[str] = []
    for parent in kind.__mro__:
        slots = parent.__dict__.get("__slots__", ())
        names.extend((slots,) if isinstance(slots, str) else slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
