"""A submodule's forward with its `**kwargs` spelled out, because torch loses count of them under dynamic shapes.

torch 2.13 matches `dynamic_shapes` once with the keywords bundled as forward's signature has them, and once more with
them spelled out; no spec fits both, and an export that would pass ends in a bare AssertionError
(`torch.export._trace._get_range_constraints`). That says nothing of the submodule, whose caller chose the keywords.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def flat_signature(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Within it, every keyword of this call is a named parameter of `module.forward`."""
    signature = inspect.signature(module.forward)
    extra = _bundled(signature, args, kwargs)
    if not extra:
        yield
        return
    forward, own = module.forward, module.__dict__.get("forward")

    @functools.wraps(forward)
    def spelled_out(*given: Any, **named: Any) -> Any:
        return forward(*given, **named)

    plain = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    spelled = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in extra]
    spelled_out.__signature__ = signature.replace(parameters=[*plain, *spelled])  # type: ignore[attr-defined]
    module.__dict__["forward"] = spelled_out
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


def _bundled(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    bundle = next((p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD), None)
    if bundle is None:
        return ()
    try:
        return tuple(signature.bind(*args, **kwargs).arguments.get(bundle, {}))
    except TypeError:
        return ()
