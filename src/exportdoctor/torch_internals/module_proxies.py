"""Modules under a trace: where a model has one module at two places, a non-strict export hands its code proxies.

Such a proxy is an object of another class, a subclass of the module's, and shares the module's attribute dictionary.
"""

from __future__ import annotations

from typing import Any

_TRACER = "torch.fx.experimental.proxy_tensor"
"""The file of torch that makes the proxies."""


def state_id(module: Any) -> int:
    """Names a module by its attribute dictionary, which a proxy of it has, too."""
    return id(vars(module))


def is_same_module(value: Any, module: Any) -> bool:
    """Whether a value is this module, or a proxy of it."""
    return getattr(value, "__dict__", None) is vars(module)


def original_module(module: Any) -> Any:
    """The module that a proxy stands for; another module itself."""
    get_base: Any = getattr(type(module), "get_base", None)
    return get_base(module) if getattr(get_base, "__module__", "") == _TRACER else module
