"""transformers' caches as pytree nodes for as long as an export lasts: programs take and return them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import Replacement, Shim
from exportdoctor.targets.parts.dynamic_cache import cache_from, tensors_of
from exportdoctor.torch_internals.pytree_registry import register_node, temporary_registrations


def register_caches() -> None:
    """DynamicCache: key and value of each layer in turn. EncoderDecoderCache: its two caches."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    register_node(DynamicCache, tensors_of, cache_from)
    register_node(EncoderDecoderCache, _two_caches, lambda caches: EncoderDecoderCache(*caches))


def _two_caches(cache: Any) -> list[Any]:
    return [cache.self_attention_cache, cache.cross_attention_cache]


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    with temporary_registrations(register_caches):
        yield call


SHIM = Shim(
    id="register-cache-pytree",
    title="Registers transformers' caches as pytree nodes",
    soundness="exact",
    enter=_enter,
    does=(
        "Inputs and outputs of a program must be flattened into tensors. `DynamicCache` and "
        "`EncoderDecoderCache` are registered for the export and unregistered afterwards; registrations "
        "by other libraries are restored. Running the program requires the registration too."
    ),
    cures=(
        Cure(kinds=("unregistered_pytree",), message=r"DynamicCache|EncoderDecoderCache|Cache\b|cache_utils"),
        Cure(exporters=("export-strict",), message=r"AssertionError", where=r"cache_utils|past_key_values"),
    ),
    needs={"torch": ">=2.8", "transformers": ">=4.53"},
    link="https://github.com/pytorch/pytorch/issues/136582",
    retire="transformers registers its caches for every kind of export",
    rank=10,
    conflicts=("hf.cache-pytrees", "od.cache-serialization"),
    replaces=(
        Replacement(
            target="torch.utils._pytree.SUPPORTED_NODES",
            before="",
            after="register_node(DynamicCache, tensors_of, cache_from)\n"
            "register_node(EncoderDecoderCache, _two_caches, lambda caches: EncoderDecoderCache(*caches))\n",
        ),
    ),
)
