"""`opt_einsum` takes the sizes of its operands as numbers. Here it gets those of the example for symbolic ones."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.torch_internals.shape_env import example_size


def _with_example_sizes(get_shape: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A size that values decide on is given as one, which fits to each other size of that label."""

    def shape_of_example(operand: Any) -> Any:
        return tuple(map(example_size, get_shape(operand)))

    return shape_of_example


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    try:
        parser: Any = importlib.import_module("opt_einsum.parser")
    except ImportError:
        raise NotApplicable("opt_einsum is not installed: torch.einsum asks for no size") from None
    if not hasattr(parser, "get_shape"):
        raise NotApplicable("opt_einsum is older than 3.4")
    with patch_attribute(parser, "get_shape", _with_example_sizes(parser.get_shape)):
        yield call


SHIM = Shim(
    id="einsum-path-of-example",
    title="Lets opt_einsum choose the order of a contraction by the example's sizes",
    soundness="exact",
    enter=_enter,
    does=(
        "Where opt_einsum is installed, `torch.einsum` of three or more operands asks it in which order to contract "
        "them. It converts their sizes to numbers, which fixes dynamic ones. Here it gets the sizes of the example. "
        "Every order gives the same result up to rounding; for other sizes another one may be faster."
    ),
    cures=(
        Cure(kinds=("dynamic_dim_specialised",), guard=r"einsum|\bcontract(_path|_expression)?\b"),
        Cure(kinds=("data_dependent_value", "data_dependent_guard"), where=r"einsum|\bcontract(_path|_expression)?\b"),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.einsum.html",
    retire="torch.einsum chooses an order for symbolic sizes",
    rank=12,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="the sizes that opt_einsum is given",
            before="opt_einsum.contract_path(equation, *operands)\n",
            after="opt_einsum.contract_path(equation, *sizes_of_the_example, shapes=True)\n",
        ),
    ),
)
