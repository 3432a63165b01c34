"""Fake tensors: shape, strides, dtype and device, without values. torch has no public way to make or recognise one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any, cast

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.hook import Hook
from exportdoctor.torch_internals.trees import tree_leaves


def is_fake(value: object) -> bool:
    """Whether it is a fake tensor."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


def has_fakes(module: Any, inputs: Any) -> bool:
    """Whether a parameter, a buffer or an input has no values: it is fake, or on the meta device."""
    values = (*module.parameters(), *module.buffers(), *tree_leaves(inputs))
    return any(is_fake(value) or getattr(value, "is_meta", False) for value in values)


def fake_tensor_class() -> Any:
    """`FakeTensor`: `FakeTensor(mode, meta_tensor, device)` makes one that claims to be on that device."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


def new_fake_mode() -> Any:
    """A `FakeTensorMode` that lets real tensors take part; `mode.from_tensor(tensor)` makes a fake one."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def select_as_real_tensors_do() -> AbstractContextManager[Any]:
    """Within it, a mask that has values selects from fake tensors; torch alone raises, as if it had none.

    Positions that have values are checked, as in tensors that have them. Raises IndexError as torch does there.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    aten, broadcast = torch.ops.aten, cast("Any", torch.broadcast_shapes)
    dispatch: Callable[..., Any] = FakeTensorMode.dispatch

    def dispatch_with_masks(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.index.Tensor and is_fake(args[0]):
            args = (args[0], list(_positions(args[0].shape, args[1])))
        elif func is aten.masked_select.default and is_fake(args[0]) and not is_fake(args[1]):
            shape = broadcast(args[0].shape, args[1].shape)
            return aten.index.Tensor(args[0].expand(shape), args[1].expand(shape).nonzero().unbind(1))
        elif func is aten.embedding.default and is_fake(args[0]) and _is_beyond(args[1], args[0].shape[0]):
            raise IndexError("index out of range in self")
        return dispatch(mode, func, types, args, kwargs or {})

    # a mode of its own would be asked at each operator, and would cost a tenth of a forward
    return patch_attribute(FakeTensorMode, "dispatch", dispatch_with_masks)


def _positions(shape: Sequence[int], indices: Sequence[Any]) -> Iterator[Any]:
    """The indices into a tensor of that shape, with a real mask as positions, one for each of its dimensions."""
    import torch

    dim = 0
    for index in indices:
        is_mask = isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        if not is_mask or is_fake(index):
            yield index
        else:
            if dim + index.dim() > len(shape):
                raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
            for place, size in enumerate(index.shape):
                if size != shape[dim + place]:
                    raise IndexError(
                        f"The shape of the mask {list(index.shape)} at index {place} does not match the shape of the "
                        f"indexed tensor {list(shape)} at index {dim + place}"
                    )
            yield from index.nonzero().unbind(1)
        dim += index.dim() if is_mask else 1


def _is_beyond(index: Any, size: int) -> bool:
    """Whether a position with a value is none of so many."""
    return not is_fake(index) and index.numel() > 0 and bool((index.min() < 0) | (index.max() >= size))


def _has_fake_tensors() -> bool:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    return isinstance(FakeTensor, type) and all(hasattr(FakeTensorMode, name) for name in ("from_tensor", "dispatch"))


FAKE_TENSORS = Hook(
    id="fake-tensors",
    api="torch._subclasses.fake_tensor.{FakeTensor, FakeTensorMode}",
    used_for="models without weights, and captured inputs that are too large to copy",
    lost="no scans",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_fake_tensors,
    essential=True,
)


def skip_cache_entries(skip: Callable[[Sequence[Any]], bool]) -> AbstractContextManager[None]:
    """Within it, operator results for which `skip` is true get no entry in the cache of fake results.

    To make an entry, torch (2.13) computes a result whose size is an unbacked symbol a second time.
    """
    if not RESULT_CACHE.is_supported():
        return nullcontext()
    from torch._subclasses.fake_tensor import FakeTensorMode, _BypassDispatchCache

    make: Callable[..., Any] = FakeTensorMode._make_cache_entry

    def make_entry(mode: Any, *rest: Any) -> Any:
        if skip(rest[-1] if isinstance(rest[-1], tuple) else rest[-1:]):
            raise _BypassDispatchCache("the result has an unbacked size")
        return make(mode, *rest)

    return patch_attribute(FakeTensorMode, "_make_cache_entry", make_entry)


def _has_result_cache() -> bool:
    from torch._subclasses.fake_tensor import FakeTensorMode, _BypassDispatchCache

    return hasattr(FakeTensorMode, "_make_cache_entry") and issubclass(_BypassDispatchCache, Exception)


RESULT_CACHE = Hook(
    id="fake-result-cache",
    api="FakeTensorMode._make_cache_entry, torch._subclasses.fake_tensor._BypassDispatchCache",
    used_for="exports of models with data-dependent sizes in less time",
    lost="such exports take up to twice as long",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_result_cache,
)


def around_each_dispatch(note: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Within it, `note` is called with the arguments of each operator on fake tensors, and then with its results."""
    if not FAKE_DISPATCH.is_supported():
        return nullcontext()
    from torch._subclasses.fake_tensor import FakeTensorMode

    dispatch: Callable[..., Any] = FakeTensorMode.__torch_dispatch__

    def dispatch_and_note(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note((args, kwargs))
        result = dispatch(mode, func, types, args, kwargs)
        note(result)
        return result

    return patch_attribute(FakeTensorMode, "__torch_dispatch__", dispatch_and_note)


def _has_fake_dispatch() -> bool:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return "__torch_dispatch__" in vars(FakeTensorMode)


FAKE_DISPATCH = Hook(
    id="fake-dispatch",
    api="torch._subclasses.fake_tensor.FakeTensorMode.__torch_dispatch__",
    used_for="the line that made a tensor which torch finds among the constants when the forward is over",
    lost="findings about leaked constants have no line",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_fake_dispatch,
)


@contextmanager
def around_tolist(answer: Callable[[FrameType, Callable[[], Any]], Any]) -> Iterator[None]:
    """Within it, `tolist` of a tensor that is being traced is `answer` of the frame that calls it and of what torch
    makes of it: methods of these classes come before modes of torch functions."""
    with ExitStack() as stack:
        for kind in _with_own_tolist() if OWN_TOLIST.is_supported() else ():
            plain = vars(kind)["tolist"]

            def tolist(self: Any, plain: Callable[[Any], Any] = plain) -> Any:
                return answer(sys._getframe(1), partial(plain, self))

            stack.enter_context(patch_attribute(kind, "tolist", tolist))
        yield


def _with_own_tolist() -> tuple[type, ...]:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return FakeTensor, FunctionalTensor


OWN_TOLIST = Hook(
    id="own-tolist",
    api="FakeTensor.tolist, torch._subclasses.functional_tensor.FunctionalTensor.tolist",
    used_for="numbers that a model reads by tolist(), as sizes of inputs and as the tensor that they are in",
    lost="hoist-numbers and list-as-tensor change nothing where numbers are read by tolist()",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=lambda: all("tolist" in vars(kind) for kind in _with_own_tolist()),
)

HOOKS = (FAKE_TENSORS, RESULT_CACHE, FAKE_DISPATCH, OWN_TOLIST)
