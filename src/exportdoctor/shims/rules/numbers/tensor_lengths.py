"""`len(tensor)` fixes the tensor's first size: Python asks `len` for a number. Here it is the symbolic size instead."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

from exportdoctor.core.patch_attribute import patch_item
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import user_functions
from exportdoctor.shims.rules.code.number_types import asks_for_type, symbolic_numbers


def length_of(value: Any) -> Any:
    """As `len`; of a tensor the first size, which may be symbolic."""
    import torch

    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else builtins.len(value)


def _calls_len(code: CodeType) -> bool:
    return "len" in code.co_names


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    functions = list(user_functions(call, _calls_len))
    asking = {id(one.__globals__) for one in functions if asks_for_type(one.__code__)}
    namespaces = {id(one.__globals__): one.__globals__ for one in functions}
    found = [names for place, names in namespaces.items() if "len" not in names and place not in asking]
    if not found:
        asked = "all functions that call `len` are beside one that asks for types of numbers"
        raise NotApplicable(asked if asking else "no function beside the modules' classes calls `len`")
    with ExitStack() as stack:
        stack.enter_context(symbolic_numbers(call))
        for names in found:
            stack.enter_context(patch_item(names, "len", length_of))
        yield call


SHIM = Shim(
    id="len-as-size",
    title="Keeps the length of a tensor symbolic: `len(x)` is `x.shape[0]`",
    soundness="exact",
    enter=_enter,
    does=(
        "Python asks `len` for its number, so that `len(x)` of a tensor fixes its first size, mostly the batch. Here "
        "it is the size of the tensor, which may be symbolic."
    ),
    cures=(
        Cure(kinds=("dynamic_dim_specialised",)),
        Cure(kinds=("data_dependent_value", "data_dependent_guard"), where=r":[^\n]*: [^\n]*\blen\("),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="the code asks for x.shape[0] instead",
    rank=24,
    replaces=(
        Replacement(
            target="the functions that ask for the length of a tensor",
            before="batch = len(x)\n",
            after="batch = x.shape[0]\n",
        ),
    ),
)
