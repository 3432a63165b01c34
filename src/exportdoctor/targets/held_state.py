"""What a module holds, saved before a call and put back after it: attributes, what containers and objects in them hold,
variables of the functions in them, the states of generators, and the values of its tensors."""

from __future__ import annotations

import operator
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from types import FunctionType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any

from exportdoctor.core.failure.frames import is_user_file

if TYPE_CHECKING:
    import torch
    from torch import nn

_PLAIN = frozenset(map(id, (bool, int, float, complex, str, bytes, type(None))))
"""By identity: a metaclass of the user's may refuse to compare or hash its classes."""
_CONTAINERS = (dict, list, set, deque)
_MOST_VALUES = 100_000
_MOST_BYTES = 64 << 20
"""Values that are looked at, and bytes of parameters and plain tensors that are copied, in one call."""


@contextmanager
def restore_held_state(module: nn.Module) -> Iterator[None]:
    """Restore on exit what the module and its submodules hold, what dicts, lists, sets, deques, objects of the user's
    classes and functions hold that are reached from there, and the states of generators; the values of buffers, and of
    other tensors up to 64 MiB, also where they are written to or replaced through `.data`.

    Variables of files and classes stay as they are: such a flag may say that something was registered, once.
    """
    import torch

    values = list(_held_values(module))
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    known = {id(buffer) for buffer, _ in buffers}
    saved = list(_save(one for one in values if _is_writable(one) and id(one) not in known))
    undo = [one for value in values for one in _undo_of(value)]
    try:
        yield
    finally:
        for one in undo:
            one()
        with torch.no_grad():
            for tensor, memory, copied in saved:
                if tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape:
                    tensor.data = memory
                if not torch.equal(memory, copied):
                    memory.copy_(copied)
            for buffer, value in buffers:
                if buffer.shape != value.shape:  # the forward has called resize_
                    buffer.resize_(value.shape)
                buffer.copy_(value)


def _save(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Each tensor with another of the same memory and a copy of its values, up to `_MOST_BYTES` of them."""
    left = _MOST_BYTES
    for tensor in tensors:
        if tensor.nbytes <= left:
            left -= tensor.nbytes
            memory = tensor.detach()
            yield tensor, memory, memory.clone()


def _is_writable(value: Any) -> bool:
    """Whether it is a plain tensor with values in memory of its own."""
    import torch

    if not any(type(value) is kind for kind in (torch.Tensor, torch.nn.Parameter)) or value.is_inference():
        return False
    return bool(value.layout == torch.strided and value.device.type != "meta")


def _held_values(module: nn.Module) -> Iterator[Any]:
    """The modules, and all values other than plain ones that are reached from them, each once. What hooks hold is left
    out: they may be those of a caller who watches the module."""
    pending: list[Any] = list(module.modules())
    seen = {id(hook) for one in pending for hook in _hooks_of(one)}
    while pending and len(seen) < _MOST_VALUES:
        value = pending.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            pending.extend(one for one in _values_in(value) if id(type(one)) not in _PLAIN)


def _hooks_of(module: nn.Module) -> Iterator[Any]:
    for name, hooks in vars(module).items():
        if "_hooks" in name and isinstance(hooks, dict):
            yield from hooks.values()


def _values_in(value: Any) -> Iterator[Any]:
    kind = type(value)
    if issubclass(kind, _CONTAINERS):
        yield from _contents(value)
    elif issubclass(kind, tuple):
        yield from tuple.__iter__(value)
    elif issubclass(kind, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif kind is MethodType:
        yield from (value.__self__, value.__func__)
    elif _is_function_of_user(value):
        yield from (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), value.__dict__)
        yield from (content for _, content in _cells(value))
    if is_of_user(kind):
        yield from attributes_of(value).values()
        yield from (content for _, content in slots_of(value))


def _undo_of(value: Any) -> Iterator[Callable[[], object]]:
    """What puts back what the value itself holds."""
    kind = type(value)
    if issubclass(kind, _CONTAINERS):
        yield partial(_restore_contents, value, _contents(value))
    elif _is_function_of_user(value):
        yield from (partial(setattr, cell, "cell_contents", content) for cell, content in _cells(value))
    elif (generator := _generator_access(value)) is not None:
        read, write = generator
        yield partial(write, read())
    if is_of_user(kind):
        attributes = attributes_of(value)
        yield partial(_restore_contents, attributes, _contents(attributes))
        yield from (partial(object.__setattr__, value, name, content) for name, content in slots_of(value))


def state_of_generator(value: Any) -> Any:
    """The state of a generator of random numbers; None for any other value."""
    access = _generator_access(value)
    return access[0]() if access is not None else None


def _generator_access(value: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """What reads and what writes the state of a generator of random numbers; None for any other value."""
    import torch

    kind, numpy = type(value), sys.modules.get("numpy.random")
    if issubclass(kind, random.Random):
        return value.getstate, value.setstate
    if issubclass(kind, torch.Generator) or (numpy is not None and issubclass(kind, numpy.RandomState)):
        return value.get_state, value.set_state
    if numpy is not None and issubclass(kind, numpy.Generator):
        return lambda: value.bit_generator.state, partial(setattr, value.bit_generator, "state")
    return None


def is_of_user(kind: type) -> bool:
    """Whether it is a class of modules or of other objects of the user's."""
    from torch import Tensor, nn

    if issubclass(kind, nn.Module):
        return True
    file = getattr(sys.modules.get(str(kind.__module__)), "__file__", None) or "<none>"
    return is_user_file(file) and not issubclass(kind, type | Tensor)


def _is_function_of_user(value: Any) -> bool:
    return type(value) is FunctionType and is_user_file(value.__code__.co_filename)


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, which its class may answer for in another way; empty where it has slots only."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def slots_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The names and values of slots that are set."""
    for kind in type(value).__mro__:
        for name, slot in kind.__dict__.items():
            if type(slot) is MemberDescriptorType:
                with suppress(AttributeError):
                    yield name, slot.__get__(value)


def _cells(function: FunctionType) -> Iterator[tuple[Any, Any]]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            yield cell, cell.cell_contents


def _contents(container: Any) -> tuple[Any, ...]:
    """What it holds; of a dict each key and its value in turn."""
    kind = _builtin_class(container)
    return tuple(chain.from_iterable(kind.items(container)) if issubclass(kind, dict) else kind.__iter__(container))


def _builtin_class(container: Any) -> Any:
    """The class whose methods read and write what is held: a subclass of a model's may forbid that, or note it."""
    return next(one for one in type(container).__mro__ if one.__module__ in ("builtins", "collections"))


def _restore_contents(container: Any, contents: tuple[Any, ...]) -> None:
    kind, now = _builtin_class(container), _contents(container)
    if len(now) == len(contents) and all(map(operator.is_, now, contents)):
        return
    kind.clear(container)
    if issubclass(kind, dict):
        for key, value in zip(contents[::2], contents[1::2]):
            kind.__setitem__(container, key, value)
    else:
        (kind.update if issubclass(kind, set) else kind.extend)(container, contents)
