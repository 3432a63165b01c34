"""Dataclasses and plain holders of tensors as pytree nodes: what a module takes and returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from exportdoctor.core.patch_attribute import set_on_object
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import run_copy
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.targets.eager import copy_inputs
from exportdoctor.targets.held_state import attributes_of
from exportdoctor.torch_internals.pytree_registry import is_registered, register_node, temporary_registrations
from exportdoctor.torch_internals.trees import tree_leaves


def _enter(*, fixed: bool) -> Any:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        import torch

        objects = _objects((call.args, call.kwargs))
        if any(_holds_numbers(one) for one in objects) != fixed:
            raise NotApplicable(
                "the input objects hold tensors only" if fixed else "an input object holds a number, a flag or a text"
            )
        with torch.no_grad():
            kinds = dict.fromkeys(map(type, [*objects, *_objects(run_copy(call))]))
        if not kinds:
            raise NotApplicable("all inputs and outputs have registered types")
        if objects:
            check_changes_returned(call, _objects)

        def register_found() -> None:
            for kind in kinds:
                register_attributes(kind)

        with temporary_registrations(register_found):
            yield call

    return enter


def register_attributes(kind: type[Any]) -> None:
    """A class as the list of its objects' attributes, all of them; an object is put together without `__init__`."""

    def build(values: list[Any], names: tuple[str, ...]) -> Any:
        made = object.__new__(kind)
        for name, value in zip(names, values, strict=True):
            set_on_object(made, name, value)
        return made

    register_node(kind, lambda value: [getattr(value, name) for name in attributes(value)], build, context=attributes)


def attributes(value: Any) -> tuple[str, ...]:
    """The names of an object's attributes that are set: a dataclass's fields, then those of its slots and its dict."""
    names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    names = [name for name in names if name not in ("__dict__", "__weakref__") and hasattr(value, name)]
    return tuple(dict.fromkeys([*names, *attributes_of(value)]))


def check_changes_returned(call: ExportCall, objects: Callable[[Any], list[Any]]) -> None:
    """Raises NotApplicable where forward changes one of the `objects` among its inputs and does not return it: the
    program would drop the change."""
    import torch

    args, kwargs = copy_inputs((call.args, call.kwargs))
    given = objects((args, kwargs))
    before = [_contents(one) for one in given]
    with torch.no_grad():
        answer = run_copy(call, (args, kwargs))
    returned = {id(one) for leaf in tree_leaves(answer) for one in objects([leaf])}
    for one, old in zip(given, before, strict=True):
        new = _contents(one)
        same = len(old) == len(new) and all(map(_is_same, old, new))
        if not same and id(one) not in returned:
            raise NotApplicable(f"forward changes the {type(one).__name__} among its inputs and does not return it")


def find_numbered(call: ExportCall) -> str:
    """The class of an object among the inputs that holds numbers and is not of transformers, of whose caches
    `counts_tokens` tells that; empty where there is none."""
    found = (type(one) for one in _objects((call.args, call.kwargs)) if _holds_numbers(one))
    return next((kind.__name__ for kind in found if not kind.__module__.startswith("transformers.")), "")


def _contents(value: Any) -> list[Any]:
    """The leaves of an object, as deep as there are attributes. A tensor written into is the same: programs do that."""
    found = []
    for leaf in tree_leaves([getattr(value, name) for name in attributes(value)]):
        inner = not isinstance(leaf, _plain_kinds()) and hasattr(leaf, "__dict__")
        found += _contents(leaf) if inner else [leaf]
    return found


def _plain_kinds() -> tuple[type[Any], ...]:
    import torch

    return (torch.Tensor, torch.nn.Module, type, FunctionType)


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, int | float | str) and type(one) is type(other) and one == other)


def _objects(value: Any) -> list[Any]:
    """The objects that torch cannot take apart, with those in their attributes."""
    found = []
    for leaf in tree_leaves(value):
        if not is_registered(type(leaf)) and _holds_tensors(leaf):
            found += [leaf, *_objects([getattr(leaf, name) for name in attributes(leaf)])]
    return found


def _holds_tensors(leaf: Any) -> bool:
    """Whether it is an object of the user's that holds tensors, or a dataclass."""
    import torch

    if isinstance(leaf, _plain_kinds()):
        return False
    values = tree_leaves([getattr(leaf, name) for name in attributes(leaf)])
    return dataclasses.is_dataclass(leaf) or any(isinstance(one, torch.Tensor) for one in values)


def _holds_numbers(value: Any) -> bool:
    return any(
        isinstance(leaf, int | float | str) for leaf in tree_leaves([getattr(value, n) for n in attributes(value)])
    )


SHIM = Shim(
    id="register-dataclass-pytree",
    title="Registers dataclasses and objects with tensors among inputs and outputs as pytree nodes",
    soundness="exact",
    enter=_enter(fixed=False),
    does=(
        "The module runs once in eager. Each unregistered dataclass among its inputs and outputs, and "
        "each other object that holds tensors, is registered for the export as the list of all its "
        "attributes, and unregistered afterwards. Where eager changes an input object and returns it, the program "
        "returns a new one; refused where eager does not return it, because the program would drop the change."
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

FIXED = dataclasses.replace(
    SHIM,
    id="register-dataclass-pytree-fixed",
    title="Registers input objects that hold numbers, flags or texts as pytree nodes, and fixes those",
    soundness="specialised",
    enter=_enter(fixed=True),
    does=(
        "As register-dataclass-pytree, for objects among the inputs that hold numbers, flags or texts beside tensors. "
        "Those become constants, and the program refuses others."
    ),
    precondition="the numbers, flags and texts in the input objects equal the example's",
    rank=25,
    conflicts=("register-dataclass-pytree",),
)
