"""Checks what a factory returned; each kind of mistake has an error message of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.torch_internals.trees import tree_leaves

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.targets.built import Inputs

_EXPECTED = "Return (module, args[, kwargs[, dynamic_shapes]]) or a dict with module, args, kwargs, "
_EXPECTED += "dynamic_shapes, more_inputs"
_KEYS = ("module", "args", "kwargs", "dynamic_shapes", "more_inputs")
_LONGEST = 4
_SHAPES_GO = "Give it as dynamic_shapes, which come after kwargs: (module, args, {}, dynamic_shapes)"


@dataclass(frozen=True, kw_only=True)
class FactoryAnswer:
    """A module, one input set, and optionally which sizes are dynamic and further input sets."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any]
    dynamic_shapes: Any = None
    more_inputs: tuple[Inputs, ...] = ()


def check_answer(answer: Any, *, name: str) -> FactoryAnswer:
    """The answer in one form. Raises `TargetError`, which names what was found instead."""
    given = _by_key(answer, name)
    module, args, kwargs = given["module"], given.get("args", ()), given.get("kwargs")
    _check_module(module, name)
    for key in ("args", "kwargs"):
        _refuse_dims(given.get(key), f"{name}: {key}")
    return FactoryAnswer(
        module=module,
        args=_check_args(args, f"{name}: args"),
        kwargs=_check_kwargs(kwargs, f"{name}: kwargs"),
        dynamic_shapes=_check_shapes(given.get("dynamic_shapes"), name),
        more_inputs=_check_more(given.get("more_inputs"), name),
    )


def check_call(module: Any, args: Any, kwargs: Any) -> None:
    """Raise UsageError for what is given in Python in place of a module and its arguments."""
    from torch import nn

    if isinstance(module, type):
        raise UsageError(f"{module.__name__} is a class", hint="Give an instance of it")
    if not isinstance(module, nn.Module):
        raise UsageError(f"What is to be exported is {_kind(module)}", hint="Give a torch.nn.Module and its arguments")
    if not isinstance(args, Sequence):
        raise UsageError(f"The arguments are {_kind(args)}", hint="Give a tuple, as in (x,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UsageError(f"The keyword arguments are {_kind(kwargs)}", hint="Give a dict from names to values")


def _by_key(answer: Any, name: str) -> Mapping[str, Any]:
    if isinstance(answer, Mapping):
        unknown = [str(key) for key in answer if key not in _KEYS]
        if unknown or "module" not in answer:
            what = f"unknown keys {', '.join(unknown)}" if unknown else "no module"
            raise TargetError(f"{name} returned a dict with {what}", hint=_EXPECTED)
        return answer
    if isinstance(answer, tuple | list) and 1 <= len(answer) <= _LONGEST:
        return dict(zip(_KEYS, answer, strict=False))
    if isinstance(answer, type):
        raise TargetError(f"{name} returned the class {answer.__name__}", hint="Return an instance of it, with inputs")
    found = f"{len(answer)} values" if isinstance(answer, tuple | list) else _kind(answer)
    raise TargetError(f"{name} returned {found}", hint=_hint_for(answer))


def _hint_for(answer: Any) -> str:
    """What to write in place of an answer that has no form of the expected ones."""
    if inspect.iscoroutine(answer):
        answer.close()  # nobody will await it
        return "Write the factory with def, not async def"
    return "Write return in the factory, not yield" if inspect.isgenerator(answer) else _EXPECTED


def _check_module(module: Any, name: str) -> None:
    from torch import nn

    if isinstance(module, nn.Module):
        _check_overridden_methods(module)
        return
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise TargetError(f"{name} returned the class {module.__name__}", hint="Return an instance of it")
    raise TargetError(f"{name} returned {_kind(module)} instead of a module", hint=_EXPECTED)


def _check_overridden_methods(module: nn.Module) -> None:
    """Raise TypeError where named_modules(), parameters() or buffers(), if it overrides them, give what is no module or
    tensor."""
    import torch
    from torch import nn

    if not all(isinstance(child, nn.Module) for _, child in module.named_modules()):
        raise TypeError("named_modules() gives what is no module")
    for tensor in (*module.parameters(), *module.buffers()):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"parameters() or buffers() give {_kind(tensor)}")


def _refuse_dims(inputs: Any, what: str) -> None:
    """Raise where inputs hold what says that a size is dynamic: a `Dim`, `Dim.AUTO`, a collection of shapes."""
    found = next(_dims_in(inputs), None)
    if found is not None:
        shown = _kind(found) if " at 0x" in repr(found) else repr(found)
        raise TargetError(f"{what} hold {shown} of torch.export, which is no input", hint=_SHAPES_GO)


def _dims_in(value: Any) -> Iterator[Any]:
    """What torch.export's dynamic_shapes are made of, in nested tuples, lists and dicts."""
    if isinstance(value, Mapping | tuple | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _dims_in(one)
    elif type(value).__module__ == "torch.export.dynamic_shapes":
        yield value


def _check_args(args: Any, what: str) -> tuple[Any, ...]:
    if isinstance(args, tuple | list):
        return tuple(args)
    hint = "Give a tuple, as in (x,)"
    if isinstance(args, Mapping):
        hint = "Give a tuple, as in (x,); a dict of inputs comes after it: (module, (), {...})"
    raise TargetError(f"{what} are {_kind(args)}", hint="Give an empty tuple" if args is None else hint)


def _check_kwargs(kwargs: Any, what: str) -> dict[str, Any]:
    if kwargs is None:
        return {}
    if isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs):
        return dict(kwargs)
    raise TargetError(f"{what} are {_kind(kwargs)}", hint="Give a dict from names to values")


def _check_shapes(shapes: Any, name: str) -> Any:
    import torch

    if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(shapes)):
        hint = "Give further inputs as more_inputs, in a dict with module, args, kwargs, dynamic_shapes, more_inputs"
        raise TargetError(f"{name}: dynamic_shapes hold a tensor", hint=hint)
    if shapes is None or isinstance(shapes, dict | tuple | list) or hasattr(shapes, "dynamic_shapes"):
        return shapes
    raise TargetError(f"{name}: dynamic_shapes are {_kind(shapes)}", hint="Give what torch.export.export takes")


def _check_more(more: Any, name: str) -> tuple[Inputs, ...]:
    if more is None:
        return ()
    if not isinstance(more, tuple | list):
        raise TargetError(f"{name}: more_inputs are {_kind(more)}", hint="Give a list of (args, kwargs)")
    return tuple(_one_input_set(item, f"{name}: more_inputs[{index}]") for index, item in enumerate(more))


def _one_input_set(item: Any, what: str) -> Inputs:
    """`(args, kwargs)`, or a dict of keyword arguments alone, or a tuple of positional ones alone."""
    if isinstance(item, Mapping):
        return (), _check_kwargs(item, what)
    is_pair = isinstance(item, tuple | list) and len(item) == 2
    if is_pair and isinstance(item[0], tuple | list) and isinstance(item[1], Mapping):
        return _check_args(item[0], what), _check_kwargs(item[1], what)
    return _check_args(item, what), {}


def _kind(value: Any) -> str:
    """`None`, `a Tensor`, `an int`: what the value is, in a sentence."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
