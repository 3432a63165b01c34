"""The forward of one module, in place of which another runs for a while."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.module_proxies import is_same_module

Forward = Callable[..., Any]
"""A forward without `self`."""


def patch_root_forward(module: Any, wrap: Callable[[Forward], Forward]) -> AbstractContextManager[None]:
    """Within it, what `wrap` makes of the module's forward runs in its place, also for a proxy of the module.

    That of its class is wrapped, for this module alone, or the one that the instance has of its own, as hooks of
    accelerate give it. A `__signature__` that `wrap` sets is the forward's.
    """
    own = vars(module).get("forward")
    if own is not None:
        made = wrap(own)
        return patch_attribute(module, "forward", _with_signature(functools.wraps(own)(_call(made)), made))
    plain = type(module).forward

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_same_module(self, module):
            return plain(self, *args, **kwargs)
        return wrap(MethodType(plain, self))(*args, **kwargs)

    first = next(iter(inspect.signature(plain).parameters.values()))
    made = _with_signature(forward, wrap(MethodType(plain, module)), first)
    return patch_attribute(type(module), "forward", made)


def _call(made: Forward) -> Forward:
    return lambda *args, **kwargs: made(*args, **kwargs)


def _with_signature(forward: Forward, made: Forward, *before: inspect.Parameter) -> Forward:
    """`forward` with the signature that was set on `made`, and these parameters before it."""
    signature = getattr(made, "__signature__", None)
    if signature is not None:
        forward.__signature__ = signature.replace(parameters=[*before, *signature.parameters.values()])  # type: ignore[attr-defined]
    return forward
