"""Values of the example that torch computes beside fake ones while it traces, to decide by them what it could not."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.graph_modules import program_nodes
from exportdoctor.torch_internals.hook import Hook
from exportdoctor.torch_internals.shape_env import fill_in_sizes

_SETTING = "fake_tensor_propagate_real_tensors"
_TOLD = re.compile(r"Runtime assertion failed for expression (.+?) on node")
_BOUND = re.compile(r"(\w+) (>=|<=) (-?\d+)")
_FAR = 2**62
_COPY = "_safe_copy"
_COMPARISON = "_maybe_infer_fake_kernel_from_pytree_out"
_DECIDED = "propagate_real_tensors"
"""How the message of an assertion begins that torch adds where it has decided by the example."""


@contextmanager
def decide_by_example(may_assume: Callable[[Any, Any], bool]) -> Iterator[None]:
    """Within it, torch computes the example's values beside fake tensors, as `torch.export.draft_export` does.

    A question that depends on values is then answered as for the example, and the program asserts the answer: a
    condition, as torch.fx's symbolic expression. Where `may_assume(env, condition)` is false, what torch raises for
    such a question is raised.
    """
    import torch._functorch.config as config
    from torch._subclasses import meta_utils
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    plain = ShapeEnv.guard_or_defer_runtime_assert

    @functools.wraps(plain)
    def assert_if_it_may_be(env: Any, condition: Any, message: str, *rest: Any, **kwargs: Any) -> Any:
        if message.startswith(_DECIDED) and not may_assume(env, condition):
            asked = condition if message.endswith(("True", "False")) else condition.lhs  # a number: value == 5
            raise env._make_data_dependent_error(fill_in_sizes(env, asked), asked)
        return plain(env, condition, message, *rest, **kwargs)

    with (
        patch_attribute(ShapeEnv, plain.__name__, assert_if_it_may_be),
        patch_attribute(FakeTensorMode, _COMPARISON, _keep_fake),
        patch_attribute(meta_utils, _COPY, _copy_values),
        config.patch({_SETTING: True}),
    ):
        yield


def _copy_values(target: Any, source: Any) -> None:
    """In place of torch's, which copies plain tensors alone: the values of a parameter would be what memory holds."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(source, torch.Tensor) and not isinstance(source, FakeTensor):
        target.copy_(source.detach().as_subclass(torch.Tensor))


def _keep_fake(mode: Any, operator: Any, fake_inputs: Any, real_inputs: Any, fake_output: Any, real_output: Any) -> Any:
    """In place of torch's comparison of fake outputs with real ones, which fixes the offset of each view."""
    return fake_output


def assertions_of(program: Any) -> Iterator[Any]:
    """The nodes of an exported program that assert a condition on numbers."""
    return (node for node in program_nodes(program) if "_assert_scalar" in str(node.target))


def find_unasserted(program: Any, conditions: Iterable[Any]) -> str:
    """The first of the conditions that an exported program does not assert; empty where it asserts all.

    torch 2.13 loses some: it keeps no bound of a size below two, none of a float, and no expression that makes a
    whole number of a float. A bound of one symbol may be asserted as a narrower one.
    """
    from torch.fx.experimental.symbolic_shapes import canonicalize_bool_expr

    found = {told[1] for node in assertions_of(program) if (told := _TOLD.search(str(node.args[1:])))}
    for condition in conditions:
        asserted = str(condition) in found or str(canonicalize_bool_expr(condition)) in found
        if not asserted and not _follows_from_bounds(condition, found):
            return str(condition)
    return ""


def _follows_from_bounds(condition: Any, asserted: Collection[str]) -> bool:
    """Whether it is a bound of one whole number, and asserted bounds of that are as narrow or narrower."""
    import sympy  # type: ignore[import-untyped]

    if not isinstance(condition, sympy.Lt | sympy.Le | sympy.Gt | sympy.Ge) or len(condition.free_symbols) != 1:
        return False
    (symbol,) = condition.free_symbols
    if not symbol.is_integer or not all(one == symbol or one.is_Integer for one in condition.args):
        return False
    bounds = [told for told in map(_BOUND.fullmatch, asserted) if told is not None and told[1] == str(symbol)]
    lower = max((int(told[3]) for told in bounds if told[2] == ">="), default=-_FAR)
    upper = min((int(told[3]) for told in bounds if told[2] == "<="), default=_FAR)
    return all(condition.subs(symbol, end) == sympy.true for end in (lower, upper))


def can_only_be_zero_or_one(env: Any, symbol: Any) -> bool:
    """Whether a symbol stands for a condition, as that of a boolean tensor."""
    found = env.var_to_range.get(symbol)
    return found is not None and bool(found.lower >= 0) and bool(found.upper <= 1)


def is_one_number(env: Any, symbol: Any) -> bool:
    """Whether what is known of a symbol leaves one number."""
    found = env.var_to_range.get(symbol)
    return found is not None and bool(found.lower == found.upper)


_NAMES = ("guard_or_defer_runtime_assert", "_make_data_dependent_error", "var_to_range")


def _carries_values() -> bool:
    import torch._functorch.config as config
    from torch._subclasses import meta_utils
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    return all(
        (
            hasattr(config, _SETTING),
            hasattr(FakeTensorMode, _COMPARISON),
            hasattr(meta_utils, _COPY),
            *(hasattr(env, name) for name in _NAMES),
        )
    )


EXAMPLE_VALUES = Hook(
    id="example-values",
    api=(
        f"torch._functorch.config.{_SETTING}, FakeTensorMode.{_COMPARISON}, meta_utils.{_COPY}, "
        f"ShapeEnv.{{{', '.join(_NAMES)}}}"
    ),
    used_for="the shim branches-as-example, which decides conditions on values as for the example",
    lost="that shim is not applicable",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_carries_values,
)

HOOKS = (EXAMPLE_VALUES,)
