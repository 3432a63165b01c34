"""Dataclasses and plain holders of tensors as pytree nodes: what a module takes and returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import run_copy
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.targets.eager import copy_inputs
from exportdoctor.targets.input_objects import attribute_names, build_object, fields_of, holds_tensors, is_plain_kind
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
    """A class as the list of its objects' attributes, of a dataclass without those that are None, as
    `torch.export.register_dataclass` has them; an object is put together without `__init__`."""

    def build(values: list[Any], names: tuple[str, ...]) -> Any:
        return build_object(kind, dict(zip(names, values, strict=True)))

    def names_of(one: Any) -> tuple[str, ...]:
        return tuple(fields_of(one))

    def keys_of(one: Any) -> tuple[str, ...]:
        """The names; none where one begins with another, which torch mistakes for it in the guards of a program."""
        names = names_of(one)
        return () if any(name != other and name.startswith(other) for name in names for other in names) else names

    register_node(kind, lambda one: [*fields_of(one).values()], build, context=names_of, names=keys_of)


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
    for leaf in tree_leaves([getattr(value, name) for name in attribute_names(value)]):
        inner = not is_plain_kind(leaf) and hasattr(leaf, "__dict__")
        found += _contents(leaf) if inner else [leaf]
    return found


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, int | float | str) and type(one) is type(other) and one == other)


def _objects(value: Any) -> list[Any]:
    """The objects that torch cannot take apart, with those in their attributes."""
    found = []
    for leaf in tree_leaves(value):
        if not is_registered(type(leaf)) and holds_tensors(leaf):
            found += [leaf, *_objects([getattr(leaf, name) for name in attribute_names(leaf)])]
    return found


def _holds_numbers(value: Any) -> bool:
    return any(
        isinstance(leaf, int | float | str) for leaf in tree_leaves([getattr(value, n) for n in attribute_names(value)])
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
