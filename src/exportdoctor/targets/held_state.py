"""What a module holds, saved before a call and put back after it: attributes, what containers and objects in them hold,
variables of the functions in them, the states of generators, the places of files and of iterators over sequences, and
the values of its tensors."""

from __future__ import annotations

import operator
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from types import FunctionType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.targets.iterator_places import PLAIN_KINDS, place_access

if TYPE_CHECKING:
    import torch
    from torch import nn

_PLAIN = frozenset(map(id, PLAIN_KINDS))
"""By identity: a metaclass of the user's may refuse to compare or hash its classes."""
_CONTAINERS = (dict, list, set, deque)
_OF_PYTHON = _PLAIN | frozenset(map(id, (dict, OrderedDict, list, set, deque, tuple)))
_FUNCTIONS = frozenset(map(id, (FunctionType, staticmethod, classmethod, property)))
_MOST_VALUES = 100_000
_MOST_BYTES = 64 << 20
"""Values that are looked at, and bytes of parameters and plain tensors that are copied, in one call."""


@contextmanager
def restore_held_state(module: nn.Module) -> Iterator[None]:
    """Restore on exit what the module and its submodules hold, what dicts, lists, sets, deques, objects of the user's
    classes and functions hold that are reached from there, and the states of generators; the values of buffers, and of
    other tensors up to 64 MiB, also where they are written to or replaced through `.data`. So are dicts, lists, sets
    and deques that are defaults of parameters in their code.

    Variables of files and classes stay as they are: such a flag may say that something was registered, once.
    """
    import torch

    tensors, undo = _walk(module)
    buffers = [(buffer, without_repeats(buffer).clone()) for buffer in module.buffers()]
    sizes = [buffer.shape for buffer in module.buffers()]
    plain = [buffer for buffer in module.buffers() if not buffer.requires_grad]
    known = {id(buffer) for buffer, _ in buffers}
    saved = list(_save(one for one in tensors if id(one) not in known))
    try:
        yield
    finally:
        for one in undo:
            one()
        with torch.no_grad():
            for tensor, memory, copied in saved:
                if tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape:
                    tensor.data = memory
                if memory.is_cuda:  # to ask whether they are equal would wait for the GPU, for each tensor
                    without_repeats(memory).data.copy_(copied)  # is not counted as a write
                elif not torch.equal(written := without_repeats(memory), copied):
                    written.copy_(copied)
            for (buffer, value), shape in zip(buffers, sizes, strict=True):
                if buffer.shape != shape:  # resize_ would keep memory that a file of a tensor without elements refuses
                    buffer.data = torch.empty(shape, dtype=buffer.dtype, device=buffer.device)
                without_repeats(buffer).copy_(value)
            for buffer in (one for one in plain if one.requires_grad):  # what was written into it carried gradients
                with suppress(RuntimeError):  # a view cannot be taken off its graph
                    buffer.detach_().requires_grad_(False)


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without gradients; of one whose elements share memory, as `expand` makes it, that memory in one
    dimension: torch writes into no other form of it."""
    import torch

    plain = tensor.detach()
    if plain.layout != torch.strided or plain.is_nested:
        return plain
    end = 0
    for stride, size in sorted(zip(plain.stride(), plain.shape, strict=True)):
        if size > 1 and stride <= end:
            last = sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride(), strict=True))
            return plain.as_strided((last + 1 if plain.numel() else 0,), (1,))
        end += (size - 1) * stride
    return plain


def _save(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Each tensor with another of the same memory and a copy of its values, up to `_MOST_BYTES` of them."""
    left = _MOST_BYTES
    for tensor in tensors:
        if tensor.nbytes <= left:
            left -= tensor.nbytes
            memory = tensor.detach()
            yield tensor, memory, without_repeats(memory).clone()


def _is_writable(value: Any) -> bool:
    """Whether it is a plain tensor with values in memory of its own."""
    import torch

    kind = type(value)
    if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or value.is_inference():
        return False
    return bool(value.layout == torch.strided and value.device.type != "meta")


def _walk(module: nn.Module) -> tuple[list[torch.Tensor], list[Callable[[], object]]]:
    """The tensors with values of their own that are reached from the module, and what puts back all else that is. What
    hooks hold is left out: they may be those of a caller who watches the module."""
    tensors: list[torch.Tensor] = []
    undo: list[Callable[[], object]] = []
    pending: list[Any] = list(module.modules())
    seen = {id(hook) for one in pending for hook in _hooks_of(one)}
    pending += _defaults_of_code(module)
    while pending and len(seen) < _MOST_VALUES:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if _is_writable(value):
            tensors.append(value)
        else:
            pending.extend(one for one in _held_by(value, undo) if id(type(one)) not in _PLAIN)
    return tensors, undo


