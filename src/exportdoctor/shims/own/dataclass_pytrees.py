"""Dataclasses and plain holders of tensors as pytree nodes: what a module takes and returns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.torch_internals.pytree_registry import is_registered, register_node, temporary_registrations
from exportdoctor.torch_internals.trees import tree_leaves


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = _unregistered_classes((call.args, call.kwargs)) | _unregistered_classes(_outputs(call))
    if not found:
        raise NotApplicable("all inputs and outputs have registered types")

    def register_found() -> None:
        for kind, names in found.items():
            register_fields(kind, names)

    with temporary_registrations(register_found):
        yield call


def register_fields(kind: type[Any], names: Sequence[str]) -> None:
    """A class as the list of these attributes; an object is put together without its `__init__`."""

    def build(values: list[Any]) -> Any:
        made = object.__new__(kind)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)
        return made

    register_node(kind, lambda value: [getattr(value, name) for name in names], build)


def _outputs(call: ExportCall) -> Any:
    import torch

    args, kwargs = copy.deepcopy((call.args, call.kwargs))
    with torch.no_grad():
        return call.module(*args, **kwargs)


def _unregistered_classes(value: Any) -> dict[type[Any], tuple[str, ...]]:
    """Classes that torch cannot take apart, each with its attributes."""
    found: dict[type[Any], tuple[str, ...]] = {}
    for leaf in tree_leaves(value):
        names = () if is_registered(type(leaf)) else _attributes(leaf)
        if names:
            found |= {type(leaf): names} | _unregistered_classes([getattr(leaf, name) for name in names])
    return found


def _attributes(leaf: Any) -> tuple[str, ...]:
    """The fields of a dataclass; of a plain object its attributes, if some of them hold tensors."""
    import torch

    if isinstance(leaf, type | torch.Tensor | torch.nn.Module):
        return ()
    if dataclasses.is_dataclass(leaf):
        return tuple(field.name for field in dataclasses.fields(leaf))
    own = getattr(leaf, "__dict__", {})
    return tuple(own) if any(isinstance(one, torch.Tensor) for one in tree_leaves(list(own.values()))) else ()


SHIM = Shim(
    id="register-dataclass-pytree",
    title="Registers dataclasses and objects with tensors among inputs and outputs as pytree nodes",
    soundness="exact",
    enter=_enter,
    does=(
        "The module runs once in eager. Each unregistered dataclass among its inputs and outputs, and "
        "each other object that holds tensors, is registered for the export as the list of its "
        "attributes, and unregistered afterwards. Where eager changes an input object, the program "
        "returns a new one."
    ),
    cures=(Cure(kinds=("unregistered_pytree",)),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#torch.export.register_dataclass",
    retire="torch.export flattens dataclasses without registration",
    rank=20,
    replaces=(
        Replacement(target="torch.utils._pytree.SUPPORTED_NODES", after="torch.export.register_dataclass(Output)\n"),
    ),
)
