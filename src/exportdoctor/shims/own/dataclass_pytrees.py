"""Dataclasses and plain holders of tensors as pytree nodes: what a module takes and returns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.pytrees import is_registered, register, registries_restored
from exportdoctor.shims.record import NotApplicable, Replacement, Shim


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = _unregistered((call.args, call.kwargs)) | _unregistered(_outputs(call))
    if not found:
        raise NotApplicable("no dataclass without a registration goes in or out")
    with registries_restored():
        for kind in found:
            register_fields(kind)
        yield call


def register_fields(kind: type[Any]) -> None:
    """A dataclass as the list of its fields; it is put together without its `__init__`."""
    names = [field.name for field in dataclasses.fields(kind)]

    def build(values: list[Any]) -> Any:
        made = object.__new__(kind)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)
        return made

    register(kind, lambda value: [getattr(value, name) for name in names], build)


def _outputs(call: ExportCall) -> Any:
    import torch

    args, kwargs = copy.deepcopy((call.args, call.kwargs))
    with torch.no_grad():
        return call.module(*args, **kwargs)


def _unregistered(value: Any) -> set[type[Any]]:
    from torch.utils._pytree import tree_leaves

    found: set[type[Any]] = set()
    for leaf in tree_leaves(value):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and not is_registered(type(leaf)):
            found |= {type(leaf)} | _unregistered([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
    return found


SHIM = Shim(
    id="register-dataclass-pytree",
    title="Dataclasses that go in or out are registered as pytree nodes",
    soundness="exact",
    enter=_enter,
    does=(
        "The module runs once in eager. Each dataclass among its inputs and outputs that torch cannot take apart is "
        "registered for the export, as the list of its fields, and unregistered after it."
    ),
    cures=(Cure(kinds=("unregistered_pytree",)),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#torch.export.register_dataclass",
    retire="torch.export takes dataclasses apart by itself",
    rank=20,
    replaces=(
        Replacement(target="torch.utils._pytree.SUPPORTED_NODES", after="torch.export.register_dataclass(Output)\n"),
    ),
)
