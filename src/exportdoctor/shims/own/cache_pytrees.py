"""transformers' caches as pytree nodes for as long as an export lasts: programs take and return them."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, shapes_by_name
from exportdoctor.shims.own.dataclass_pytrees import check_changes_returned
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.targets.parts.dynamic_cache import cache_from, tensors_of
from exportdoctor.torch_internals.pytree_registry import register_node, temporary_registrations
from exportdoctor.torch_internals.trees import tree_leaves

_TENSORS = ("keys", "values")
_DERIVED = frozenset({*_TENSORS, "is_initialized", "dtype", "device"})
"""What every layer has, and what follows from its tensors."""


def register_caches() -> None:
    """DynamicCache: key and value of each layer in turn, then what else its layers hold. EncoderDecoderCache: its two
    caches."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    register_node(DynamicCache, children_of, rebuild_cache, context=state_of_cache)
    register_node(EncoderDecoderCache, _two_caches, lambda caches: EncoderDecoderCache(*caches))


def children_of(cache: Any) -> list[Any]:
    """Key and value of each layer in turn; then the other tensors and numbers that its layers hold."""
    if _is_plain(cache):
        return tensors_of(cache)
    pairs = [getattr(layer, name, None) for layer in cache.layers for name in _TENSORS]
    return [*pairs, *(getattr(layer, name) for layer in cache.layers for name in _other_children(layer))]


def state_of_cache(cache: Any) -> Any:
    """Classes and plain attributes of the cache and of its layers; None for one of plain layers, which has no others.

    Raises NotApplicable for an attribute that is no plain value.
    """
    if _is_plain(cache):
        return None
    own = {name: value for name, value in vars(cache).items() if name != "layers"}
    return _as_state(own, ()), tuple((_path(type(layer)), _layer_state(layer)) for layer in cache.layers)


def rebuild_cache(children: list[Any], state: Any) -> Any:
    """The cache: layers of the same classes with all their attributes. Nothing is copied, no operator is traced."""
    if state is None:
        return cache_from(children)
    from transformers.cache_utils import DynamicCache

    cache: Any = object.__new__(DynamicCache)
    own, layers = state
    vars(cache).update(_from_state(own[0]), layers=[object.__new__(_find(path)) for path, _ in layers])
    pairs, others = iter(children[: 2 * len(layers)]), iter(children[2 * len(layers) :])
    for layer, (_, (plain, names)) in zip(cache.layers, layers, strict=True):
        vars(layer).update(_from_state(plain))
        vars(layer).update((name, next(pairs)) for name in _TENSORS)
        vars(layer).update((name, next(others)) for name in names)
    return cache


def _is_plain(cache: Any) -> bool:
    """Whether all its layers are plain ones that hold a key and a value, and nothing else that counts."""
    from transformers import cache_utils

    layer_class = getattr(cache_utils, "DynamicLayer", None)
    return layer_class is None or (
        not getattr(cache, "offloading", False)
        and all(
            type(one) is layer_class and one.keys is not None and vars(one).keys() <= _DERIVED for one in cache.layers
        )
    )


def _other_children(layer: Any) -> tuple[str, ...]:
    """The tensors and counts of a layer; torch puts objects of its own in their places while it exports."""
    plain = _plain_kinds()
    return tuple(
        name
        for name, value in vars(layer).items()
        if name not in (*_TENSORS, *_settings(layer)) and not isinstance(value, plain)
    )


def _plain_kinds() -> tuple[type[Any], ...]:
    import torch

    return (type(None), bool, float, str, type, torch.dtype, torch.device)


def _settings(layer: Any) -> frozenset[str]:
    """The numbers that a layer is made with, which no call changes: arguments of its `__init__`."""
    code = type(layer).__init__.__code__
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _layer_state(layer: Any) -> Any:
    names = _other_children(layer)
    plain = {name: value for name, value in vars(layer).items() if name not in (*_TENSORS, *names)}
    return _as_state(plain, names)


def _as_state(plain: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return tuple((name, _plain_value(name, value)) for name, value in plain.items()), names


def _plain_value(name: str, value: Any) -> Any:
    import torch

    match value:
        case None | bool() | int() | float() | str():
            return ("value", value)
        case type():
            return ("class", _path(value))
        case torch.dtype():
            return ("dtype", str(value).rpartition(".")[2])
        case torch.device():
            return ("device", str(value))
    raise NotApplicable(f"the cache keeps {name}, which is a {type(value).__name__}")


def _from_state(plain: Any) -> dict[str, Any]:
    import torch

    makers = {
        "value": lambda value: value,
        "class": _find,
        "dtype": lambda name: getattr(torch, name),
        "device": torch.device,
    }
    return {name: makers[kind](value) for name, (kind, value) in plain}


def _path(kind: type[Any]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))


