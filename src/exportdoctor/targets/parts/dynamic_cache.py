"""transformers' DynamicCache as a pytree node, for as long as an export lasts: the list of its tensors.

Not `register_dynamic_cache_export_support` of transformers.integrations.executorch: it stays registered, its children
differ between releases, and it builds the cache by operators that are traced. Here key and value of each layer come in
turn, in every release from 4.53 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from exportdoctor.torch_internals.pytree_registry import register_node, temporary_registrations

if TYPE_CHECKING:
    import torch


@contextmanager
def registered_cache() -> Iterator[None]:
    """DynamicCache as a pytree node, for tracing and for running the exported program."""
    from transformers.cache_utils import DynamicCache

    with temporary_registrations(lambda: register_node(DynamicCache, tensors_of, cache_from)):
        yield


def tensors_of(cache: Any) -> list[torch.Tensor]:
    """Key and value of each layer in turn, each (batch, heads, length, head size)."""
    if hasattr(cache, "layers"):
        pairs = [(layer.keys, layer.values) for layer in cache.layers]
    else:
        pairs = list(zip(cache.key_cache, cache.value_cache, strict=True))
    return [tensor for pair in pairs for tensor in pair]


def holds_other_state(value: Any) -> bool:
    """Whether it is a DynamicCache of more than keys and values: layers of state space models hold states."""
    from transformers.cache_utils import DynamicCache

    layers = getattr(value, "layers", ()) if isinstance(value, DynamicCache) else ()
    return not all(hasattr(layer, "keys") for layer in layers)


def sliding_windows(config: Any) -> list[int]:
    """The windows of the layers that keep no more than the last keys and values, shortest first; none where the release
    of transformers makes no cache by a configuration."""
    from transformers.cache_utils import DynamicCache

    try:
        layers: Any = DynamicCache(config=config).layers
    except (TypeError, AttributeError):
        return []
    windows = {getattr(one, "sliding_window", None) for one in layers if getattr(one, "is_sliding", False)}
    return sorted(one for one in windows if isinstance(one, int))


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
