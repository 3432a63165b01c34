"""Finds attributes that a shim did not restore: compares snapshots from before and after it.

A snapshot covers the modules of the call with some numbers of each parameter and buffer, functions and classes of
torch's and transformers' loaded modules, torch's pytree registries and its settings. What only grew by being used, such
as a cache, is no leak.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from exportdoctor.shims.export_call import ExportCall
from exportdoctor.torch_internals.pytree_registry import pytree_registries
from exportdoctor.torch_internals.tracing_modes import symbolic_shape_settings

Place = tuple[str, str]
"""(owner, attribute)."""

Snapshot = dict[Place, int]
"""The identity of the value at each place; its owner keeps it alive."""

_PACKAGES = ("torch", "transformers")
_NUMBERS = 64
_WATCHED = (FunctionType, type, bool, int, float, str, property, classmethod, staticmethod, type(None))
_COUNTERS = ("torch._dynamo.mutation_guard.GenerationTracker", "torch._subclasses.meta_utils.DESCRIBER_NEXT_ID")
"""Classes and attributes that count what torch compiled, as flex attention is, and the fake tensors that it made."""


def snapshot(call: ExportCall) -> Snapshot:
    """The values at all the places that shims change."""
    found: Snapshot = {}
    for name, module in call.module.named_modules():
        found.update({(name or "the module", key): id(value) for key, value in vars(module).items()})
        for key, value in {**module._parameters, **module._buffers}.items():
            found[name or "the module", key] = hash((id(value), _some_numbers(value)))
        config = getattr(module, "config", None)
        if hasattr(config, "__dict__"):
            found.update({(f"{name}.config", key): id(value) for key, value in vars(config).items()})
    for owner, attributes in _owners():
        found.update(
            {
                (owner, key): id(value)
                for key, value in attributes.items()
                if issubclass(type(value), _WATCHED) and f"{owner}.{key}" not in _COUNTERS
            }
        )
    found.update({(owner, name): hash(value) for owner, name, value in _settings()})
    return found


def _some_numbers(value: Any) -> bytes:
    """Some numbers of a tensor, at equal distances; none where it has no values."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_meta or value.layout != torch.strided:
        return b""
    if value.is_quantized or not value.numel():
        return b""
    with torch.no_grad():
        places = torch.arange(0, value.numel(), max(1, value.numel() // _NUMBERS), device=value.device)
        some = value.detach()[torch.unravel_index(places, value.shape)] if value.dim() else value.detach().reshape(1)
        return some.cpu().view(torch.uint8).numpy().tobytes()


def changed_places(before: Snapshot, after: Snapshot) -> set[Place]:
    """The places that differ, but for names that are new in a library's module: an import adds those."""
    found = {place for place, value in before.items() if after.get(place) != value}
    return found | {place for place in after.keys() - before.keys() if place[0].split(".")[0] not in _PACKAGES}


def left_behind(before: Snapshot, entered: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """What a shim changed when it was entered and did not restore, as `owner.attribute`, the first five.

    Other changes are the body's: an export imports modules and fills tables by itself.
    """
    left = changed_places(before, entered) & changed_places(before, after)
    return tuple(f"{owner}.{name}" for owner, name in sorted(left))[:5]


def _owners() -> Iterator[tuple[str, dict[str, Any]]]:
    """The namespaces of loaded modules of the libraries, and of the classes defined in them."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _PACKAGES or not isinstance(module, ModuleType):
            continue
        yield name, dict(vars(module))
        for kind in list(vars(module).values()):
            if issubclass(type(kind), type) and getattr(kind, "__module__", "") == name:
                owner = f"{name}.{kind.__qualname__}"
                if owner not in _COUNTERS:
                    yield owner, dict(vars(kind))


def _settings() -> Iterator[tuple[str, str, Any]]:
    import torch

    yield "settings", "is_grad_enabled", torch.is_grad_enabled()
    yield "settings", "default_dtype", str(torch.get_default_dtype())
    for name, value in symbolic_shape_settings().get_config_copy().items():
        yield "settings", name, repr(value)
    nodes, _, _, fx_nodes, _ = pytree_registries()
    for name, registry in (("pytree nodes", nodes), ("fx pytree nodes", fx_nodes)):
        for kind, node in registry.items():
            yield name, f"{kind.__module__}.{kind.__qualname__}", id(node)
