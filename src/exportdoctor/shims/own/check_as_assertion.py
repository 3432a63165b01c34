"""A check of the inputs, `if condition: raise`, becomes an assertion of the program where only a run can decide it.

The check is not dropped: a condition that the tracer knows raises as before, any other is asserted at run time. That is
the same only if what it raises leaves the model: a check that somebody on the stack may catch is refused.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rewriting import rewrite_function, rewrite_source
from exportdoctor.torch_internals.shape_env import has_unbacked_size

_DECIDE, _COMPARE = "_check_fails", "_compare"

_WORDS = (".numel()", ".shape", ".size(", ".sum()", ".any()", ".all()", ".max()", ".min()")
_CAUGHT_UNSEEN = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "IndexError", "AttributeError")
"""What loops, generators and getattr catch without a `try`."""

_SIGNS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}


class ChecksDecided(ast.NodeTransformer):
    """`if a != b: raise E` becomes `if _check_fails(_compare("ne", a, b)): raise E`."""

    def visit_If(self, node: ast.If) -> ast.AST:
        """A check is a condition that does nothing but raise."""
        self.generic_visit(node)
        if len(node.body) == 1 and _raises(node.body[0]) and not node.orelse and _on_tensors(node.test):
            decided = ast.Call(ast.Name(_DECIDE, ast.Load()), [_ComparisonCalls().visit(node.test)], [])
            node.test = ast.copy_location(decided, node.test)
        return node


class _ComparisonCalls(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) != 1 or type(node.ops[0]) not in _SIGNS:
            return node
        sign = ast.Constant(_SIGNS[type(node.ops[0])])
        call = ast.Call(ast.Name(_COMPARE, ast.Load()), [sign, node.left, node.comparators[0]], [])
        return ast.copy_location(call, node)


def _raises(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Raise) or statement.exc is None:
        return False
    kind = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
    return ast.unparse(kind).rpartition(".")[2] not in _CAUGHT_UNSEEN


def _on_tensors(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return any(word in text for word in _WORDS)


def compare(sign: str, left: Any, right: Any) -> Any:
    """The comparison; as a tensor, bool (), where a size that only a run knows is in it."""
    import torch

    sizes = [side for side in (left, right) if isinstance(side, torch.SymInt)]
    if any(has_unbacked_size(size) for size in sizes):
        left, right = (torch.scalar_tensor(side, dtype=torch.int64) for side in (left, right))
    return getattr(operator, sign)(left, right)


def check_fails(caught: list[str], condition: Any) -> bool:
    """Whether the check fails for certain; where a run must decide, the program asserts that it does not.

    Raises NotApplicable where somebody may catch what the check raises, and notes it in `caught`: that, too, may be
    caught.
    """
    import torch

    exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    if isinstance(condition, torch.Tensor) and exporting:
        if catcher := find_catcher(sys._getframe(1)):
            caught.append(f"what a check raises may be caught at {catcher}")
            raise NotApplicable(caught[0])
        # not `torch._check`: in torch 2.13 it fails on an equality with a size of no known bound
        torch.ops.aten._assert_async.msg(condition.logical_not().all(), "a check of the inputs failed")
        return False
    return bool(condition)


def find_catcher(frame: FrameType | None) -> str:
    """Where an exception raised in `frame` may be caught before it leaves the model, as `file:line`; empty if nowhere.

    The model ends where torch.export called it. torch's own frames and ours let exceptions pass.
    """
    import torch

    folder = Path(torch.__file__).parent
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if any(file.is_relative_to(folder / name) for name in ("export", "_export", "onnx", "jit")):
            return ""
        ours = frame.f_globals is globals() or str(frame.f_globals.get("__name__")).startswith("exportdoctor.")
        if not ours and not file.is_relative_to(folder) and (line := _catching_line(frame)):
            return f"{file.name}:{line}"
        frame = frame.f_back
    return ""


def _catching_line(frame: FrameType) -> int:
    """The line of a `try` or `with` around the frame's line that may stop an exception; 0 if there is none."""
    tree, first, now = _tree_of_file(frame.f_code.co_filename), frame.f_code.co_firstlineno, frame.f_lineno
    if tree is None:
        return now  # code without a source may catch anything
    for node in ast.walk(tree):
        match node:
            case ast.Try() | ast.TryStar() if _holds(node.body, now) and node.lineno >= first and _stops(node):
                return node.lineno
            case ast.With() | ast.AsyncWith() if _holds(node.body, now) and node.lineno >= first:
                if not all(_lets_pass(item.context_expr, frame) for item in node.items):
                    return node.lineno
    return 0


@functools.lru_cache(maxsize=64)
def _tree_of_file(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _holds(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or line)


def _stops(node: ast.Try | ast.TryStar) -> bool:
    """Whether a handler does not end by raising again, or `finally` leaves by another way."""
    leaves = (ast.Return, ast.Break, ast.Continue)
    return any(
        not isinstance(handler.body[-1], ast.Raise) or _leaves(handler.body, leaves) for handler in node.handlers
    ) or (_leaves(node.finalbody, leaves))


def _leaves(body: list[ast.stmt], kinds: tuple[type[ast.stmt], ...]) -> bool:
    return any(isinstance(node, kinds) for statement in body for node in ast.walk(statement))


def _lets_pass(context: ast.expr, frame: FrameType) -> bool:
    """Whether the context manager is one of torch's, or does nothing: others may stop an exception."""
    names = ast.unparse(context.func if isinstance(context, ast.Call) else context).split(".")
    found = frame.f_locals.get(names[0], frame.f_globals.get(names[0]))
    for name in names[1:]:
        found = getattr(found, name, None)
    kind = found if isinstance(context, ast.Call) else type(found)
    return kind is nullcontext or str(getattr(kind, "__module__", "")).partition(".")[0] == "torch"


def _rewrite(source: str) -> str:
    return rewrite_source(source, ChecksDecided())


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    caught: list[str] = []
    names = {_DECIDE: functools.partial(check_fails, caught), _COMPARE: compare}
    changes = [
        (owner, name, new)
        for owner in dict.fromkeys(type(module) for module in call.module.modules())
        for name, method in vars(owner).items()
        if _is_plain(method) and (new := rewrite_function(method, ChecksDecided(), names=names)) is not None
    ]
    if not changes:
        raise NotApplicable("no submodule checks the sizes or values of its inputs")
    try:
        with patch_attributes(changes):
            yield call
    finally:
        if caught:
            raise NotApplicable(caught[0])


def _is_plain(method: Any) -> bool:
    """A method of the user's that is plain; one inside a decorator would lose it."""
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
            after='if _check_fails(_compare("ne", features.numel(), expected.numel())):\n    raise ...\n',
        ),
    ),
)