def _defaults_of_code(module: nn.Module) -> list[Any]:
    """The containers that are defaults of parameters, in which a call may keep what a later one finds: of the methods
    of the modules' classes, and of the functions of their files."""
    kinds = {id(kind): kind for one in module.modules() for kind in type(one).__mro__}
    spaces = {str(kind.__module__): sys.modules.get(str(kind.__module__)) for kind in kinds.values()}
    owners = [*kinds.values(), *filter(None, spaces.values())]
    return [value for owner in owners for value in _defaults_of_owner(owner)]


_KNOWN_DEFAULTS: dict[int, tuple[Any, tuple[Any, ...]]] = {}
"""By identity, with the owner, which keeps it from being another's: this is asked at each call."""


def _defaults_of_owner(owner: Any) -> tuple[Any, ...]:
    known = _KNOWN_DEFAULTS.get(id(owner))
    if known is None:
        found = (value for held in list(vars(owner).values()) for value in _defaults_of(held))
        known = _KNOWN_DEFAULTS[id(owner)] = owner, tuple(found)
    return known[1]


def _defaults_of(value: Any) -> Iterator[Any]:
    """The containers among the defaults of a function of the user's, also of a static, a class method or a property."""
    if id(type(value)) not in _FUNCTIONS:
        return
    for function in (value, getattr(value, "__func__", None), getattr(value, "fget", None)):
        if type(function) is FunctionType and is_user_file(function.__code__.co_filename):
            held = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
            yield from (one for one in held if issubclass(type(one), _CONTAINERS))


def _hooks_of(module: nn.Module) -> Iterator[Any]:
    for name, hooks in vars(module).items():
        if "_hooks" in name and isinstance(hooks, dict):
            yield from hooks.values()


def _held_by(value: Any, undo: list[Callable[[], object]]) -> Iterator[Any]:
    """The values that a value holds; what puts them back is added to `undo`."""
    kind = type(value)
    if issubclass(kind, _CONTAINERS):
        contents = contents_of(value)
        undo.append(partial(_restore_contents, value, contents))
        yield from contents
    elif issubclass(kind, tuple):
        yield from tuple.__iter__(value)
    elif issubclass(kind, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif kind is MethodType:
        yield from (value.__self__, value.__func__)
    elif kind is FunctionType:
        if is_user_file(value.__code__.co_filename):
            yield from (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), value.__dict__)
            for cell, content in _cells(value):
                undo.append(partial(setattr, cell, "cell_contents", content))
                yield content
    elif (generator := _generator_access(value)) is not None:
        read, write = generator
        undo.append(partial(write, read()))
    elif (place := place_access(value)) is not None:
        undo.append(partial(place[1], place[0]))
    if not is_of_python(kind) and is_of_user(kind):
        attributes = attributes_of(value)
        contents = contents_of(attributes)
        undo.append(partial(_restore_contents, attributes, contents))
        yield from contents
        for name, content in slots_of(value):
            undo.append(partial(object.__setattr__, value, name, content))
            yield content


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


def is_of_python(kind: type) -> bool:
    """Whether it is a class of plain values or containers of Python's own: most of what a module holds."""
    return id(kind) in _OF_PYTHON


def is_of_user(kind: type) -> bool:
    """Whether it is a class of modules or of other objects of the user's."""
    import torch

    if issubclass(kind, torch.nn.Module):
        return True
    file = getattr(sys.modules.get(str(kind.__module__)), "__file__", None)
    return file is not None and is_user_file(file) and not issubclass(kind, (type, torch.Tensor))


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
        for name, slot in kind.__dict__.items() if "__slots__" in kind.__dict__ else ():
            if type(slot) is MemberDescriptorType:
                with suppress(AttributeError):
                    yield name, slot.__get__(value)


def _cells(function: FunctionType) -> Iterator[tuple[Any, Any]]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            yield cell, cell.cell_contents


def contents_of(container: Any) -> tuple[Any, ...]:
    """What it holds; of a dict each key and its value in turn."""
    kind = builtin_class_of(container)
    if not kind.__len__(container):  # as most dicts of hooks
        return ()
    return tuple(chain.from_iterable(kind.items(container)) if issubclass(kind, dict) else kind.__iter__(container))


def builtin_class_of(container: Any) -> Any:
    """The class whose methods read and write what is held: a subclass of a model's may forbid that, or note it."""
    kind = type(container)
    if kind.__module__ == "builtins" or kind is OrderedDict:
        return kind
    return next(one for one in kind.__mro__ if one.__module__ in ("builtins", "collections"))


def _restore_contents(container: Any, contents: tuple[Any, ...]) -> None:
    kind, now = builtin_class_of(container), contents_of(container)
    if len(now) == len(contents) and all(map(operator.is_, now, contents)):
        return
    kind.clear(container)
    if issubclass(kind, dict):
        for key, value in zip(contents[::2], contents[1::2]):
            kind.__setitem__(container, key, value)
    else:
        (kind.update if issubclass(kind, set) else kind.extend)(container, contents)
