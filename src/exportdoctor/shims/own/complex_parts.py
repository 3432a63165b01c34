"""Operators on complex tensors for which `torch.onnx` has no function, computed on their real and imaginary parts.

They are decomposed in the exported program, by `ExportedProgram.run_decompositions`: it has no views or writes in place
by then, which a new tensor in place of a view would lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.torch_internals.graph_modules import program_nodes
from exportdoctor.torch_internals.trees import tree_leaves, tree_map

_VALUES: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(
        (
            *("unsqueeze", "squeeze", "expand", "repeat", "tile", "select", "index", "index_select", "gather", "take"),
            *("split", "split_with_sizes", "chunk", "unbind", "unfold", "diagonal", "tril", "triu", "cumsum"),
            *("zeros_like", "empty_like", "new_zeros", "repeat_interleave", "to", "_to_copy"),
        ),
        (0,),
    ),
    **dict.fromkeys(("zeros", "empty"), ()),
    **dict.fromkeys(("full", "full_like"), (1,)),
    "new_full": (2,),
    "where": (1, 2),
    **dict.fromkeys(("slice_scatter", "select_scatter", "copy"), (0, 1)),
    **dict.fromkeys(("index_put", "masked_fill", "constant_pad_nd"), (0, 2)),
    **dict.fromkeys(("scatter", "pad"), (0, 3)),
}
"""Operators that do to each part what they do to the whole, and which of their arguments hold values."""
_INTO_FIRST = frozenset({"slice_scatter", "select_scatter", "copy", "index_put", "scatter"})
"""Those that write into the first argument: a real one takes the real part."""
_MOST_FACTORS = 16
"""Of a power by a whole number, which is a product."""


def _is_complex(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return value.is_complex()
    return isinstance(value, complex) or (isinstance(value, torch.dtype) and value.is_complex)


def _has_complex(values: Any) -> bool:
    return any(map(_is_complex, tree_leaves(values)))


def _real_part(value: Any) -> Any:
    import torch

    if isinstance(value, torch.dtype):
        return value.to_real() if value.is_complex else value
    if isinstance(value, torch.Tensor):
        return torch.real(value) if value.is_complex() else value
    return value.real if isinstance(value, complex) else value


def _imaginary_part(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return torch.imag(value) if value.is_complex() else torch.zeros_like(value)
    if isinstance(value, complex):
        return value.imag
    if isinstance(value, bool):
        return False
    return 0 if isinstance(value, int | float) else _real_part(value)


def _on_parts(operator: Any, places: Sequence[int], *args: Any, **kwargs: Any) -> Any:
    """What the operator gives for each part, joined; NotImplemented where nothing is complex."""
    import torch

    if not _has_complex((args, kwargs)):
        return NotImplemented
    kwargs = {name: _real_part(value) for name, value in kwargs.items()}
    dtype = next((one for one in args if isinstance(one, torch.dtype)), None)

    def on(part: Callable[[Any], Any]) -> Any:
        given = (tree_map(part, one) if place in places else _real_part(one) for place, one in enumerate(args))
        return operator(*given, **kwargs)

    real = on(_real_part)
    if dtype is not None and not dtype.is_complex:
        return real  # a conversion that drops the imaginary part
    imaginary = on(_imaginary_part)
    if isinstance(real, torch.Tensor):
        return torch.complex(real, imaginary)
    return [torch.complex(*parts) for parts in zip(real, imaginary, strict=True)]


def _convert(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """A conversion, which may drop the imaginary part."""
    dtype = kwargs.get("dtype")
    if dtype is not None and not dtype.is_complex and _has_complex(args):
        return operator(*map(_real_part, args), **kwargs)
    return _on_parts(operator, (0,), *args, **kwargs)


def _ones(operator: Any, *args: Any, **kwargs: Any) -> Any:
    import torch

    if not _has_complex((args, kwargs)):
        return NotImplemented
    ones = operator(*map(_real_part, args), **{name: _real_part(value) for name, value in kwargs.items()})
    return torch.complex(ones, torch.zeros_like(ones))


def _product(of: Callable[..., Any], one: Any, other: Any) -> Any:
    """A product that is linear in both."""
    import torch

    (real, imaginary), (other_real, other_imaginary) = (
        (_real_part(value), _imaginary_part(value)) for value in (one, other)
    )
    return torch.complex(
        of(real, other_real) - of(imaginary, other_imaginary), of(real, other_imaginary) + of(imaginary, other_real)
    )


def _einsum(operator: Any, equation: str, operands: Sequence[Any], **how: Any) -> Any:
    if len(operands) != 2 or not _has_complex(operands):
        return NotImplemented
    return _product(lambda *both: operator(equation, both, **how), *operands)


def _multiply(operator: Any, one: Any, other: Any) -> Any:
    return _product(operator, one, other) if _has_complex((one, other)) else NotImplemented


def _linear(operator: Any, one: Any, weight: Any, bias: Any = None) -> Any:
    if not _has_complex((one, weight, bias)):
        return NotImplemented
    product = _product(operator, one, weight)
    return product if bias is None else product + bias


def _norm(operator: Any, one: Any, *args: Any, **how: Any) -> Any:
    return operator(one.abs(), *args, **how) if _is_complex(one) else NotImplemented


def _exp(_: Any, one: Any) -> Any:
    import torch

    return torch.polar(torch.real(one).exp(), torch.imag(one)) if _is_complex(one) else NotImplemented


def _log(_: Any, one: Any) -> Any:
    import torch

    if not _is_complex(one):
        return NotImplemented
    parts = torch.real(one).abs(), torch.imag(one).abs()
    longer, shorter = torch.maximum(*parts), torch.minimum(*parts)
    ratio = torch.where(longer == 0, longer, shorter / longer)  # the length itself may overflow
    return torch.complex(longer.log() + (ratio * ratio).log1p() / 2, one.angle())


def _sqrt(_: Any, one: Any) -> Any:
    import torch

    return torch.polar((one / 4).abs().sqrt() * 2, one.angle() / 2) if _is_complex(one) else NotImplemented


def _power(_: Any, one: Any, exponent: Any) -> Any:
    if not _is_complex(one) or exponent != int(exponent) or not 1 <= exponent <= _MOST_FACTORS:
        return NotImplemented
    return reduce(lambda product, _: product * one, range(int(exponent) - 1), one)


_OTHERS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("to", "_to_copy"), _convert),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _ones),
    **dict.fromkeys(("bmm", "mm", "mv", "dot", "outer", "mul"), _multiply),
    "einsum": _einsum, "linear": _linear, "linalg_vector_norm": _norm,
    "exp": _exp, "log": _log, "sqrt": _sqrt, "pow": _power,
}  # fmt: skip


def complex_decompositions() -> dict[Any, Callable[..., Any]]:
    """For `ExportedProgram.run_decompositions`: what computes each of these operators on the parts of complex tensors.

    Where none of its arguments is complex it gives NotImplemented, with which torch leaves the operator as it is.
    """
    import torch

    made: dict[Any, Callable[..., Any]] = {}
    rules = {name: partial(_on_parts_of, name) for name in _VALUES} | dict(_OTHERS)
    for name, rule in rules.items():
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            operator = getattr(packet, overload)
            arguments = operator._schema.arguments
            is_other = any("Dimname" in str(one.type) or one.name == "reduce" for one in arguments)
            if not operator._schema.is_mutable and not is_other:
                made[operator] = partial(rule, operator)
    return made


def _on_parts_of(name: str, operator: Any, *args: Any, **kwargs: Any) -> Any:
    if name in _INTO_FIRST and not _is_complex(args[0]) and _has_complex(args):
        return operator(*map(_real_part, args), **kwargs)
    return _on_parts(operator, _VALUES[name], *args, **kwargs)


def without_complex_operators(program: Any) -> Any:
    """The program with these operators computed on parts. Raises NotApplicable where it has none on complex tensors."""
    table = complex_decompositions()
    nodes = [node for node in program_nodes(program) if node.target in table or _writes(node.target)]
    values = ((node.meta.get("val"), [one.meta.get("val") for one in node.all_input_nodes]) for node in nodes)
    if not any(map(_has_complex, values)):
        raise NotApplicable("the program has no operator on complex tensors that is computed on their parts")
    return program.run_decompositions(table)


def _writes(operator: Any) -> bool:
    """Whether it writes in place, for which another operator stands in the end."""
    schema = getattr(operator, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    yield replace(call, passes=(*call.passes, without_complex_operators))


SHIM = Shim(
    id="complex-as-parts",
    title="Computes on the real and the imaginary part where ONNX has no operator on complex tensors",
    soundness="exact",
    enter=_enter,
    does=(
        "`torch.onnx` knows few operators on complex tensors: not `unsqueeze`, `expand`, an index, `torch.where`, "
        "`torch.einsum` or `torch.exp`. In the exported program each such operator is replaced by the same on the real "
        "and on the imaginary part, joined by `torch.complex`; products, powers and `exp` by their formulas. "
        "Of infinite numbers, and where a product overflows on the way, the formulas may give others."
    ),
    cures=(Cure(kinds=("translate",), message="complex-valued input", exporters=("export", "export-strict")),),
    link="https://docs.pytorch.org/docs/stable/onnx_export.html",
    retire="torch.onnx translates these operators on complex tensors",
    rank=20,
    replaces=(
        Replacement(
            target="operators on complex tensors",
            before="rotations = rotations.unsqueeze(1)\n",
            after="rotations = torch.complex(rotations.real.unsqueeze(1), rotations.imag.unsqueeze(1))\n",
        ),
    ),
)
