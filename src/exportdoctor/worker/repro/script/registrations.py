"""Code that registers with pytree the copies of classes that were registered when the call was captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exportdoctor.targets.held_state import attributes_of
from exportdoctor.torch_internals.pytree_registry import flatten_once, node_kind
from exportdoctor.worker.repro.script.script_builder import ScriptBuilder

_DEPTH = 6
_CODE = """def children_of_{name}(one):
    return [{children}]
torch.utils._pytree.register_pytree_node(
    {name}, lambda one: (children_of_{name}(one), None), lambda children, _: {build},
    flatten_with_keys_fn=lambda one: (
        [(torch.utils._pytree.SequenceKey(i), child) for i, child in enumerate(children_of_{name}(one))], None
    ),
)"""


def write_registrations(script: ScriptBuilder, inputs: Any) -> Iterator[str]:
    """A statement for each class that is registered now and that importing torch does not register. Raises
    LookupError."""
    done: dict[type, int] = {}
    for value in _find_registered(inputs):
        if type(value).__module__.partition(".")[0] == "torch":
            continue
        children = flatten_once(value)[0]
        if done.setdefault(type(value), len(children)) != len(children):
            raise LookupError(f"{type(value).__qualname__} objects of several lengths")
    for kind in done:
        value = next(one for one in _find_registered(inputs) if type(one) is kind)
        children = flatten_once(value)[0]
        build = script.value_code(value, known={id(child): f"children[{i}]" for i, child in enumerate(children)})
        name = build.partition("(")[0]
        paths = ", ".join(f"one{_path(value, child)}" for child in children)
        yield _CODE.format(name=name, children=paths, build=build)


def _find_registered(value: Any) -> Iterator[Any]:
    """The objects of registered classes, those within others first."""
    kind = node_kind(value)
    if kind == "leaf":
        return
    for child in flatten_once(value)[0]:
        yield from _find_registered(child)
    if kind == "registered":
        yield value


def _path(holder: Any, wanted: Any) -> str:
    """How `wanted` is reached from `holder`, as code. Raises LookupError."""
    level: list[tuple[str, Any]] = [("", holder)]
    for _ in range(_DEPTH):
        level = [(path + step, inner) for path, one in level for step, inner in _steps(one)]
        for path, one in level:
            if one is wanted:
                return path
    raise LookupError(f"what a {type(holder).__qualname__} is taken apart into is not held by it")


def _steps(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        yield from ((f"[{place}]", one) for place, one in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", one) for key, one in value.items())
    elif hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] != "torch":
        yield from ((f".{name}", one) for name, one in attributes_of(value).items())
