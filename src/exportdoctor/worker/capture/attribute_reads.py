"""Records which plain attributes an export reads.

Two layers may differ only in an attribute such as their index. Where an export of one never reads it, the outcome
holds for the other as well. The attribute is moved out of the instance, and a descriptor on its class records each use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from exportdoctor.core.patch_attribute import patch_attribute


class _RecordedAttribute:
    """A data descriptor in place of one attribute name, for the instances that are watched."""

    def __init__(self, name: str, log: set[tuple[str, str]]) -> None:
        self.name = name
        self.log = log
        self.paths: dict[int, str] = {}
        self.values: dict[int, Any] = {}

    def take_from(self, instance: torch.nn.Module, path: str) -> None:
        """Hold the instance's value from here on. `path` is what a use is recorded under."""
        self.paths[id(instance)] = path
        self.values[id(instance)] = instance.__dict__.pop(self.name)

    def give_back(self, instance: torch.nn.Module) -> None:
        """Give the instance its value, as it is now."""
        instance.__dict__[self.name] = self.values.pop(id(instance))

    # Dynamo would look through this function and drop its note; refusing to be traced makes that attempt differ
    @torch.compiler.disable  # type: ignore[misc, untyped-decorator]
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        if id(instance) in self.values:
            self.log.add((self.paths[id(instance)], self.name))
            return self.values[id(instance)]
        if self.name in instance.__dict__:
            return instance.__dict__[self.name]
        raise AttributeError(self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        if id(instance) in self.values:
            self.log.add((self.paths[id(instance)], self.name))
            self.values[id(instance)] = value
        else:
            instance.__dict__[self.name] = value


@contextmanager
def watch_reads(module: torch.nn.Module, watch: tuple[tuple[str, str], ...]) -> Iterator[set[tuple[str, str]]]:
    """Yields the set of (submodule path, attribute) pairs of `watch` that are read or written inside."""
    log: set[tuple[str, str]] = set()
    placed: dict[tuple[type, str], _RecordedAttribute] = {}
    with ExitStack() as stack:
        for path, name in watch:
            child = module.get_submodule(path)
            if name not in child.__dict__:
                continue
            key = type(child), name
            if key not in placed:
                placed[key] = _RecordedAttribute(name, log)
                stack.enter_context(patch_attribute(type(child), name, placed[key]))
            placed[key].take_from(child, path)
            stack.callback(placed[key].give_back, child)
        yield log
