"""A check of the inputs, `if condition: raise`, becomes an assertion of the program where only a run can decide it.

The check is not dropped: a condition that the tracer knows raises as before, any other is asserted at run time. That is
the same only if what it raises leaves the model: a check that somebody on the stack may catch is refused.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import operator
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.shims.caught_exceptions import find_catcher, stack_lines
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code_swap import rewrite_code, swap_code
from exportdoctor.torch_internals.shape_env import has_unbacked_size

_DECIDE, _COMPARE = "_exportdoctor_check_fails", "_exportdoctor_compare"
"""Global names beside the user's while the shim holds."""

_WORDS = (".numel()", ".shape", ".size(", ".sum()", ".any()", ".all()", ".max()", ".min()")
_CAUGHT_UNSEEN = (StopIteration, StopAsyncIteration, GeneratorExit, IndexError, AttributeError)
"""What loops, generators and getattr catch without a `try`."""

_SIGNS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}


class ChecksDecided(ast.NodeTransformer):
    """`if a != b: raise E` becomes `if check_fails(compare("ne", a, b), "a != b"): raise E`.

    `names` are the globals of the code, by which the class of E is found.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def visit_If(self, node: ast.If) -> ast.AST:
        """A check is a condition that does nothing but raise."""
        self.generic_visit(node)
        if len(node.body) == 1 and self._raises(node.body[0]) and not node.orelse and _on_tensors(node.test):
            check = ast.Constant(ast.unparse(node.test))
            decided = ast.Call(ast.Name(_DECIDE, ast.Load()), [_ComparisonCalls().visit(node.test), check], [])
            node.test = ast.copy_location(decided, node.test)
        return node

    def _raises(self, statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.Raise) or statement.exc is None:
            return False
        kind = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        first, *attributes = ast.unparse(kind).split(".")
        found: Any = self.names.get(first, getattr(builtins, first, None))
        for name in attributes:
            found = getattr(found, name, None)
        return isinstance(found, type) and not issubclass(found, _CAUGHT_UNSEEN)


class _ComparisonCalls(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) != 1 or type(node.ops[0]) not in _SIGNS:
            return node
        sign = ast.Constant(_SIGNS[type(node.ops[0])])
        call = ast.Call(ast.Name(_COMPARE, ast.Load()), [sign, node.left, node.comparators[0]], [])
        return ast.copy_location(call, node)


def _on_tensors(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return any(word in text for word in _WORDS)


def compare(sign: str, left: Any, right: Any) -> Any:
    """The comparison; as a tensor, bool (), where a size that only a run knows is compared with a whole number."""
    import torch

    sizes = [side for side in (left, right) if isinstance(side, torch.SymInt)]
    whole = all(isinstance(side, torch.SymInt) or _is_int64(side) for side in (left, right))
    if whole and any(has_unbacked_size(size) for size in sizes):
        left, right = (torch.scalar_tensor(side, dtype=torch.int64) for side in (left, right))
    return getattr(operator, sign)(left, right)


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63


def check_fails(caught: list[str], condition: Any, check: str) -> bool:
    """Whether the check fails for certain; where a run must decide, the program asserts that it does not.

    Raises NotApplicable where somebody may catch what the check raises, and notes it in `caught`: that, too, may be
    caught.
    """
    import torch

    exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    if isinstance(condition, torch.Tensor) and exporting:
        if catcher := find_catcher(stack_lines(sys._getframe(1), globals())):
            caught.append(f"what a check raises may be caught at {catcher}")
            raise NotApplicable(caught[0])
        # not `torch._check`: in torch 2.13 it fails on an equality with a size of no known bound
        torch.ops.aten._assert_async.msg(condition.logical_not().all(), f"a check of the inputs failed: {check}")
        return False
    return bool(condition)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    caught: list[str] = []
    names = {_DECIDE: functools.partial(check_fails, caught), _COMPARE: compare}
    changes = {
        method: code
        for owner in dict.fromkeys(type(module) for module in call.module.modules())
        for method in vars(owner).values()
        if _is_plain(method) and (code := rewrite_code(method, ChecksDecided(method.__globals__))) is not None
    }
    if not changes:
        raise NotApplicable("no submodule checks the sizes or values of its inputs")
    try:
        with swap_code(changes, names):
            yield call
    finally:
        if caught:
            raise NotApplicable(caught[0])


def _is_plain(method: Any) -> bool:
    """A method of the user's that is plain, not one inside a decorator."""
    return inspect.isfunction(method) and not is_defined_in_torch(method) and not hasattr(method, "__wrapped__")


SHIM = Shim(
    id="check-as-assertion",
    title="Turns data-dependent input checks into assertions of the program",
    soundness="exact",
    enter=_enter,
    does=(
        "An `if condition: raise` on sizes or values in a method is replaced by a function call. A "
        "condition that is known during tracing raises as before; a symbolic one becomes an assertion "
        "that the program checks when it runs. Refused where the code that calls the check may catch what it raises."
    ),
    cures=(
        Cure(
            kinds=("data_dependent_guard", "data_dependent_value"),
            where=r": (if|elif|raise) .*|get_placeholder_mask",
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export turns such checks into assertions",
    rank=30,
    replaces=(
        Replacement(
            target="the checks in the methods of submodules",
            before="if features.numel() != expected.numel():\n    raise ...\n",
            after='if check_fails(compare("ne", features.numel(), expected.numel()), "..."):\n    raise ...\n',
        ),
    ),
)
