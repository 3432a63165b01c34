"""Whether a function or a module of torch does nothing but compute: it draws no random values and writes nothing."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from exportdoctor.shims.random_functions import has_random_name

NOT_KNOWN = object()
"""The value of an argument that the code does not show."""

_IMPURE_PARTS = (
    "seed", "set_", "save", "load", "use_", "compile", "instance_norm", "native_batch_norm", "cudnn", "miopen",
    "moving_avg", "nesting", "clear_",
)  # fmt: skip
"""Parts of names of what changes something beside its result."""
_IMPURE_NAMES = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "fork", "wait", "cond"})
_COMPUTING = ("torch", "torch.functional", "torch.nn.functional", "torch._tensor")
"""The modules of torch whose functions compute. Others take functions, keep state or talk to other processes."""
_ASKING = ("torch.jit", "torch._jit_internal", "torch.compiler", "torch.onnx", "torch._utils")
"""Those of which the functions `is_...` ask for a state."""
_LAYERS = ("torch.nn.modules.", "torch.nn.utils.parametri")
_OFF = frozenset({"inplace", "training", "train", "dropout_p", "max_norm", "use_input_stats", "out"})
"""Arguments with which a function writes to what it is given, or draws values, unless they are false."""
_BUILT_IN = {
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p"),
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var", "training"),
}
"""The parameters of functions of which Python does not know the signature."""


def only_computes(stand_in: Any) -> Any:
    """Say of a function or class of ours, which code calls in place of Python's, that it does nothing else: where two
    rewrites meet, one sees what the other has put there."""
    stand_in.only_computes = True
    return stand_in


def has_pure_name(name: str) -> bool:
    """Whether the name is not that of a function or method that writes or draws values."""
    is_private = name.startswith("_") and not name.startswith(("_assert", "_check"))
    named = name in _IMPURE_NAMES or has_random_name(name) or any(part in name for part in _IMPURE_PARTS)
    return not is_private and not name.endswith("_") and not named


def is_pure_function_of_torch(callee: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, whole: bool) -> bool:
    """Whether a call of it with these arguments only computes; `whole` says that no `*` or `**` adds others."""
    name = getattr(callee, "__name__", "")
    if not _computes(callee, name) or not has_pure_name(name):
        return False
    parameters = _parameters(callee)
    given = {**dict(zip(parameters, args, strict=False)), **kwargs}
    if not whole and _OFF & {*parameters}:
        return False
    return all(given[one] is not NOT_KNOWN and not _is_on(given[one]) for one in _OFF & given.keys())


def _is_on(value: Any) -> bool:
    return value is not None and value is not False and not (isinstance(value, int | float) and value == 0)


def _computes(callee: Any, name: str) -> bool:
    if isinstance(callee, BuiltinFunctionType | type(str.upper)):
        owner = getattr(callee, "__self__", None)
        return owner is None or isinstance(owner, type | ModuleType)
    module = getattr(callee, "__module__", None) or ""
    return module in _COMPUTING or (name.startswith("is_") and module.startswith(_ASKING))


@cache
def _parameters(callee: Any) -> tuple[str, ...]:
    if isinstance(callee, FunctionType):
        return tuple(inspect.signature(callee).parameters)
    return _BUILT_IN.get(getattr(callee, "__name__", ""), ())


def makes_record(kind: type[Any]) -> bool:
    """Whether calling the class does nothing but keep what it is given: a named tuple, a dataclass without code of its
    own, or an output class of transformers."""
    if type(kind) not in (type, type(_model_output())):
        return False
    if kind.__bases__ == (tuple,):
        return hasattr(kind, "_fields") and _is_generated(kind.__new__)
    if not dataclasses.is_dataclass(kind) or kind.__new__ not in (object.__new__, dict.__new__):
        return False
    factories = {field.default_factory for field in dataclasses.fields(kind)}
    checks = getattr(kind, "__post_init__", None)
    return (
        "__init__" in vars(kind)
        and (_is_generated(kind.__init__) or _wraps_generated(kind.__init__))
        and factories <= {dataclasses.MISSING, list, dict, set, tuple}
        and (checks is None or checks is method_of_model_output("__post_init__"))
        and (kind.__setattr__ in (object.__setattr__, method_of_model_output("__setattr__")) or _is_frozen(kind))
    )


def method_of_model_output(method: str) -> Any:
    """A method of the base of transformers' output classes; not a method where that is not imported."""
    return getattr(_model_output(), method, NOT_KNOWN)


def _model_output() -> Any:
    return getattr(sys.modules.get("transformers.utils.generic"), "ModelOutput", None)


def init_wrappers_of_model_output() -> tuple[CodeType, ...]:
    """The code that the metaclass of transformers' output classes, since 5.24, puts around a generated `__init__`, so
    that the cache may have the name that it had before."""
    setter = vars(type(_model_output())).get("__setattr__")
    constants = setter.__code__.co_consts if isinstance(setter, FunctionType) else ()
    return tuple(one for one in constants if isinstance(one, CodeType))


def _wraps_generated(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code in init_wrappers_of_model_output() and _is_generated(inspect.unwrap(function))


def _is_frozen(kind: Any) -> bool:
    return kind.__dataclass_params__.frozen and _is_generated(kind.__setattr__)


def _is_generated(function: Any) -> bool:
    """Whether Python's library made it, from a text without a file."""
    return isinstance(function, FunctionType) and function.__code__.co_filename == "<string>"


def is_pure_layer(module: Any) -> bool:
    """Whether torch's own forward of it, without those of its children, only computes."""
    forward = type(module).forward
    kind: Any = type(module)
    is_own = isinstance(forward, FunctionType) and forward.__module__.startswith(_LAYERS)
    is_plain = not getattr(module, "inplace", False) and getattr(module, "max_norm", None) is None
    return is_own and is_plain and not (module.training and _asks_for_training(kind))


@cache
def _asks_for_training(kind: Any) -> bool:
    """Whether any method of the layer reads `training`."""
    from torch import nn

    classes = (one for one in kind.__mro__ if one.__module__.startswith(_LAYERS) and one is not nn.Module)
    methods = (value for one in classes for value in vars(one).values())
    return any("training" in value.__code__.co_names for value in methods if isinstance(value, FunctionType))


def runs_as_written(module: Any) -> bool:
    """Whether calling it runs its class's forward and nothing else."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return "forward" not in vars(module) and not any(any(one.values()) for one in hooks)
