"""A check of the inputs becomes an assertion of the program where only a run can decide it.

A check is `if condition: raise` or an assertion. It is not dropped: a condition that the tracer knows raises as before,
any other is asserted at run time. That is the same only if what it raises leaves the model: a check that somebody on
the stack may catch is refused.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any

from exportdoctor.shims.caught_exceptions import find_catcher, stack_lines
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import all_code, rewrite_code, swap_code, user_functions
from exportdoctor.shims.rules.code.number_types import symbolic_numbers
from exportdoctor.torch_internals.shape_env import has_unbacked_size

_FAILS, _COMPARE, _NEGATE, _COMBINE = (
    f"_exportdoctor_{name}" for name in ("check_fails", "compare", "negate", "combine")
)
"""Global names beside the user's while the shim holds."""

_WORDS = (".numel()", ".shape", ".size(", ".sum()", ".any()", ".all()", ".max()", ".min()", ".item()", "torch.")
_CAUGHT_UNSEEN = (StopIteration, StopAsyncIteration, GeneratorExit, AttributeError)
"""What generators and getattr catch without a `try`."""

_RAISE = dis.opmap["RAISE_VARARGS"]
_DISTRIBUTIONS = "torch.distributions"
_SIGNS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_TOTAL_CALLS = frozenset(
    {"any", "all", "sum", "isnan", "isinf", "isfinite", "abs", "size", "numel", "dim", "logical_not"}
)
_TOTAL_NODES = (
    ast.expr_context, ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Compare, ast.cmpop, ast.UnaryOp, ast.unaryop,
    ast.BoolOp, ast.boolop, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.BitOr,
)  # fmt: skip
"""Expressions of tensors of these, and calls of these, raise for no values: they can be computed where eager does not
come to them."""


class ChecksDecided(ast.NodeTransformer):
    """`if a != b: raise E` becomes `if check_fails(compare("ne", a, b), "a != b"): raise E`; an assertion likewise.

    `names` are the globals of the code, by which the class of E is found; `computed` are the names of attributes that
    run code when they are read.
    """

    def __init__(self, names: Mapping[str, Any], computed: Collection[str] = ()) -> None:
        self.names, self.computed = names, computed

    def visit_If(self, node: ast.If) -> ast.AST:
        """A check is a condition that does nothing but raise."""
        self.generic_visit(node)
        if len(node.body) == 1 and self._raises(node.body[0]) and not node.orelse and _on_tensors(node.test):
            node.test = self._decision(node.test, ast.unparse(node.test))
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """`assert a, b` as `if not a: raise AssertionError(b)`."""
        if not __debug__ or not _on_tensors(node.test):
            return node
        return self._assertion(node, node.test, [node.msg] if node.msg is not None else [])

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """`torch._assert(a, b)`, which is the same."""
        call = node.value
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "torch._assert" and len(call.args) == 2:
            return self._assertion(node, call.args[0], call.args[1:])
        return node

    def _assertion(self, node: ast.stmt, test: ast.expr, told: list[ast.expr]) -> ast.AST:
        raised = ast.Raise(ast.Call(ast.Name("AssertionError", ast.Load()), told, []), None)
        fails = self._decision(ast.UnaryOp(ast.Not(), test), f"not {ast.unparse(test)}")
        return ast.fix_missing_locations(ast.copy_location(ast.If(fails, [raised], []), node))

    def _decision(self, test: ast.expr, told: str) -> ast.expr:
        symbolic = _symbolic_truth(test, self.computed, raising=True)
        return ast.copy_location(ast.Call(ast.Name(_FAILS, ast.Load()), [symbolic, ast.Constant(told)], []), test)

    def _raises(self, statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.Raise) or statement.exc is None:
            return False
        kind = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        first, *attributes = ast.unparse(kind).split(".")
        found: Any = self.names.get(first, getattr(builtins, first, None))
        for name in attributes:
            found = getattr(found, name, None)
        return isinstance(found, type) and not issubclass(found, _CAUGHT_UNSEEN)


def _symbolic_truth(node: ast.expr, computed: Collection[str], raising: bool | None) -> ast.expr:
    """An expression whose truth is asked, with comparisons, `not`, `and` and `or` as calls that may give a tensor.

    What is inside of anything else stays: there `a and b` is one of its sides, not its truth. `raising` is the truth
    with which the check raises for certain, `None` where neither does: in `if a or b: raise`, b can be computed always,
    because where eager does not come to it, the check raises.
    """
    match node:
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _SIGNS:
            return _call(node, _COMPARE, ast.Constant(_SIGNS[type(sign)]), left, right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _call(node, _NEGATE, _symbolic_truth(operand, computed, None if raising is None else not raising))
        case ast.BoolOp(op=op, values=[first, *others]) if not _binds_or_looks_around(node):
            inner = raising if raising is isinstance(op, ast.Or) else None
            word = ast.Constant("and" if isinstance(op, ast.And) else "or")
            made = _symbolic_truth(first, computed, inner)
            for right in others:
                nothing = ast.arguments([], [], None, [], [], None, [])
                later = ast.Lambda(nothing, _symbolic_truth(right, computed, inner))
                free = inner is not None or _is_total(right, computed)
                made = _call(node, _COMBINE, word, made, later, ast.Constant(free))
            return made
    return node


def _binds_or_looks_around(node: ast.expr) -> bool:
    """Whether it does something else inside of a function of its own."""
    return any(
        isinstance(one, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await)
        or (isinstance(one, ast.Name) and one.id in ("super", "locals"))
        for one in ast.walk(node)
    )


def _is_total(value: ast.expr, computed: Collection[str]) -> bool:
    for one in ast.walk(value):
        if not isinstance(one, _TOTAL_NODES) or (isinstance(one, ast.Attribute) and one.attr in computed):
            return False
        if isinstance(one, ast.Call) and not (
            isinstance(one.func, ast.Attribute) and one.func.attr in _TOTAL_CALLS and not one.keywords
        ):
            return False
    return True


def _call(node: ast.expr, name: str, *args: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(args), []), node)


