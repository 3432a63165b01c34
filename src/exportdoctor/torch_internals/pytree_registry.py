"""The tables in which torch keeps the classes that pytree takes apart, and the order of a program's inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from exportdoctor.torch_internals.hook import Hook


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
    """The children of a value that is no leaf, and what makes such a value of other children."""
    from torch.utils import _pytree as pytree

    node = pytree.SUPPORTED_NODES[pytree._get_node_type(value)]
    children, context = node.flatten_fn(value)
    return list(children), lambda others: node.unflatten_fn(others, context)


def _has_registries() -> bool:
    from torch.utils import _pytree as pytree

    names = ("_get_node_type", "BUILTIN_TYPES", "_private_register_pytree_node", "_cxx_pytree_pending_imports")
    return len(pytree_registries()) == 5 and all(hasattr(pytree, name) for name in names)


REGISTRIES = Hook(
    id="pytree-registries",
    api="torch.utils._pytree.{SUPPORTED_NODES, SUPPORTED_SERIALIZED_TYPES, SERIALIZED_TYPE_TO_PYTHON_TYPE, "
    "BUILTIN_TYPES, _get_node_type, _private_register_pytree_node, _cxx_pytree_pending_imports}, torch.fx._pytree",
    used_for="the dynamic shapes of nested inputs, and shims that register a class for one attempt",
    lost="no scans of models with caches",
    seen_on=("2.13.0",),
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
    seen_on=("2.13.0",),
    is_there=_has_reorder,
)

HOOKS = (REGISTRIES, TRACED_ORDER)
