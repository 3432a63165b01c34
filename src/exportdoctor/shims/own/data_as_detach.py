"""`tensor.data` in the model's code: `detach()`, which the tracer sees."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.failure.messages import LEAKED_CONSTANT, OF_UNUSED_CONSTANTS
from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import run_copy
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.shims.state_run import memory_of


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    seen: list[bool] = []
    with torch.no_grad(), _patch_data(call.module, seen.append):
        run_copy(call)
    if not seen:
        raise NotApplicable("forward reads no tensor's .data")
    if any(seen):
        raise NotApplicable("forward assigns other memory to a tensor's .data")
    with _patch_data(call.module, lambda _: None):
        yield call


def _patch_data(root: Any, note: Callable[[bool], None]) -> AbstractContextManager[None]:
    """Within it, `.data` of a tensor in code outside of torch that the root's forward runs is its `detach()`; `note`
    is told of each use whether it gives the tensor other memory."""
    import torch

    plain: Any = torch.Tensor.data

    def get_data(self: Any) -> Any:
        if not is_user_file(sys._getframe(1).f_code.co_filename):
            return plain.__get__(self)
        note(False)
        return self.detach()

    def set_data(self: Any, value: Any) -> None:
        if is_user_file(sys._getframe(1).f_code.co_filename):
            note(not _is_same_place(self, value))
        plain.__set__(self, value)

    def wrap(forward: Forward) -> Forward:
        def with_detach(*args: Any, **kwargs: Any) -> Any:
            with patch_attribute(torch.Tensor, "data", property(get_data, set_data)):
                return forward(*args, **kwargs)

        return with_detach

    return patch_root_forward(root, wrap)


def _is_same_place(one: Any, other: Any) -> bool:
    """Whether the elements are at the same places in memory, as with `x.data += y`."""
    layouts = [(tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in (one, other)]
    return layouts[0] == layouts[1] and memory_of(one) == memory_of(other)


SHIM = Shim(
    id="data-as-detach",
    title="Takes `detach()` of a tensor in place of its `.data`",
    soundness="exact",
    enter=_enter,
    does=(
        "`self.weight.data` gives the tensor past the tracer: a constant without values in the program, which torch "
        "refuses. `detach()` gives the same values in the same memory, without gradients too, and is traced. The "
        "code of torch itself and generated code keep `.data`. Not applicable where forward assigns to it."
    ),
    cures=(Cure(message=LEAKED_CONSTANT), Cure(message=r"^StopIteration", where=f":{OF_UNUSED_CONSTANTS}: ")),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html",
    retire="torch.export traces `.data`",
    rank=20,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="`.data` of a tensor",
            before="weight = self.base.weight.data\n",
            after="weight = self.base.weight.detach()\n",
        ),
    ),
)
