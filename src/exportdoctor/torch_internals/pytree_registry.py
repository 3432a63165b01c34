"""The tables in which torch keeps the classes that pytree takes apart, and the order of a program's inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

from exportdoctor.torch_internals.hook import Hook

_ABSENT = object()


def pytree_registries() -> tuple[dict[Any, Any], ...]:
    """Every table that a registration writes to: by class, by name for saved programs, and torch.fx's two."""
    import torch.fx._pytree as fx_pytree
    from torch.utils import _pytree as pytree

    return (
        pytree.SUPPORTED_NODES,
        pytree.SUPPORTED_SERIALIZED_TYPES,
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE,
        fx_pytree.SUPPORTED_NODES,
        fx_pytree.SUPPORTED_NODES_EXACT_MATCH,
    )


@contextmanager
def temporary_registrations(register_nodes: Callable[[], object]) -> Iterator[None]:
    """Calls `register_nodes`; on exit, torch's registries hold again what they held for the classes it registered.

    Classes that the body registers, by importing a module for example, stay registered.
    """
    before = [dict(registry) for registry in pytree_registries()]
    keys: list[set[Any]] | None = None
    try:
        register_nodes()
        keys = _changed_keys(before)
        yield
    finally:
        _restore(before, _changed_keys(before) if keys is None else keys)


def _changed_keys(before: list[dict[Any, Any]]) -> list[set[Any]]:
    """For each registry, the keys whose values are not those of `before`."""
    return [
        {key for key in {*old, *registry} if registry.get(key, _ABSENT) is not old.get(key, _ABSENT)}
        for registry, old in zip(pytree_registries(), before, strict=True)
    ]


def _restore(before: list[dict[Any, Any]], keys: list[set[Any]]) -> None:
    _unregister_in_optree([kind for kind in keys[0] if kind not in before[0]])
    for registry, old, changed in zip(pytree_registries(), before, keys, strict=True):
        for key in changed:
            registry.pop(key, None)
            if key in old:
                registry[key] = old[key]


def _unregister_in_optree(kinds: list[type[Any]]) -> None:
    """Where optree is installed, torch keeps a second table there, or fills it once optree is imported."""
    from torch.utils import _pytree as pytree

    pytree._cxx_pytree_pending_imports[:] = [
        (arguments, options) for arguments, options in pytree._cxx_pytree_pending_imports if arguments[0] not in kinds
    ]
    optree = sys.modules.get("optree")
    for kind in kinds if optree is not None else ():
        try:
            optree.unregister_pytree_node(kind, namespace="torch")  # type: ignore[union-attr]
        except ValueError:
            continue  # it never got there


def register_node(
    kind: type[Any],
    children: Callable[[Any], list[Any]],
    build: Callable[..., Any],
    *,
    context: Callable[[Any], Any] | None = None,
    names: Callable[[Any], Iterable[str]] | None = None,
) -> None:
    """Make `kind` a node: `children` takes it apart, `build` puts it together. An earlier registration is replaced.
    `names` are those of the attributes that the children are; without, or where it gives none, they are numbered.

    `context` is what else an object is, as nested tuples of plain values; `build` then gets it after the children. A
    program refuses an input of another context than its example's.
    """
    import torch.fx._pytree as fx_pytree
    from torch.utils import _pytree as pytree

    def of(value: Any) -> Any:
        return None if context is None else context(value)

    def keys_of(value: Any) -> list[Any]:
        named = [pytree.GetAttrKey(one) for one in names(value)] if names is not None else []
        return named or [pytree.SequenceKey(place) for place, _ in enumerate(children(value))]

    name = f"{kind.__module__}.{kind.__qualname__}"
    for registry in (pytree.SUPPORTED_NODES, pytree.SUPPORTED_SERIALIZED_TYPES):
        registry.pop(kind, None)
    pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(name, None)
    pytree._private_register_pytree_node(
        kind,
        lambda value: (children(value), of(value)),
        lambda values, known: build(list(values)) if context is None else build(list(values), known),
        serialized_type_name=name,
        to_dumpable_context=lambda known: known,
        from_dumpable_context=_as_tuples,
        flatten_with_keys_fn=lambda value: (list(zip(keys_of(value), children(value), strict=True)), of(value)),
    )
    fx_pytree.register_pytree_flatten_spec(kind, lambda value, _: children(value))


def registered_classes() -> frozenset[type[Any]]:
    """The classes that torch takes apart now."""
    from torch.utils import _pytree as pytree

    return frozenset(pytree.SUPPORTED_NODES)


