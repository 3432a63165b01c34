"""What a model hands from one token to the next in classes of its own, as something that programs take and return.

A cache counts as the list of its tensors; what else it holds is the context of a pytree node, which must be the same
in every call.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from exportdoctor.core.errors import NoPartError
from exportdoctor.targets.eager import run_once
from exportdoctor.targets.parts.model_context import ModelContext, takes_input
from exportdoctor.torch_internals.pytree_registry import is_builtin_class, register_node, temporary_registrations

_DEEPEST = 8


class ModelState:
    """Takes states of one kind apart and puts them together. `config` is the one object that they may refer to."""

    def __init__(self, kind: type[Any], config: Any) -> None:
        self.kind, self._config = kind, config

    @contextmanager
    def as_node(self) -> Iterator[None]:
        """Its class as a pytree node, for tracing and for running the program; containers of Python are nodes."""
        if is_builtin_class(self.kind):
            yield
            return
        register = partial(register_node, self.kind, self.tensors, self.build, context=self.context)
        with temporary_registrations(register):
            yield

    def tensors(self, state: Any) -> list[Any]:
        """Its tensors in the order in which attributes and items hold them."""
        found: list[Any] = []
        self._describe(state, tensors=found)
        return found

    def context(self, state: Any) -> Any:
        """All of it but the values of its tensors, as nested tuples. Raises NoPartError for what these cannot hold."""
        return self._describe(state, tensors=[])

    def build(self, tensors: list[Any], context: Any) -> Any:
        """The state of these tensors; nothing is copied."""
        return self._make(context, iter(tensors))

    def _describe(self, value: Any, *, tensors: list[Any], depth: int = 0) -> Any:
        import torch

        if depth > _DEEPEST:
            raise _unknown(value)
        inside = partial(self._describe, tensors=tensors, depth=depth + 1)
        match value:
            case torch.Tensor() | torch.SymInt():
                tensors.append(value)
                return ("tensor",)
            case None | bool() | int() | float() | str():
                return ("value", value)
            case torch.dtype():
                return ("dtype", str(value).rpartition(".")[2])
            case torch.device():
                return ("device", str(value))
            case type():
                return ("class", _path(value))
            case list() | tuple() if type(value) in (list, tuple):
                return (type(value).__name__, *map(inside, value))
            case dict() if type(value) is dict:
                return ("dict", *((key, inside(one)) for key, one in value.items()))
            case _ if type(value) is type(self._config):  # a copy of the inputs has a copy of it
                return ("config",)
            case _ if isinstance(value, Mapping) or not hasattr(value, "__dict__") or _has_slots(type(value)):
                raise _unknown(value)
        return ("object", _path(type(value)), *((name, inside(one)) for name, one in vars(value).items()))

    def _make(self, context: Any, tensors: Iterator[Any]) -> Any:
        import torch

        what, *rest = context
        match what:
            case "tensor":
                return next(tensors)
            case "value":
                return rest[0]
            case "dtype":
                return getattr(torch, rest[0])
            case "device":
                return torch.device(rest[0])
            case "class":
                return _find(rest[0])
            case "list" | "tuple":
                made = [self._make(one, tensors) for one in rest]
                return made if what == "list" else tuple(made)
            case "dict":
                return {key: self._make(one, tensors) for key, one in rest}
            case "config":
                return self._config
        found = object.__new__(_find(rest[0]))
        vars(found).update((name, self._make(one, tensors)) for name, one in rest[1:])
        return found


def fill_state(subject: ModelContext, *, batch: int, length: int) -> tuple[str, Any] | None:
    """The state that a prompt leaves, and the input by which forward takes it; None where it returns none.

    It is the output that has the name of an input. Raises what the model raises.
    """
    import torch

    taken = prompt_inputs(subject, batch=batch, length=length)
    output = run_once(subject.model, ((), taken))
    for name in output if isinstance(output, Mapping) else ():
        state = ModelState(type(output[name]), subject.config)
        if name not in taken and takes_input(subject.model, name) and not isinstance(output[name], torch.Tensor):
            return (name, output[name]) if state.tensors(output[name]) else None
    return None


def prompt_inputs(subject: ModelContext, *, batch: int, length: int) -> dict[str, Any]:
    """A prompt, as far as forward takes it: `input_ids` and `attention_mask` (batch, length), and `use_cache`."""
    ids = subject.token_ids(batch, length)
    given = {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape), "use_cache": True}
    return {name: value for name, value in given.items() if takes_input(subject.model, name)}


def _unknown(value: Any) -> NoPartError:
    return NoPartError(f"The model's cache holds a {type(value).__name__}", hint="Scan another part")


def _has_slots(kind: type[Any]) -> bool:
    return any(vars(base).get("__slots__") for base in kind.__mro__)


def _path(kind: type[Any]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))
