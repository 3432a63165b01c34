"""An index of a tensor takes few numbers that are symbolic. Here they choose a view, as operators of torch do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.function_stand_ins import stand_in_for_functions
from exportdoctor.shims.record import Replacement, Shim

_ASSIGNED = r"\]\s*(?:[-+*/@&|^]|//|\*\*)?=(?!=)"
_INDEXED = r"[\w)\]]\[.*,.*\]"


def take(input: Any, index: Any) -> Any:
    """`input[index]`, of which symbolic numbers choose a view first."""
    chosen, rest = _choose(input, index)
    return input[index] if chosen is None or _is_all(rest) else chosen[rest]


def assign(input: Any, index: Any, value: Any) -> None:
    """`input[index] = value`, of which symbolic numbers choose a view first, into which `value` is copied."""
    import torch

    chosen, rest = _choose(input, index)
    if chosen is None:
        input[index] = value
    elif not _is_all(rest):
        chosen[rest] = value
    elif isinstance(value, torch.Tensor):
        while value.dim() > chosen.dim() and value.shape[0] == 1:  # as an assignment does, and copy_ does not
            value = value.squeeze(0)
        chosen.copy_(value)
    else:
        chosen.fill_(value)


def _narrow(input: Any, dim: Any, start: Any, length: Any) -> Any:
    return input.narrow(dim, _number(start), length)


def _choose(tensor: Any, index: Any) -> tuple[Any, tuple[Any, ...]]:
    """A view of what the index's symbolic numbers and bounds choose, and the rest of the index for that view; no view
    where the index has none."""
    first: list[Any] = []
    rest: list[Any] = []
    found = False
    for one in index if isinstance(index, tuple) else (index,):
        bounds = (one.start, one.stop, one.step) if isinstance(one, slice) else ()
        if _is_symbolic(one):
            first.append(_number(one))
        elif any(map(_is_symbolic, bounds)):
            first.append(slice(*map(_number, bounds)))
            rest.append(slice(None))
        else:
            first.extend([one] if one is Ellipsis else [slice(None)] * _dims_taken(one))
            rest.append(one)
            continue
        found = True
    return (tensor[tuple(first)] if found else None), tuple(rest)


def _is_symbolic(one: Any) -> bool:
    """A symbolic number, or a tensor without dimensions that stands for one: PyTorch asks it for its value."""
    import torch

    if isinstance(one, torch.Tensor):
        return one.dim() == 0 and one.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
    return isinstance(one, torch.SymInt)


def _number(one: Any) -> Any:
    import torch

    return one.item() if isinstance(one, torch.Tensor) else one


def _dims_taken(one: Any) -> int:
    """How many dimensions of the tensor this part of an index is for."""
    import torch

    if one is None or isinstance(one, bool):
        return 0
    if isinstance(one, int | slice | torch.SymInt):
        return 1
    places = one if isinstance(one, torch.Tensor) else torch.as_tensor(one)  # of a list, or an array
    return places.dim() if places.dtype in (torch.bool, torch.uint8) else 1


def _is_all(rest: tuple[Any, ...]) -> bool:
    return all(one is Ellipsis or (isinstance(one, slice) and one == slice(None)) for one in rest)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    with stand_in_for_functions(call.module, {"__getitem__": take, "__setitem__": assign, "narrow": _narrow}):
        yield call


SHIM = Shim(
    id="index-as-item",
    title="Assigns by an index that depends on sizes or values as `copy_` does",
    soundness="exact",
    enter=_enter,
    does=(
        "`x[:, n] = y` and `x[rows, n]` ask `n` for a number of Python, which a symbolic size or a traced tensor does "
        "not have. Here the symbolic numbers of an index choose a view, as `x[:, n]` does, and `y` is copied into it. "
        "A tensor without dimensions in an index, or as a bound of a slice, is what `item` gives of it."
    ),
    cures=(
        Cure(message=r"IndexError: only integers, slices .*\bSymInt\b"),
        Cure(message="Could not extract specialized integer", where=_ASSIGNED),
        Cure(message="Could not extract specialized integer", where=_INDEXED),
        Cure(message="Pending unbacked symbols", where=r"\bnarrow\("),
        Cure(kinds=("dynamic_dim_specialised",), guard=_INDEXED),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.copy_.html",
    retire="an assignment to a tensor takes symbolic numbers in its index",
    rank=16,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="`x[i] = y` of a tensor",
            before="cache[:, position] = key\n",
            after="cache.select(1, position.item()).copy_(key)\n",
        ),
    ),
)
