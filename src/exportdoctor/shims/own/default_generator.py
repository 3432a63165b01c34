"""`torch.randn(size, generator=None)`: an overload that takes no symbolic sizes, though no generator is given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import Replacement, Shim

_FUNCTIONS = ("rand", "randn", "randint")


def without_no_generator(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`plain`, called without its keyword `generator` where that is None."""

    @functools.wraps(plain)
    def draw(*args: Any, **how: Any) -> Any:
        if how.get("generator", plain) is None:
            del how["generator"]
        return plain(*args, **how)

    return draw


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    with ExitStack() as stack:
        for name in _FUNCTIONS:
            stack.enter_context(patch_attribute(torch, name, without_no_generator(getattr(torch, name))))
        yield call


SHIM = Shim(
    id="default-generator",
    title="Draws random values of symbolic sizes with the default generator: `torch.randn(size, generator=None)`",
    soundness="exact",
    enter=_enter,
    does=(
        "Given `generator`, even None, `torch.rand`, `torch.randn` and `torch.randint` are other operators, which take "
        "no symbolic sizes. Where it is None it is left out: the default generator is used in both cases."
    ),
    cures=(Cure(message="SymIntArrayRef expected to contain only concrete integers", where="rand"),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.randn.html",
    retire="torch.randn with a generator takes symbolic sizes",
    rank=20,
    replaces=(
        Replacement(
            target="torch.rand, torch.randn and torch.randint",
            before="torch.randn(x.shape, generator=None)\n",
            after="torch.randn(x.shape)\n",
        ),
    ),
)
