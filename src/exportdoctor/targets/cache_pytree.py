"""The only place that makes transformers' DynamicCache a pytree node, for as long as one attempt lasts.

The node's children are key and value of each layer in turn. Whatever was registered before, by transformers
itself (4.5x) or by another library, is set aside and put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SERIALISED_NAME = "transformers.cache_utils.DynamicCache"


@contextmanager
def registered_cache() -> Iterator[None]:
    """DynamicCache as a pytree node, for tracing and for running the exported program."""
    import torch.fx._pytree as fx_pytree
    from torch.utils import _pytree as pytree
    from transformers.cache_utils import DynamicCache

    registries: tuple[dict[Any, Any], ...] = (
        pytree.SUPPORTED_NODES,
        pytree.SUPPORTED_SERIALIZED_TYPES,
        fx_pytree.SUPPORTED_NODES,
        fx_pytree.SUPPORTED_NODES_EXACT_MATCH,
    )
    before = [registry.pop(DynamicCache, None) for registry in registries]
    names_before = dict(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE)
    try:
        pytree._private_register_pytree_node(
            DynamicCache,
            _flatten,
            _unflatten,
            serialized_type_name=_SERIALISED_NAME,
            flatten_with_keys_fn=_flatten_with_keys,
        )
        fx_pytree.register_pytree_flatten_spec(DynamicCache, lambda cache, _: tensors_of(cache))
        yield
    finally:
        for registry, entry in zip(registries, before, strict=True):
            registry.pop(DynamicCache, None)
            if entry is not None:
                registry[DynamicCache] = entry
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.clear()
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.update(names_before)


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


def _flatten(cache: Any) -> tuple[list[torch.Tensor], None]:
    return tensors_of(cache), None


def _unflatten(tensors: Any, _: None) -> Any:
    return cache_from(list(tensors))


def _flatten_with_keys(cache: Any) -> tuple[list[tuple[Any, torch.Tensor]], None]:
    from torch.utils._pytree import SequenceKey

    return [(SequenceKey(index), tensor) for index, tensor in enumerate(tensors_of(cache))], None
