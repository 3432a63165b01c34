"""Python code that needs only torch: plain values, tensors by shape, dynamic shapes, torch's modules, exports."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterable
from typing import Any

import torch

from exportdoctor.core.exporters import EXPORTERS, Exporter
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.torch_internals.fake_tensors import is_fake

PLAIN = (type(None), bool, int, str, bytes)
_EXACT = 64
_FEW = 30


def plain_code(value: Any) -> str | None:
    """The code of a value that has a literal, or that torch names; None for another."""
    if type(value) in PLAIN:
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, torch.Size):
        return f"torch.Size({list(value)!r})"
    return None


def plain_container(value: Any) -> str | None:
    """The code of a small dict, list, tuple or set of values that have literals; None for another."""
    kind = type(value)
    if kind not in (dict, list, tuple, set) or len(value) > _FEW or (kind is set and not value):
        return None
    leaves = [*value, *value.values()] if kind is dict else [*value]
    are_plain = all(type(leaf) in PLAIN or (type(leaf) is float and math.isfinite(leaf)) for leaf in leaves)
    return repr(value) if are_plain else None


def tensor_code(tensor: torch.Tensor) -> str:
    """A tensor of the same shape and dtype: exact where it holds a few known integers, else ones."""
    if tensor.layout != torch.strided:
        return f"torch.ones({_shape(tensor)}{_dtype(tensor)}).to_sparse({_sparse_layout(tensor)})"
    known = not is_fake(tensor) and tensor.device.type != "meta"
    dtype = _dtype(tensor)
    if known and not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= _EXACT:
        values = tensor.tolist()
        implied = tensor.dtype in (torch.int64, torch.bool) and tensor.numel()
        return f"torch.tensor({values!r}{'' if implied else dtype})"
    grad = ", requires_grad=True" if tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter) else ""
    whole = tensor.dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
    return f"torch.{'zeros' if whole else 'ones'}({_shape(tensor)}{dtype}{grad})"


def drawn_code(values: Iterable[Any]) -> dict[int, str]:
    """By id the code of tensors of floating point numbers with values at random: equal ones hide how numbers differ."""
    drawn = [one for one in values if isinstance(one, torch.Tensor) and one.layout == torch.strided]
    return {id(one): f"torch.randn({_shape(one)}{_dtype(one)})" for one in drawn if one.is_floating_point()}


def _dtype(tensor: torch.Tensor) -> str:
    return "" if tensor.dtype == torch.float32 else f", dtype={tensor.dtype}"


def _sparse_layout(tensor: torch.Tensor) -> str:
    """The arguments of `to_sparse` that give this tensor's layout."""
    if tensor.layout == torch.sparse_coo:
        return ""
    blocks = tensor.layout in (torch.sparse_bsr, torch.sparse_bsc)
    return f"layout={tensor.layout}" + (f", blocksize={tuple(tensor.values().shape[-2:])}" if blocks else "")


def _shape(tensor: torch.Tensor) -> str:
    sizes = (
        int(size) if isinstance(size, torch.Tensor) else size for size in tensor.shape
    )  # in a trace of TorchScript
    return ", ".join(map(str, sizes)) if tensor.dim() else "()"


def torch_module_code(module: torch.nn.Module) -> str | None:
    """The constructor call of one of torch's own modules without children; None where its state does not show them."""
    kind = type(module)
    arguments: list[str] = []
    try:
        parameters = _parameters(kind)
    except (TypeError, ValueError):
        return None
    for parameter in parameters:
        if parameter.name in ("device", "dtype"):
            continue
        value = _argument(module, parameter.name)
        code = plain_code(value) if not isinstance(value, tuple | list) else repr(tuple(value))
        if value is inspect.Parameter.empty or code is None:
            if parameter.default is inspect.Parameter.empty:
                return None
            continue
        if parameter.default is not inspect.Parameter.empty and value == parameter.default:
            continue
        positional = parameter.default is inspect.Parameter.empty and not any("=" in given for given in arguments)
        arguments.append(code if positional else f"{parameter.name}={code}")
    return f"{torch_name(kind)}({', '.join(arguments)})"


def _parameters(kind: type) -> list[inspect.Parameter]:
    """Of a constructor, without `self`; of one that hands on `*args, **kwargs`, those of the parent's.

    Those of the parent's that it gives by itself, as a recurrent layer its mode, come first there.
    """
    named: tuple[inspect.Parameter, ...] = ()
    by_itself = 0
    for parent in kind.__mro__:
        own = list(inspect.signature(parent.__init__).parameters.values())[1:]  # type: ignore[misc]
        named = tuple(one for one in own if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))
        if len(named) == len(own):
            return list(named[by_itself:])
        by_itself = 1
    return list(named)


def _argument(module: torch.nn.Module, name: str) -> Any:
    """What a constructor's argument was, from the attribute of the same name."""
    if name not in dir(module):
        return inspect.Parameter.empty
    value = getattr(module, name)
    if name == "bias" and (value is None or isinstance(value, torch.Tensor)):
        return value is not None
    if isinstance(value, tuple) and len(set(value)) == 1 and type(value[0]) is int:
        return value[0] if name not in ("normalized_shape",) else tuple(value)
    return value


