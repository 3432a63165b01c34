"""What a hoisted call leaves on objects and in globals: the program does not make the call, and does not see it.

An attribute that the call sets for some inputs alone, and that the forward reads, would have the value of the example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

_Key = tuple[int, str]


def compute_unseen(module: Any, function: FunctionType, names: frozenset[str], compute: Callable[[], Any]) -> Any:
    """What `compute` gives. Raises ValueError where it sets one of the names, whose new value the program would not
    have."""
    if not names:
        return compute()
    result, changed = watch_names(module, function, names, compute)
    if changed:
        raise ValueError(
            f"{function.__qualname__} sets {', '.join(sorted(changed))} here, which the program does not do"
        )
    return result


def watch_names(
    module: Any, function: FunctionType, names: frozenset[str], compute: Callable[[], Any]
) -> tuple[Any, frozenset[str]]:
    """What `compute` gives, and those of the names, of globals and of attributes of the module, its submodules and
    their plain objects, whose value it changes."""
    held = list(_holders(module, function))
    before = dict(_values(held, names))
    result = compute()
    after = dict(_values(held, names))
    keys = before.keys() | after.keys()
    return result, frozenset(key[1] for key in keys if not _is_same(before.get(key), after.get(key)))


def _holders(module: Any, function: FunctionType) -> Iterator[Mapping[str, Any]]:
    import torch

    yield function.__globals__
    classes = dict.fromkeys(kind for part in module.modules() for kind in type(part).__mro__)
    yield from (vars(kind) for kind in classes)
    for part in module.modules():
        yield from (vars(part), part._buffers, part._parameters)
        for value in vars(part).values():
            known = isinstance(value, torch.Tensor | torch.nn.Module | type | FunctionType | ModuleType)
            if not known and isinstance(getattr(value, "__dict__", None), dict):
                yield vars(value)


def _values(held: list[Mapping[str, Any]], names: frozenset[str]) -> Iterator[tuple[_Key, Any]]:
    """What the names hold, with the contents of containers and the version of tensors."""
    import torch

    for holder in held:
        for name in names & holder.keys():
            value = holder[name]
            if isinstance(value, torch.Tensor):
                yield (id(holder), name), (value, None if value.is_inference() else value._version)
            elif isinstance(value, dict):
                yield (id(holder), name), (value, *value.keys(), *value.values())
            else:
                yield (id(holder), name), (value, *(value if isinstance(value, list | set) else ()))


def _is_same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Whether both are the same objects, or equal plain values."""
    if one is None or other is None or len(one) != len(other):
        return one is other
    return all(a is b or (_is_plain(a) and type(a) is type(b) and a == b) for a, b in zip(one, other, strict=True))


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str)
