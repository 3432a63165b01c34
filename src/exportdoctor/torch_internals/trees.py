"""Nested containers of tensors, taken apart and put together as torch.export does it: pytree has no public name.

The classes that pytree takes apart are in pytree_registry.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from exportdoctor.torch_internals.hook import Hook


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves, in order."""
    from torch.utils import _pytree

    return _pytree.tree_leaves(tree)


def tree_flatten(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """The leaves, and the layout from which `tree_unflatten` makes the containers again."""
    from torch.utils import _pytree

    return _pytree.tree_flatten(tree, is_leaf=is_leaf)


def tree_unflatten(leaves: Iterable[Any], layout: Any) -> Any:
    """The containers of that layout, with these leaves."""
    from torch.utils import _pytree

    return _pytree.tree_unflatten(leaves, layout)


def tree_map(change: Callable[[Any], Any], tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The same containers, with each leaf changed. What `is_leaf` is true of counts as a leaf."""
    from torch.utils import _pytree

    return _pytree.tree_map(change, tree, is_leaf=is_leaf)


def tree_map_only(kind: type[Any], change: Callable[[Any], Any], tree: Any) -> Any:
    """The same containers, with each leaf of that class changed."""
    from torch.utils import _pytree

    return _pytree.tree_map_only(kind, change, tree)


def leaves_with_paths(tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The leaves, each after its path: one key for each container, as `path_text` takes them.

    Of a class that was registered without keys (transformers 4.57 does so with its outputs) they are the names in its
    context if that lists as many, else numbers.
    """
    from torch.utils import _pytree

    try:
        return _pytree.tree_flatten_with_path(tree)[0]
    except ValueError:
        leaves, spec = _pytree.tree_flatten(tree)
        return list(zip(_paths(spec), leaves, strict=True))


def _paths(spec: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    from torch.utils._pytree import MappingKey, SequenceKey

    if spec.is_leaf():
        yield before
        return
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    named = isinstance(spec.context, list | tuple) and len(spec.context) == len(children)
    for index, child in enumerate(children):
        name = spec.context[index] if named and isinstance(spec.context[index], str | int) else None
        yield from _paths(child, (*before, SequenceKey(index) if name is None else MappingKey(name)))


def path_text(path: tuple[Any, ...]) -> str:
    """A path as an expression has it: `[0]['mask']`."""
    from torch.utils import _pytree

    return _pytree.keystr(path)


def place_of(key: Any) -> int:
    """The index for which a key of a list or tuple stands."""
    return int(key.idx)


def _has_trees() -> bool:
    from torch.utils import _pytree

    names = (
        "tree_leaves", "tree_flatten", "tree_unflatten", "tree_map", "tree_map_only", "tree_flatten_with_path", "keystr"
    )  # fmt: skip
    return all(callable(getattr(_pytree, name)) for name in names) and _pytree.SequenceKey(idx=1).idx == 1


TREES = Hook(
    id="pytree-functions",
    api="torch.utils._pytree.{tree_leaves, tree_flatten, tree_unflatten, tree_map, tree_map_only, "
    "tree_flatten_with_path, keystr, SequenceKey.idx}",
    used_for="the tensors among the inputs and outputs of a module",
    lost="no scans",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_trees,
    essential=True,
)

HOOKS = (TREES,)