def torch_name(value: Any) -> str:
    """How a class or function of torch is written after `import torch`."""
    name = getattr(value, "__name__", "")
    for path, space in (
        ("torch.nn", torch.nn),
        ("torch", torch),
        ("torch.nn.functional", torch.nn.functional),
        ("torch.export", torch.export),
    ):
        if getattr(space, name, None) is value:
            return f"{path}.{name}"
    return f"{getattr(value, '__module__', 'torch')}.{getattr(value, '__qualname__', name)}"


_TO_ONNX = "torch.onnx.export({module}, {args}{kwargs_argument}{shapes}, dynamo=True)"
_RUN_ONNX = f"""args = {{args}}
{_TO_ONNX.replace("{args}", "args")}(*args{{named}})"""
SEED = "torch.manual_seed(0)"
"""What a script that compares numbers begins with: each run draws the same ones."""
_COMPARE_ONNX = f"""{SEED}
model, args = {{module}}, {{args}}
program = {_TO_ONNX.replace("{args}", "args").replace("{module}", "model")}{{again}}
found, wanted = program(*args{{named}}), torch.utils._pytree.tree_leaves(model(*args{{named}}))
torch.testing.assert_close(found, tuple(wanted), {{close}})"""
_BEHIND_EXPORT = {"translate": _TO_ONNX, "load": _RUN_ONNX, "run": _RUN_ONNX, "numbers": _COMPARE_ONNX}
"""What a script does where a stage behind the export fails; an `ONNXProgram` that is called runs in ONNX Runtime."""


def export_code(
    exporter: Exporter,
    module: str,
    args: str,
    *,
    kwargs: str = "",
    shapes: str = "",
    of: Outcome | None = None,
    again: tuple[str, str] | None = None,
) -> str:
    """The statements that export, and go on to the stage at which the outcome `of` fails.

    `module` and its positional inputs `args` are code; `shapes` has its own comma. `again` are positional inputs and
    keywords of another size, on which the file is compared.
    """
    strict_by_default = inspect.signature(torch.export.export).parameters["strict"].default
    stage = of.failure.stage if of is not None and of.failure is not None else "export"
    script = _BEHIND_EXPORT.get(stage, EXPORTERS[exporter].script.replace("{inputs}", "{module}, {args}"))
    return f"{script}{'.run_decompositions()' if stage == 'decompose' else ''}".format(
        module=module,
        args=args,
        named=f", **{again[1] if again else kwargs}" if kwargs else "",
        again=f"\nargs = {again[0]}" if again else "",
        close=_closeness(of) if of is not None else "",
        kwargs=f", {kwargs}" if kwargs else "",
        kwargs_argument=f", kwargs={kwargs}" if kwargs else "",
        shapes=shapes,
        non_strict=", strict=False" if strict_by_default else "",
    )


def compares_numbers(outcome: Outcome) -> bool:
    """Whether a script of it compares what ONNX Runtime computes."""
    return outcome.failure is not None and outcome.failure.stage == "numbers"


def _closeness(outcome: Outcome) -> str:
    """How near values have to be: a tenth of how far they are apart, rounded, so that no rounding is taken for it."""
    row = next(iter(outcome.numbers), None)
    apart = row.max_abs / 10 if row is not None and math.isfinite(row.max_abs) else 0.0
    rounded = float(f"{max(apart, row.tolerance if row is not None else 0.0):.0e}")
    return f"rtol=0, atol={rounded!r}, equal_nan=True"


def shapes_code(shapes: Any, dims: dict[str, str]) -> str:
    """`dynamic_shapes` as code; `dims` collects the definitions of named dimensions by name."""
    if isinstance(shapes, dict):
        return "{" + ", ".join(f"{key!r}: {shapes_code(value, dims)}" for key, value in shapes.items()) + "}"
    if isinstance(shapes, tuple):
        inner = ", ".join(shapes_code(value, dims) for value in shapes)
        return f"({inner},)" if len(shapes) == 1 else f"({inner})"
    if isinstance(shapes, list):
        return "[" + ", ".join(shapes_code(value, dims) for value in shapes) + "]"
    code = plain_code(shapes)
    if code is not None:
        return code
    hint = getattr(shapes, "type", None)
    if type(shapes).__name__ == "_DimHint":
        return f"torch.export.Dim.{getattr(hint, 'name', 'DYNAMIC')}"
    root = getattr(shapes, "root", None)
    if root is not None:
        shapes_code(root, dims)
        return str(shapes.__name__)
    name = str(getattr(shapes, "__name__", shapes))
    bounds = ""
    if getattr(shapes, "min", 0) not in (0, None):
        bounds += f", min={shapes.min}"
    if isinstance(getattr(shapes, "max", None), int) and shapes.max < 2**31:
        bounds += f", max={shapes.max}"
    dims[name] = f"torch.export.Dim({name!r}{bounds})"
    return name


def expression(code: str) -> ast.expr:
    """Code as a syntax tree."""
    return ast.parse(code, mode="eval").body
