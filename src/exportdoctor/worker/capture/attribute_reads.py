"""Which plain attributes an export looks at: the second question that is put to kin.

Two layers may differ in nothing but their index. If an export of the one never reads it, its answer is the other's
too. The attribute is moved out of the instance and a descriptor on the class reports each look at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class _Watched:
    """A data descriptor in place of one attribute name, for the instances that are watched."""

    def __init__(self, name: str, log: set[tuple[str, str]]) -> None:
        self.name = name
        self.log = log
        self.paths: dict[int, str] = {}
        self.values: dict[int, Any] = {}

    # Dynamo would look through this function and drop its note; refusing to be traced makes that attempt differ
    @torch._dynamo.disable  # type: ignore[misc, untyped-decorator]
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
    placed: dict[tuple[type, str], tuple[_Watched, bool, Any]] = {}
    for path, name in watch:
        child = module.get_submodule(path)
        if name not in child.__dict__:
            continue
        kind = type(child)
        if (kind, name) not in placed:
            placed[kind, name] = (_Watched(name, log), name in kind.__dict__, kind.__dict__.get(name))
            setattr(kind, name, placed[kind, name][0])
        descriptor = placed[kind, name][0]
        descriptor.paths[id(child)] = path
        descriptor.values[id(child)] = child.__dict__.pop(name)
    try:
        yield log
    finally:
        for (kind, name), (_, had, old) in placed.items():
            if had:
                setattr(kind, name, old)
            else:
                delattr(kind, name)
        for path, name in watch:
            child = module.get_submodule(path)
            found = placed.get((type(child), name))
            if found is not None and id(child) in found[0].values:
                child.__dict__[name] = found[0].values[id(child)]
