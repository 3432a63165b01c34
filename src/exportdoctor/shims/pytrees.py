"""The only place where shims make a class a pytree node, and where torch's registries are put back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def registries_restored() -> Iterator[None]:
    """On leaving, torch's registries of pytree nodes hold what they held."""
    import torch.fx._pytree as fx_pytree
    from torch.utils import _pytree as pytree

    registries: tuple[dict[Any, Any], ...] = (
        pytree.SUPPORTED_NODES,
        pytree.SUPPORTED_SERIALIZED_TYPES,
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE,
        fx_pytree.SUPPORTED_NODES,
        fx_pytree.SUPPORTED_NODES_EXACT_MATCH,
    )
    before = [dict(registry) for registry in registries]
    pending = list(pytree._cxx_pytree_pending_imports)
    try:
        yield
    finally:
        _forget_in_optree([kind for kind in pytree.SUPPORTED_NODES if kind not in before[0]])
        pytree._cxx_pytree_pending_imports[:] = pending
        for registry, entries in zip(registries, before, strict=True):
            registry.clear()
            registry.update(entries)


def _forget_in_optree(kinds: list[type[Any]]) -> None:
    """Where optree is installed, torch keeps a second table there, which refuses to be told of a class twice."""
    optree = sys.modules.get("optree")
    for kind in kinds if optree is not None else ():
        try:
            optree.unregister_pytree_node(kind, namespace="torch")  # type: ignore[union-attr]
        except ValueError:
            continue  # it never got there


def register(kind: type[Any], children: Callable[[Any], list[Any]], build: Callable[[list[Any]], Any]) -> None:
    """Make `kind` a node: `children` takes it apart, `build` puts it together. Whoever had registered it loses."""
    import torch.fx._pytree as fx_pytree
    from torch.utils import _pytree as pytree

    name = f"{kind.__module__}.{kind.__qualname__}"
    for registry in (pytree.SUPPORTED_NODES, pytree.SUPPORTED_SERIALIZED_TYPES):
        registry.pop(kind, None)
    pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(name, None)
    pytree._private_register_pytree_node(
        kind,
        lambda value: (children(value), None),
        lambda values, _: build(list(values)),
        serialized_type_name=name,
        flatten_with_keys_fn=lambda value: (
            [(pytree.SequenceKey(place), child) for place, child in enumerate(children(value))],
            None,
        ),
    )
    fx_pytree.register_pytree_flatten_spec(kind, lambda value, _: children(value))


def is_registered(kind: type[Any]) -> bool:
    """Whether torch takes values of `kind` apart."""
    from torch.utils import _pytree as pytree

    return kind in pytree.SUPPORTED_NODES
