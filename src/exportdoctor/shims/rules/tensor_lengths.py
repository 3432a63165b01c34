"""`len(tensor)` fixes the tensor's first size: Python asks `len` for a number. Here it is the symbolic size instead."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.patch_attribute import patch_item
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code_swap import inside_decorators


def length_of(value: Any) -> Any:
    """As `len`; of a tensor the first size, which may be symbolic."""
    import torch

    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else builtins.len(value)


def _calls_len(code: CodeType) -> bool:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return is_user_file(code.co_filename) and ("len" in code.co_names or any(map(_calls_len, inner)))


def _namespaces(call: ExportCall) -> Iterator[dict[str, Any]]:
    """The globals of the files with the modules' classes in them, where code there calls `len`."""
    classes = {kind for module in call.module.modules() for kind in type(module).__mro__}
    for name in sorted({kind.__module__ for kind in classes} & {*sys.modules}):
        names = vars(sys.modules[name])
        own = [one for one in list(names.values()) if getattr(one, "__module__", None) == name]
        methods = [one for kind in own if isinstance(kind, type) for one in vars(kind).values()]
        if "len" not in names and any(inside_decorators(one, _calls_len) for one in (*own, *methods)):
            yield names


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = list(_namespaces(call))
    if not found:
        raise NotApplicable("no function beside the modules' classes calls `len`")
    with ExitStack() as stack:
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
