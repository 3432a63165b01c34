"""`module.to(dtype)` in a forward leaves a module alone that is as asked already.

`torch.nn.Module.to` replaces every parameter by its conversion, also by itself. While torch.export traces, parameters
are fake tensors, which cannot be swapped.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rewriting import rewrite_source
from exportdoctor.shims.rules.code.code_swap import rewrite_code, swap_code

_PLAIN, _CONVERTS = "self._apply(convert)", "_exportdoctor_converts_as_torch"
_IF_OTHER = ast.parse(
    f"""
self if convert_to_format is None and {_CONVERTS}(self) and all(
    (device is None or tensor.device == device)
    and (dtype is None or tensor.dtype == dtype or not (tensor.is_floating_point() or tensor.is_complex()))
    for tensor in (*self.parameters(), *self.buffers())
) else self._apply(convert)
""".strip(),
    mode="eval",
).body


class OnlyIfOther(ast.NodeTransformer):
    """`return self._apply(convert)` returns `self` where nothing is to be converted."""

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Names are those of `torch.nn.Module.to`."""
        if node.value is not None and ast.unparse(node.value) == _PLAIN:
            node.value = _IF_OTHER
        return node


def converts_as_torch(module: Any) -> bool:
    """Whether what `_apply` does in it and in its submodules is torch's, in which nothing else happens."""
    return all(
        is_defined_in_torch(one._apply) and getattr(one._apply, "__self__", None) is one for one in module.modules()
    )


def _rewrite(source: str) -> str:
    return rewrite_source(source, OnlyIfOther())


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    from torch import nn

    plain = inspect.unwrap(nn.Module.to)
    code = rewrite_code(plain, OnlyIfOther()) if inspect.isfunction(plain) else None
    if code is None:
        raise NotApplicable("torch.nn.Module.to is not written as it was")
    with swap_code({plain: code}, {_CONVERTS: converts_as_torch}):
        yield call


SHIM = Shim(
    id="module-to-if-other",
    title="Leaves a module alone that forward converts to the dtype and device which it has",
    soundness="exact",
    enter=_enter,
    does=(
        "`self.head = self.head.to(dtype)` in a forward puts a converted tensor in the place of each parameter, also "
        "where nothing changes. Here a module whose parameters and buffers have that dtype and device stays as it is, "
        "unless it or a submodule has an `_apply` of its own."
    ),
    cures=(Cure(message=r"Couldn't swap|Cannot swap", where=r"\.to\("),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to",
    retire="torch.export traces Module.to where nothing changes",
    rank=20,
    replaces=(Replacement(target="torch.nn.modules.module:Module.to", rewrite=_rewrite),),
)
