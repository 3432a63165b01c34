"""Small integer inputs as constants of the program: what follows from them alone is computed, and never traced.

Tensors that follow from constants stay real ones, so that their values can be read, looped over and split by. Where one
meets a traced tensor, a constant of the graph takes its place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Named, named_inputs, shapes_by_name
from exportdoctor.shims.known_tensors import draws_at_random, writes_to_first
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.targets.sizes.dynamic_shapes import is_dynamic
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import outside_all_modes
from exportdoctor.torch_internals.trees import tree_leaves, tree_map

_LARGEST = 64
_ROW = (2, 3, 4)
"""What may be a constant: a number, a list of at most so many, or rows as a grid has them. A short text is neither."""

_FACTORIES = ("arange", "tensor", "zeros", "ones", "full")


class KnownValues:
    """Real tensors that follow from constants alone, and the constants of the graph that stand for them, by id."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.known: dict[int, Any] = {id(value): value for value in inputs.values()}
        self.traced: dict[int, Any] = {}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of `func`: computed for real if it follows from known values alone, else traced."""
        import torch

        if not self._is_constant(func, tree_leaves((args, kwargs))):
            traced_args, traced_kwargs = tree_map(self.constant, (args, kwargs))
            if writes_to_first(func):
                self.known.pop(id(args[0]), None)  # from here on its values are those of the traced tensor
            return func(*traced_args, **traced_kwargs)
        with outside_all_modes():
            made = func(*args, **kwargs)
        self.known.update((id(value), value) for value in tree_leaves(made) if isinstance(value, torch.Tensor))
        return made

    def _is_constant(self, func: Any, leaves: list[Any]) -> bool:
        import torch

        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return (
            all(id(tensor) in self.known for tensor in tensors)
            and (bool(tensors) or func in {getattr(torch, factory) for factory in _FACTORIES})
            and not any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves)
            and not draws_at_random(func)
        )

    def constant(self, value: Any) -> Any:
        """A known tensor as a constant of the graph; anything else as it is."""
        import torch

        if id(value) in self.traced:
            return self.traced[id(value)]
        if id(value) not in self.known or not isinstance(value, torch.Tensor):
            return value
        with outside_all_modes():
            literal, dtype, device, shape = value.tolist(), value.dtype, value.device, value.shape
        self.traced[id(value)] = torch.tensor(literal, dtype=dtype, device=device).reshape(shape)
        return self.traced[id(value)]


def propagate_constants(values: KnownValues) -> Any:
    """A context in which everything computed from known values alone is computed for real."""
    from torch.overrides import TorchFunctionMode

    class ConstantPropagationMode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return values.call(func, args, kwargs or {})

    return ConstantPropagationMode()


def _with_constants(constants: dict[str, Any], forward: Forward) -> Forward:
    """A forward that takes the other inputs and fills in `constants`."""
    signature = inspect.signature(forward)

    def with_constants(*args: Any, **kwargs: Any) -> Any:
        values = KnownValues(constants)
        with propagate_constants(values):
            return tree_map(values.constant, forward(*args, **constants, **kwargs))

    left = [parameter for name, parameter in signature.parameters.items() if name not in constants]
    keywords = [p if p.kind is p.VAR_KEYWORD else _by_keyword(p) for p in left]
    with_constants.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
    return with_constants


def _by_keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    shapes, signature = shapes_by_name(call) or {}, inspect.signature(call.module.forward)
    constants = {
        name: value.clone()
        for name, value in call.named.items()
        if isinstance(value, torch.Tensor) and _is_small_integer(value) and not _is_open(shapes.get(name))
        and _is_wanted(call, name)
    }  # fmt: skip
    if not constants:
        raise NotApplicable("there is no small integer input with fixed sizes")
    same = tuple(
        inputs for inputs in call.more_inputs if not _changed_inputs(named_inputs(signature, inputs), constants)
    )
    changed = replace(call, more_inputs=same).with_inputs(lambda named: _drop_constants(named, constants))
    changed = changed.with_facts(
        {_fact(name): f"{value.tolist()} ({value.dtype})" for name, value in constants.items()}
    )
    with patch_root_forward(call.module, functools.partial(_with_constants, constants)):
        yield changed


def _is_open(spec: Any) -> bool:
    """Whether a size of a tensor with these dynamic shapes may differ."""
    dims = spec.values() if isinstance(spec, Mapping) else spec if isinstance(spec, list | tuple) else (spec,)
    return any(map(is_dynamic, dims))


def _fact(name: str) -> str:
    return f"the input {name}"


def _is_wanted(call: ExportCall, name: str) -> bool:
    """Whether the program for which inputs are converted, if there is one, has this input as a constant."""
    return call.wanted is None or any(_fact(name) in facts for facts in call.wanted)


def _changed_inputs(named: Named, constants: Named) -> list[str]:
    """The inputs whose values are not those that the program was made for."""
    import torch

    return [name for name, value in constants.items() if name not in named or not torch.equal(named[name], value)]


def _drop_constants(named: Named, constants: Named) -> dict[str, Any]:
    """The program does not take them; other values than its own are refused rather than forgotten."""
    other = _changed_inputs(named, constants)
    if other:
        raise ValueError(f"the program was made for one value of {', '.join(other)}, found another")
    return dict.fromkeys(constants)


def _is_small_integer(value: Any) -> bool:
    import torch

    integers = (torch.int64, torch.int32, torch.int16, torch.int8)
    small = 0 < value.numel() <= _LARGEST and (value.dim() <= 1 or value.shape[-1] in _ROW)
    return value.dtype in integers and small and not is_fake(value)


SHIM = Shim(
    id="frozen-values",
    title="Makes small integer inputs, such as an image grid, constants of the program",
    soundness="specialised",
    enter=_enter,
    does=(
        "Integer inputs of at most 64 elements and fixed sizes become constants, and values that depend "
        "only on them are computed before tracing, so loops over them are unrolled. The program does not "
        "take them as inputs, and is valid for these values only."
    ),
    precondition="the frozen inputs equal the example's",
    cures=(Cure(kinds=("data_dependent_value", "data_dependent_guard")),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html",
    retire="",
    rank=80,
    replaces=(
        Replacement(
            target="the inputs of the program",
            before="encoder(hidden_states, grid_thw)\n",
            after="encoder(hidden_states, torch.tensor([[1, 48, 48]]))\n",
        ),
    ),
)
