"""The values in nested containers and objects by path, also in classes that are no pytree nodes, such as caches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import copy_inputs, same_values
from exportdoctor.targets.held_state import attributes_of, slots_of
from exportdoctor.targets.iterator_places import PLAIN_KINDS


@dataclass(frozen=True, kw_only=True)
class FoundValue:
    """A tensor or a plain value, at `path`; `within` are the objects that hold it, outermost first, itself last."""

    path: tuple[str, ...]
    value: Any
    within: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The path as text: `[1].cache.layers[0].keys`."""
        return "".join(self.path)


def values_in(value: Any) -> list[FoundValue]:
    """Every tensor and plain value once, in order; functions, modules and classes are left out."""
    return list(_visit(value, (), (), set()))


def map_tensors(value: Any, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    """The value with `change(path, tensor)` in place of each tensor in it. Containers and objects are changed."""
    return _map(value, "", change, {})


def _visit(value: Any, path: tuple[str, ...], within: tuple[Any, ...], seen: set[int]) -> Iterator[FoundValue]:
    if isinstance(value, PLAIN_KINDS):
        yield FoundValue(path=path, value=value, within=within)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield FoundValue(path=path, value=value, within=(*within, value))
        return
    for key, item in _children(value):
        yield from _visit(item, (*path, key), (*within, value), seen)


def _children(value: Any) -> list[tuple[str, Any]]:
    match value:
        case Mapping():
            return [(f".{key}" if isinstance(key, str) else f"[{key!r}]", item) for key, item in value.items()]
        case list() | tuple() | deque():
            return [(f"[{place}]", item) for place, item in enumerate(value)]
        case _ if isinstance(value, set | frozenset) and all(isinstance(item, PLAIN_KINDS) for item in value):
            return [(f"[{item!r}]", True) for item in sorted(value, key=repr)]
        case _ if isinstance(value, type | torch.nn.Module) or callable(value):
            return []
    attributes = {**attributes_of(value), **dict(slots_of(value))}
    return [(f".{name}", item) for name, item in attributes.items()]


def _map(value: Any, path: str, change: Callable[[str, torch.Tensor], torch.Tensor], seen: dict[int, Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)]
    result = value
    if isinstance(value, torch.Tensor):
        result = change(path.removeprefix("."), value)
    elif isinstance(value, tuple):
        items = [_map(item, path + key, change, seen) for key, item in _children(value)]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            result = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    elif not isinstance(value, PLAIN_KINDS):
        seen[id(value)] = value
        _map_children(value, path, change, seen)
    seen[id(value)] = result
    return result


def _map_children(value: Any, path: str, change: Callable[[str, torch.Tensor], torch.Tensor], seen: Any) -> None:
    match value:
        case dict():
            for (key, item), (text, _) in zip(list(value.items()), _children(value), strict=True):
                value[key] = _map(item, path + text, change, seen)
        case list() | deque():
            for place, (text, item) in enumerate(_children(value)):
                value[place] = _map(item, path + text, change, seen)
        case set() | frozenset() | Mapping():
            return
        case _:
            for text, item in _children(value):
                new = _map(item, path + text, change, seen)
                if new is not item:
                    object.__setattr__(value, text[1:], new)


def tensors_by_path(inputs: Inputs) -> dict[str, torch.Tensor]:
    """The tensors of a call's arguments, also those in caches and objects."""
    found: dict[str, torch.Tensor] = {}

    def note(path: str, leaf: torch.Tensor) -> torch.Tensor:
        found[path] = leaf
        return leaf

    map_tensors(inputs, note)
    return found


def turn_flags(inputs: Inputs) -> Inputs | None:
    """A copy with ones for zeros, and zeros for ones, in the whole numbers that have nothing else, as those of a mask;
    None where none have."""
    turned = []

    def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
        if not is_whole(leaf) or not leaf.numel() or not bool(((leaf == 0) | (leaf == 1)).all()):
            return leaf
        turned.append(path)
        return (leaf == 0).to(leaf.dtype)

    changed: Inputs = map_tensors(copy_inputs(inputs), change)
    return changed if turned else None


def equal_inputs(one: Inputs, other: Inputs) -> bool:
    """Whether all tensors are equal."""
    left, right = tensors_by_path(one), tensors_by_path(other)
    return left.keys() == right.keys() and all(equal_tensors(leaf, right[path]) for path, leaf in left.items())


def equal_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether shapes and values are equal."""
    return one.shape == other.shape and same_values(one.detach(), other.detach())


def is_whole(leaf: torch.Tensor) -> bool:
    """Whether its values are whole numbers, or true and false."""
    return not leaf.is_floating_point() and not leaf.is_complex()
