"""A function with a cache hashes its arguments, and a symbolic size has no hash: such a call goes past the cache."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.function_caches import METHOD_KINDS, find_cached, is_past_caches
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.torch_internals.trees import tree_leaves


def _past_cache(cached: Any, filled: list[Any]) -> Any:
    """The function; a call with a symbolic number does not ask its cache. `filled` gets each cache that kept a tensor
    of the trace, which is of no use afterwards."""
    import torch

    if isinstance(cached, METHOD_KINDS):
        return type(cached)(_past_cache(cached.__func__, filled))

    @functools.wraps(cached)
    def call(*args: Any, **kwargs: Any) -> Any:
        symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
        if is_past_caches() or any(isinstance(leaf, symbols) for leaf in tree_leaves((args, kwargs))):
            return cached.__wrapped__(*args, **kwargs)
        misses = cached.cache_info().misses
        found = cached(*args, **kwargs)
        if cached.cache_info().misses > misses and any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(found)):
            filled.append(cached)
        return found

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(call, name, getattr(cached, name))
    return call


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = find_cached()
    if not found:
        raise NotApplicable("no function has a cache of functools")
    filled: list[Any] = []
    try:
        with patch_attributes((holder, name, _past_cache(value, filled)) for holder, name, value in found):
            yield call
    finally:
        for cached in filled:
            cached.cache_clear()


SHIM = Shim(
    id="past-lru-cache",
    title="Calls functions with a cache past it where an argument is a symbolic size",
    soundness="precondition",
    precondition="functions with a cache give the same for equal arguments, and nobody changes what they gave",
    enter=_enter,
    does=(
        "functools.lru_cache and functools.cache hash the arguments of a function, and a symbolic size has no hash. "
        "Within the export a call with such an argument runs the function itself; other calls are answered as before. "
        "A cache that got a tensor of the trace is cleared afterwards."
    ),
    cures=(Cure(message=r"unhashable type: non-nested Sym"),),
    needs={"torch": ">=2.8"},
    link="https://docs.python.org/3/library/functools.html#functools.lru_cache",
    retire="symbolic sizes can be hashed",
    rank=17,
    replaces=(
        Replacement(
            target="the functions with a cache",
            before="positions = make_positions(x.shape[1])\n",
            after="positions = make_positions.__wrapped__(x.shape[1])\n",
        ),
    ),
)
