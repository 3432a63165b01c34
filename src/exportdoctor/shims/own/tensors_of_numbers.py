"""`x.new_tensor([height, width])` and its like of symbolic numbers, and `torch.tensor([a, b])` of tensors.

`torch.tensor` takes symbolic numbers; the other functions ask each for a number of Python. Of tensors without
dimensions both read the values, which `torch.stack` does not. The dtype is the one that torch infers: of all elements
promoted, where that of a number is torch's default one of its kind (torch/csrc/utils/tensor_new.cpp,
infer_scalar_type).
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.known_tensors import torch_name
from exportdoctor.shims.record import Replacement, Shim
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, swap_code, user_functions
from exportdoctor.shims.rules.code.made_code import call_of
from exportdoctor.shims.rules.code.pure_callees import only_computes

_MAKERS = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})
_OPTIONS = frozenset({"data", "obj", "dtype", "device", "requires_grad", "copy"})
_LEGACY = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "LongTensor": "int64",
    "IntTensor": "int32",
    "ShortTensor": "int16",
    "CharTensor": "int8",
    "ByteTensor": "uint8",
    "BoolTensor": "bool",
}
_CLASSES = frozenset({"Tensor", *_LEGACY})
_CONSTRUCT = "_construct_tensor"
"""How the code calls `construct`."""
_MADE = r"\b(?:new_tensor|as_tensor|asarray|new|(?:Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool|)Tensor)\("


def make_tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """As `torch.tensor`, of lists of symbolic numbers and of tensors without dimensions, whose values are not read."""
    import torch

    leaves = list(_leaves(data))
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return torch.tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)
    kind = dtype or functools.reduce(torch.promote_types, map(_dtype_of, leaves))
    where = device or torch.get_default_device()
    return _stack(data, kind, where).requires_grad_(requires_grad)


def _stack(data: Any, dtype: Any, device: Any) -> Any:
    import torch

    if isinstance(data, list | tuple):
        return torch.stack([_stack(item, dtype, device) for item in data])
    if isinstance(data, torch.Tensor):
        return data.detach().to(device=device, dtype=dtype, copy=True)
    return torch.scalar_tensor(data.item() if _is_of_numpy(data) else data, dtype=dtype, device=device)


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, list | tuple):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def _dtype_of(leaf: Any) -> Any:
    import torch

    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    if _is_of_numpy(leaf):  # torch takes it for an array, whose dtype it has
        return torch.from_numpy(leaf.reshape(1)).dtype
    if isinstance(leaf, bool | torch.SymBool):
        return torch.bool
    return torch.int64 if isinstance(leaf, int | torch.SymInt) else torch.get_default_dtype()


def _is_of_numpy(leaf: Any) -> bool:
    """Whether it is a real number of numpy, of a dtype that torch has."""
    import numpy as np

    return isinstance(leaf, np.signedinteger | np.uint8 | np.float16 | np.float32 | np.float64)


def _is_taken(name: str, data: Any) -> bool:
    """Whether it is a list of what is no plain number: symbolic ones, or tensors without dimensions, of one length in
    each row. A tensor itself is none, and torch.tensor takes symbolic numbers by itself."""
    import torch

    tensors = symbols = 0
    for leaf in _leaves(data):
        if isinstance(leaf, torch.Tensor):
            if leaf.dim() or leaf.is_complex():
                return False
            tensors += 1
        elif isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            symbols += 1
        elif type(leaf) not in (bool, int, float) and not _is_of_numpy(leaf):
            return False
    if tensors:
        return isinstance(data, list | tuple) and _has_rows(data)
    return symbols > 0 and name != "tensor"


def _has_rows(data: Any) -> bool:
    """Whether lists in it are as long and as deep as those beside them."""

    def shape(one: Any) -> Any:
        if not isinstance(one, list | tuple):
            return ()
        shapes = {shape(item) for item in one}
        return (len(one), *shapes.pop()) if len(shapes) == 1 and None not in shapes else None

    return shape(data) is not None


def _mode() -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    class MakesTensors(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, name = kwargs or {}, torch_name(func)
            if torch.compiler.is_dynamo_compiling() or (name not in _MAKERS and name != "new"):
                return func(*args, **kwargs)
            owner, rest = (args[0], args[1:]) if name in {"new_tensor", "new"} and args else (None, args)
            data = rest[0] if rest else kwargs.get("data", kwargs.get("obj"))
            if len(rest) > 1 or not kwargs.keys() <= _OPTIONS or not _is_taken(name, data):
                return func(*args, **kwargs)
            if name == "new" and (isinstance(data, torch.Size) or not isinstance(data, list | tuple)):  # a size
                return func(*args, **kwargs)
            how = {key: kwargs[key] for key in ("dtype", "device", "requires_grad") if kwargs.get(key) is not None}
            if owner is not None:
                how = {"dtype": owner.dtype, "device": owner.device, **how}
            return make_tensor(data, **how)

    return MakesTensors()


class _Constructions(ast.NodeTransformer):
    """Calls of classes such as torch.FloatTensor, which no mode sees."""

    def __init__(self, function: FunctionType, node: ast.FunctionDef) -> None:
        self.count, self.known = 0, function.__globals__
        self.local = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        self.local |= {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_plain = len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred)
        if not is_plain or not self._is_class(node.func):
            return node
        self.count += 1
        return ast.copy_location(call_of(_CONSTRUCT, node.func, node.args[0]), node)

    def _is_class(self, node: ast.expr) -> bool:
        import torch

        match node:
            case ast.Name(id=name) if name not in self.local:
                return _class_name(self.known.get(name)) != ""
            case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner not in self.local:
                return self.known.get(owner) is torch and _class_name(getattr(torch, attr, None)) != ""
        return False


def _class_name(value: Any) -> str:
    """The name of a class of torch whose tensors have one dtype; empty for anything else."""
    import torch

    return next((name for name in ("Tensor", *_LEGACY) if value is getattr(torch, name)), "")


@only_computes
def construct(kind: Any, data: Any) -> Any:
    """`kind(data)`, where the kind is torch.Tensor or a class such as torch.FloatTensor. A torch.Size is no data."""
    import torch

    if isinstance(data, torch.Size) or not isinstance(data, list | tuple) or not _is_taken("", data):
        return kind(data)
    name = _LEGACY.get(_class_name(kind))
    return make_tensor(data, dtype=getattr(torch, name) if name else torch.get_default_dtype(), device="cpu")


def _rewritten(function: FunctionType) -> CodeType | None:
    node = definition_of(function)
    if node is None:
        return None
    constructions = _Constructions(function, node)
    changed = constructions.visit(node)
    return compile_for(function, changed) if constructions.count else None


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    def wrap(forward: Forward) -> Forward:
        def with_makers(*args: Any, **kwargs: Any) -> Any:
            with _mode():
                return forward(*args, **kwargs)

        return with_makers

    found = dict.fromkeys(user_functions(call, lambda code: not _CLASSES.isdisjoint(code.co_names)))
    changes = {one: code for one in found if (code := _rewritten(one)) is not None}
    with swap_code(changes, {_CONSTRUCT: construct}), patch_root_forward(call.module, wrap):
        yield call


SHIM = Shim(
    id="numbers-as-tensor",
    title="Makes tensors of symbolic numbers and of scalar tensors without reading their values",
    soundness="exact",
    enter=_enter,
    does=(
        "`new_tensor`, `torch.as_tensor`, `torch.asarray`, `torch.Tensor` and `torch.FloatTensor` of a list with "
        "dynamic sizes ask each for a number of Python, which fixes it. Here `torch.tensor` makes the tensor, which "
        "takes symbolic numbers, with the dtype and the device that the call gives. `torch.tensor` of a list of "
        "tensors without dimensions reads their values, which traced tensors do not have: here they are stacked, as "
        "`torch.stack` does."
    ),
    cures=(
        Cure(kinds=("dynamic_dim_specialised",), guard=_MADE),
        Cure(kinds=("data_dependent_value", "data_dependent_guard"), where=_MADE),
        Cure(kinds=("python_error",), message="its data is not allocated yet"),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.tensor.html",
    retire="`new_tensor` and `torch.as_tensor` take symbolic numbers, as `torch.tensor` does",
    rank=16,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="`x.new_tensor([height, width])`",
            before="size = x.new_tensor([height, width])\n",
            after="size = torch.tensor([height, width], dtype=x.dtype, device=x.device)\n",
        ),
    ),
)