def _on_tensors(test: ast.expr) -> bool:
    """Whether it may ask for a tensor's values: it calls what gives some, or is made of names alone."""
    plain = ast.Name | ast.UnaryOp | ast.BoolOp | ast.boolop | ast.unaryop | ast.expr_context
    text = ast.unparse(test)
    return any(word in text for word in _WORDS) or all(isinstance(one, plain) for one in ast.walk(test))


def compare(sign: str, left: Any, right: Any) -> Any:
    """The comparison; as a tensor, bool (), where a size that only a run knows is compared with a whole number."""
    import torch

    sizes = [side for side in (left, right) if isinstance(side, torch.SymInt)]
    whole = all(isinstance(side, torch.SymInt) or _is_int64(side) for side in (left, right))
    if whole and any(has_unbacked_size(size) for size in sizes):
        left, right = (torch.scalar_tensor(side, dtype=torch.int64) for side in (left, right))
    return getattr(operator, sign)(left, right)


def negate(value: Any) -> Any:
    """`not value`; a tensor, bool (), where only a run knows."""
    return value.reshape(()).logical_not() if _is_open(value) else not value


def combine(word: str, left: Any, right: Callable[[], Any], free: bool) -> Any:
    """`left and right()` or `left or right()`; a tensor, bool (), where only a run knows the left side, if the right
    one can be computed where eager does not come to it."""
    import torch

    if not _is_open(left) or not free:
        return (left and right()) if word == "and" else (left or right())
    value = right()
    both = torch.logical_and if word == "and" else torch.logical_or
    if _is_open(value):
        return both(left.reshape(()), value.reshape(()))
    return left if bool(value) == (word == "and") else word == "or"


def _is_open(value: Any) -> bool:
    """Whether it is a tensor of one element during an export by tracing."""
    import torch

    exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    return isinstance(value, torch.Tensor) and exporting and all(size == 1 for size in value.shape)


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63


def check_fails(caught: list[str], condition: Any, check: str) -> bool:
    """Whether the check fails for certain; where a run must decide, the program asserts that it does not.

    Raises NotApplicable where somebody may catch what the check raises, and notes it in `caught`: that, too, may be
    caught.
    """
    import torch

    if _is_open(condition):
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
    names = {
        _FAILS: functools.partial(check_fails, caught), _COMPARE: compare, _NEGATE: negate, _COMBINE: combine,
    }  # fmt: skip
    computed = _computed_attributes(call)
    functions = [*user_functions(call, _may_raise), *_checks_of_distributions(call)]
    changes = {
        function: code
        for function in dict.fromkeys(functions)
        if (code := rewrite_code(function, ChecksDecided(function.__globals__, computed))) is not None
    }
    if not changes:
        raise NotApplicable("no submodule has a check of sizes or values that an assertion can replace")
    try:
        with symbolic_numbers(call), swap_code(changes, names):
            yield call
    finally:
        if caught:
            raise NotApplicable(caught[0])


def _may_raise(code: CodeType) -> bool:
    return "_assert" in code.co_names or _RAISE in code.co_code[::2]


def _checks_of_distributions(call: ExportCall) -> Iterator[Any]:
    """What torch.distributions checks of parameters and values, if code of the user's names that package."""
    from torch.distributions import Distribution

    def names_it(value: Any) -> bool:
        return str(getattr(value, "__module__", None) or getattr(value, "__name__", "")).startswith(_DISTRIBUTIONS)

    functions = list(user_functions(call, lambda code: True))
    named = any("distributions" in code.co_names for function in functions for code in all_code(function.__code__))
    files = {id(function.__globals__): function.__globals__ for function in functions}
    if named or any(names_it(value) for names in files.values() for value in list(names.values())):
        yield from (Distribution.__init__, Distribution._validate_sample)


def _computed_attributes(call: ExportCall) -> frozenset[str]:
    """Names that are properties, or have another descriptor, in a class of a module."""
    classes = dict.fromkeys(kind for module in call.module.modules() for kind in type(module).__mro__)
    return frozenset(
        name for kind in classes for name, value in vars(kind).items() if hasattr(type(value), "__get__")
    ) - {"training"}


SHIM = Shim(
    id="check-as-assertion",
    title="Turns data-dependent input checks into assertions of the program",
    soundness="exact",
    enter=_enter,
    does=(
        "An `if condition: raise` on sizes or values is replaced by a function call, and so are assertions and the "
        "checks of torch.distributions. A condition that is known during tracing raises as before; a symbolic one "
        "becomes an assertion that the program checks when it runs. Refused where the code that calls the check may "
        "catch what it raises."
    ),
    cures=(
        Cure(
            kinds=("data_dependent_guard", "data_dependent_value"),
            where=r": (if|elif|raise|assert) .*|: torch\._assert\(|get_placeholder_mask",
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export turns such checks into assertions",
    rank=30,
    replaces=(
        Replacement(
            target="the checks in methods and in functions beside their classes",
            before="if features.numel() != expected.numel():\n    raise ...\n",
            after='if check_fails(compare("ne", features.numel(), expected.numel()), "..."):\n    raise ...\n',
        ),
    ),
)
