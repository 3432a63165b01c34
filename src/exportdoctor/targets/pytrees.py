"""Classes as pytree nodes for as long as an export lasts; transformers' DynamicCache as the list of its tensors.

Not `register_dynamic_cache_export_support` of transformers.integrations.executorch: it stays registered, its children
differ between releases, and it builds the cache by operators that are traced. Here key and value of each layer come in
turn, in every release from 4.53 on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ABSENT = object()


@contextmanager
def temporary_registrations(register_nodes: Callable[[], object]) -> Iterator[None]:
    """Calls `register_nodes`; on exit, torch's registries hold again what they held for the classes it registered.

    Classes that the body registers, by importing a module for example, stay registered.
    """
    before = [dict(registry) for registry in _registries()]
    keys: list[set[Any]] | None = None
    try:
        register_nodes()
        keys = _changed_keys(before)
        yield
    finally:
        _restore(before, _changed_keys(before) if keys is None else keys)


def _registries() -> tuple[dict[Any, Any], ...]:
    import torch.fx._pytree as fx_pytree
    from torch.utils import _pytree as pytree

    return (
        pytree.SUPPORTED_NODES,
        pytree.SUPPORTED_SERIALIZED_TYPES,
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE,
        fx_pytree.SUPPORTED_NODES,
        fx_pytree.SUPPORTED_NODES_EXACT_MATCH,
    )


def _changed_keys(before: list[dict[Any, Any]]) -> list[set[Any]]:
    """For each registry, the keys whose values are not those of `before`."""
    return [
        {key for key in {*old, *registry} if registry.get(key, _ABSENT) is not old.get(key, _ABSENT)}
        for registry, old in zip(_registries(), before, strict=True)
    ]


def _restore(before: list[dict[Any, Any]], keys: list[set[Any]]) -> None:
    _unregister_in_optree([kind for kind in keys[0] if kind not in before[0]])
    for registry, old, changed in zip(_registries(), before, keys, strict=True):
        for key in changed:
            registry.pop(key, None)
            if key in old:
                registry[key] = old[key]


def _unregister_in_optree(kinds: list[type[Any]]) -> None:
    """Where optree is installed, torch keeps a second table there, or fills it once optree is imported."""
    from torch.utils import _pytree as pytree

    pytree._cxx_pytree_pending_imports[:] = [
        (arguments, options) for arguments, options in pytree._cxx_pytree_pending_imports if arguments[0] not in kinds
    ]
    optree = sys.modules.get("optree")
    for kind in kinds if optree is not None else ():
        try:
            optree.unregister_pytree_node(kind, namespace="torch")  # type: ignore[union-attr]
        except ValueError:
            continue  # it never got there


def register(kind: type[Any], children: Callable[[Any], list[Any]], build: Callable[[list[Any]], Any]) -> None:
    """Make `kind` a node: `children` takes it apart, `build` puts it together. An earlier registration is replaced."""
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


@contextmanager
def registered_cache() -> Iterator[None]:
    """DynamicCache as a pytree node, for tracing and for running the exported program."""
    from transformers.cache_utils import DynamicCache

    with temporary_registrations(lambda: register(DynamicCache, tensors_of, cache_from)):
        yield


def tensors_of(cache: Any) -> list[torch.Tensor]:
    """Key and value of each layer in turn, each (batch, heads, length, head size)."""
    if hasattr(cache, "layers"):
        pairs = [(layer.keys, layer.values) for layer in cache.layers]
    else:
        pairs = list(zip(cache.key_cache, cache.value_cache, strict=True))
    return [tensor for pair in pairs for tensor in pair]


def cache_from(tensors: Sequence[torch.Tensor]) -> Any:
    """A DynamicCache that holds these tensors themselves: nothing is copied, no op is traced."""
    from transformers.cache_utils import DynamicCache

    cache: Any = DynamicCache()
    pairs = list(zip(tensors[::2], tensors[1::2], strict=True))
    if hasattr(cache, "layers"):
        cache.layers = [_layer(key, value) for key, value in pairs]
    else:  # transformers 4.53
        cache.key_cache, cache.value_cache = [key for key, _ in pairs], [value for _, value in pairs]
        cache._seen_tokens = pairs[0][0].shape[-2] if pairs else 0
    return cache


def _layer(key: Any, value: Any) -> Any:
    from transformers.cache_utils import DynamicLayer

    layer: Any = DynamicLayer()
    layer.keys, layer.values = key, value
    layer.is_initialized = True
    layer.dtype, layer.device = getattr(key, "dtype", None), getattr(key, "device", None)
    return layer