def names_registered_in(context: AbstractContextManager[Any]) -> tuple[str, ...]:
    """The names of the classes that are registered within the context alone."""
    before = registered_classes()
    with context:
        return tuple(sorted(kind.__name__ for kind in registered_classes() - before))


def _as_tuples(value: Any) -> Any:
    """What JSON made lists of."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def is_registered(kind: type[Any]) -> bool:
    """Whether torch takes values of `kind` apart."""
    from torch.utils import _pytree as pytree

    return kind in pytree.SUPPORTED_NODES


def classes_without_keys() -> tuple[type[Any], ...]:
    """The registered classes for whose children there are no names: a path to what is in one cannot be told."""
    from torch.utils import _pytree as pytree

    return tuple(kind for kind, node in pytree.SUPPORTED_NODES.items() if node.flatten_with_keys_fn is None)


def add_keys(kind: type[Any]) -> None:
    """Name the children of a registered class by their places; nothing else of its registration changes."""
    from torch.utils import _pytree as pytree

    node = pytree.SUPPORTED_NODES[kind]

    def with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, context = node.flatten_fn(value)
        return [(pytree.SequenceKey(place), child) for place, child in enumerate(children)], context

    pytree.SUPPORTED_NODES[kind] = node._replace(flatten_with_keys_fn=with_keys)


def node_kind(value: Any) -> Literal["builtin", "registered", "leaf"]:
    """What pytree takes the value for: one of Python's containers, a registered class, or a leaf."""
    from torch.utils import _pytree as pytree

    kind = pytree._get_node_type(value)
    if kind in pytree.BUILTIN_TYPES:
        return "builtin"
    return "registered" if kind in pytree.SUPPORTED_NODES else "leaf"


def is_builtin_class(kind: Any) -> bool:
    """Whether pytree knows the class without a registration."""
    from torch.utils import _pytree as pytree

    return kind in pytree.BUILTIN_TYPES


def flatten_once(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The children of a value that is no leaf, and what makes such a value of other children, whatever these are.

    The constructor of a named tuple may refuse what are no tensors, as that of PackedSequence does.
    """
    from torch.utils import _pytree as pytree

    kind = pytree._get_node_type(value)
    node = pytree.SUPPORTED_NODES[kind]
    children, context = node.flatten_fn(value)
    if isinstance(value, tuple) and kind in pytree.BUILTIN_TYPES:
        return list(children), partial(tuple.__new__, type(value))
    return list(children), lambda others: node.unflatten_fn(others, context)


def shapes_of_children(value: Any, shapes: list[Any]) -> Any:
    """What `dynamic_shapes` has for a value whose children have these: a container of its type, or, for a registered
    class, one like that in which it is flattened."""
    from torch.utils import _pytree as pytree

    kind = pytree._get_node_type(value)
    if kind in pytree.BUILTIN_TYPES:
        return flatten_once(value)[1](shapes)
    children, _ = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
    return tuple(shapes) if isinstance(children, tuple) else shapes


def _has_registries() -> bool:
    from torch.utils import _pytree as pytree

    names = ("_get_node_type", "BUILTIN_TYPES", "_private_register_pytree_node", "_cxx_pytree_pending_imports")
    are_there = len(pytree_registries()) == 5 and all(hasattr(pytree, name) for name in names)
    return are_there and "flatten_with_keys_fn" in getattr(pytree.SUPPORTED_NODES.get(list), "_fields", ())


REGISTRIES = Hook(
    id="pytree-registries",
    api="torch.utils._pytree.{SUPPORTED_NODES, SUPPORTED_SERIALIZED_TYPES, SERIALIZED_TYPE_TO_PYTHON_TYPE, "
    "BUILTIN_TYPES, _get_node_type, _private_register_pytree_node, _cxx_pytree_pending_imports}, torch.fx._pytree",
    used_for="the dynamic shapes of nested inputs, and shims that register a class for one attempt",
    lost="no scans of models with caches",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_registries,
    essential=True,
)


def inputs_in_traced_order(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Every leaf of a call of an exported program, in the order in which it was traced."""
    from torch.export._tree_utils import reorder_kwargs
    from torch.utils import _pytree as pytree

    return pytree.tree_flatten((args, reorder_kwargs(kwargs, program.call_spec.in_spec)))[0]


def _has_reorder() -> bool:
    from torch.export._tree_utils import reorder_kwargs

    return callable(reorder_kwargs)


TRACED_ORDER = Hook(
    id="traced-order",
    api="torch.export._tree_utils.reorder_kwargs",
    used_for="the inputs of an ONNX file, in its order",
    lost="no ONNX file is run or compared with eager",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_reorder,
)

HOOKS = (REGISTRIES, TRACED_ORDER)