def _two_caches(cache: Any) -> list[Any]:
    return [cache.self_attention_cache, cache.cross_attention_cache]


def _caches(value: Any) -> list[Any]:
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    found = []
    for leaf in tree_leaves(value):
        found += _caches(_two_caches(leaf)) if isinstance(leaf, EncoderDecoderCache) else []
        found += [leaf] if type(leaf) is DynamicCache else []
    return found


def counts_tokens(call: ExportCall) -> bool:
    """Whether an input cache counts something, such as the tokens that a sliding window has seen."""
    caches = _caches((call.args, call.kwargs))
    return any(type(child) is int for cache in caches for child in children_of(cache))


def _refuse_unknown(children: list[Any]) -> None:
    import torch

    unknown = [one for one in children if not isinstance(one, torch.Tensor | int | None)]
    if unknown:
        raise NotApplicable(f"a cache holds a {type(unknown[0]).__name__}")


def _enter(*, fixed: bool) -> Any:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        if call is None:  # to load or run a program
            with temporary_registrations(register_caches):
                yield call
            return
        if counts_tokens(call) != fixed:
            raise NotApplicable("a cache counts its tokens" if not fixed else "no cache among the inputs counts tokens")
        caches = _caches((call.args, call.kwargs))
        for cache in caches:
            state_of_cache(cache)
            _refuse_unknown(children_of(cache))
        if caches:
            check_changes_returned(call, lambda leaf: _caches([leaf]))
        with _with_caches(call) as given:
            yield given

    return enter


@contextmanager
def _with_caches(call: ExportCall) -> Iterator[ExportCall]:
    """The call, whose dynamic shapes say nothing of the new children of a cache: those are fixed."""
    shapes = shapes_by_name(call) or {}
    for name, value in call.named.items():
        given = shapes.get(name)
        if isinstance(given, list | tuple) and _caches([value]) == [value] and not _is_plain(value):
            more = [None] * (len(children_of(value)) - len(given))
            shapes = {**shapes, name: [*given, *more]}
            call = replace(call, dynamic_shapes=shapes)
    with temporary_registrations(register_caches):
        yield call


_NEEDS = {"torch": ">=2.8", "transformers": ">=4.53"}
_REPLACES = (
    Replacement(
        target="torch.utils._pytree.SUPPORTED_NODES",
        before="",
        after="register_node(DynamicCache, children_of, rebuild_cache, context=state_of_cache)\n"
        "register_node(EncoderDecoderCache, _two_caches, lambda caches: EncoderDecoderCache(*caches))\n",
    ),
)

SHIM = Shim(
    id="register-cache-pytree",
    title="Registers transformers' caches as pytree nodes",
    soundness="exact",
    enter=_enter(fixed=False),
    does=(
        "Inputs and outputs of a program must be flattened into tensors. `DynamicCache` and "
        "`EncoderDecoderCache` are registered for the export and unregistered afterwards; registrations "
        "by other libraries are restored. Running the program requires the registration too. Layers keep their classes "
        "and attributes. Refused where forward changes a cache and does not return it, because the program would drop "
        "the change."
    ),
    cures=(
        Cure(kinds=("unregistered_pytree",), message=r"DynamicCache|EncoderDecoderCache|Cache\b|cache_utils"),
        Cure(exporters=("export-strict",), message=r"AssertionError", where=r"cache_utils|past_key_values|\bcache\b"),
    ),
    needs=_NEEDS,
    link="https://github.com/pytorch/pytorch/issues/136582",
    retire="transformers registers its caches for every kind of export",
    rank=10,
    conflicts=("hf.cache-pytrees", "od.cache-serialization"),
    replaces=_REPLACES,
)

FIXED = replace(
    SHIM,
    id="register-cache-pytree-fixed",
    title="Registers transformers' caches that count their tokens as pytree nodes, for the example's count",
    soundness="specialised",
    enter=_enter(fixed=True),
    does=(
        "As register-cache-pytree, for caches among the inputs whose layers count tokens, such as those of a sliding "
        "window. The counts become constants, and the program refuses others."
    ),
    precondition="the caches among the inputs have seen as many tokens as the example's",
    rank=15,
    conflicts=("register-cache-pytree", "hf.cache-pytrees", "od.cache-serialization"),
)
