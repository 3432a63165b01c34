"""transformers' switch for the implementation of a mixture's experts. Before 5.0 there was none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def experts_implementation(model: nn.Module) -> str | None:
    """The implementation of the model's experts, None if it has no choice."""
    if not hasattr(model, "set_experts_implementation"):
        return None
    found = [getattr(module.config, "_experts_implementation", None) for module in _with_switch(model)]
    return next((name for name in found if name), None)


def other_experts_implementations(model: nn.Module) -> list[str]:
    """The other implementations that transformers has registered."""
    now = experts_implementation(model)
    if now is None:
        return []
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    names = ["batched_mm", *(name for name in ALL_EXPERTS_FUNCTIONS.valid_keys() if name != "batched_mm"), "eager"]
    return [
        name for name in dict.fromkeys(names) if name != now and name in (*ALL_EXPERTS_FUNCTIONS.valid_keys(), "eager")
    ]


def set_experts_implementation(model: Any, name: str) -> None:
    """Use this implementation in the whole model, which may have no such switch itself."""
    for module in _with_switch(model):
        module.set_experts_implementation(name)


def _with_switch(model: nn.Module) -> list[Any]:
    switches = ((module, getattr(module, "_can_set_experts_implementation", None)) for module in model.modules())
    return [module for module, can_set in switches if callable(can_set) and can_set()]
