"""What a hoisted call leaves on objects and in globals: the program does not make the call, and does not see it.

An attribute that the call sets for some inputs alone, and that the forward reads, would have the value of the example.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from exportdoctor.targets.held_state import is_of_python

ARGUMENTS = "its arguments"
"""In the place of a name: what the call was given, tensors and containers."""

_Key = tuple[int, str]
_DEPTH = 4
"""Of objects in the attributes of objects."""


def compute_unseen(
    module: Any, function: FunctionType, names: frozenset[str], compute: Callable[[], Any], given: Any
) -> Any:
    """What `compute` gives. Raises ValueError where it sets one of the names, whose new value the program would not
    have."""
    result, changed = watch_names(module, function, names, compute, given)
    if changed:
        raise ValueError(
            f"{function.__qualname__} sets {', '.join(sorted(changed))} here, which the program does not do"
        )
    return result


def watch_names(
    module: Any, function: FunctionType, names: frozenset[str], compute: Callable[[], Any], given: Any
) -> tuple[Any, frozenset[str]]:
    """What `compute` gives for these arguments, and those of the names whose value it changes: of globals, of
    attributes of the module and its submodules, and of plain objects in them and among the arguments."""
    held = list(_holders(module, function, given)) if names - {ARGUMENTS} else []
    watched = [*_containers(given)] if ARGUMENTS in names else []
    before = {**_values(held, names), **_contents_of(watched)}
    result = compute()
    after = {**_values(held, names), **_contents_of(watched)}
    keys = before.keys() | after.keys()
    return result, frozenset(key[1] for key in keys if not _is_same(before.get(key), after.get(key)))


def _holders(module: Any, function: FunctionType, given: Any) -> Iterator[Mapping[str, Any]]:
    yield function.__globals__
    classes = dict.fromkeys(kind for part in module.modules() for kind in type(part).__mro__)
    yield from (vars(kind) for kind in classes)
    seen = set[int]()
    for part in module.modules():
        yield from (vars(part), part._buffers, part._parameters)
        yield from _attributes_in(list(vars(part).values()), seen, _DEPTH)
    yield from _attributes_in(list(_leaves(given)), seen, _DEPTH)


def _attributes_in(values: list[Any], seen: set[int], depth: int) -> Iterator[dict[str, Any]]:
    """The attributes of plain objects, and of those in them."""
    import torch

    for value in values:
        if is_of_python(type(value)) and type(value) is not OrderedDict:  # which may have attributes
            continue
        known = isinstance(value, torch.Tensor | torch.nn.Module | type | FunctionType | ModuleType)
        if known or id(value) in seen or not isinstance(getattr(value, "__dict__", None), dict):
            continue
        seen.add(id(value))
        yield vars(value)
        if depth > 1:
            yield from _attributes_in(list(vars(value).values()), seen, depth - 1)


def _leaves(value: Any) -> Iterator[Any]:
    """What is in containers of Python's own, and these."""
    yield value
    if isinstance(value, list | tuple | set):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _leaves(one)


def _containers(given: Any) -> Iterator[Any]:
    import torch

    return (one for one in _leaves(given) if isinstance(one, torch.Tensor | list | set | dict))


def _values(held: list[Mapping[str, Any]], names: frozenset[str]) -> dict[_Key, tuple[Any, ...]]:
    """What the names hold."""
    return {
        (id(holder), name): (holder[name], *_inside(holder[name]))
        for holder in held
        for name in names.intersection(holder)
    }


def _contents_of(watched: list[Any]) -> dict[_Key, tuple[Any, ...]]:
    return {(id(one), ARGUMENTS): tuple(_inside(one)) for one in watched}


def _inside(value: Any) -> Sequence[Any]:
    """The contents of a container, the version of a tensor."""
    import torch

    if isinstance(value, torch.Tensor):
        return () if value.is_inference() else (value._version,)
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    return tuple(value) if isinstance(value, list | set) else ()


def _is_same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Whether both are the same objects, or equal plain values."""
    if one is None or other is None or len(one) != len(other):
        return one is other
    return all(a is b or (_is_plain(a) and type(a) is type(b) and a == b) for a, b in zip(one, other, strict=True))


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str)
