"""`if` on a tensor's value becomes a choice in the program, `torch.where` or `torch.cond`, where its arms are pure.

The conditions are found by running forward: every place where Python asks a tensor for its value. The function is
rewritten by its syntax tree (`arm_choice.py` has what the code then calls). What cannot be chosen between (other sizes,
dtypes or Python values) stays a branch, and fails as before.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.arm_choice import BOTH, CHOOSE, EITHER, EQUAL, NOT, NUMBER, VALUE, ArmChoices
from exportdoctor.shims.rules.asked_lines import asked_lines
from exportdoctor.shims.rules.code_swap import ARM, compile_for, definition_of, owners_of
from exportdoctor.shims.rules.loop_exits import LoopExits, asks_for_flags, is_flag
from exportdoctor.shims.rules.made_code import call_of, load, thunk
from exportdoctor.shims.rules.name_flow import READS_ALL_NAMES
from exportdoctor.shims.rules.observed_rewrite import run_rewritten
from exportdoctor.shims.rules.pure_code import Purity

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
# --- how code is rewritten


def _condition(node: ast.expr) -> ast.expr:
    """A condition with tensors kept as tensors: no `bool()` or `.item()`, and operators for `and`, `or`, `not`.

    Only where nothing but its truth counts: `(a or b) > 3` asks for a value, and is left as it is.
    """
    match node:
        case ast.BoolOp(op=op, values=values):
            *rest, last = map(_condition, values)
            for value in reversed(rest):
                last = call_of(BOTH if isinstance(op, ast.And) else EITHER, value, thunk(last))
            return last
        case ast.UnaryOp(op=ast.Not(), operand=value):
            return call_of(NOT, _condition(value))
        case ast.Call(func=ast.Name(id="bool"), args=[value], keywords=[]):
            return _condition(value)
        case ast.Call(func=ast.Attribute(attr="item"), args=[], keywords=[]):
            return _read_by_item(node) or node
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="equal"), args=[one, other], keywords=[]):
            return call_of(EQUAL, one, other)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(isinstance(op, _ORDERS) for op in ops):
            chain = zip((left, *others), ops, others, strict=False)
            pairs = [ast.Compare(a, [op], [b]) for one, op, other in chain for a, b in [_numbers(one, other)]]
            last = pairs.pop()
            for pair in reversed(pairs):
                last = call_of(BOTH, pair, thunk(last))
            return last
    return node


def _numbers(one: ast.expr, other: ast.expr) -> tuple[ast.expr, ast.expr]:
    """The two sides of a comparison, where one is a number that `.item()` reads from a tensor as what that compares."""
    reads = [_read_by_item(side) for side in (one, other)]
    if reads == [None, None]:
        return one, other
    both = ast.Constant(None not in reads)
    a, b = (
        call_of(NUMBER, read or side, ast.Constant(read is not None), thunk(other_read or other_side), both)
        for side, read, other_side, other_read in zip((one, other), reads, (other, one), reads[::-1], strict=True)
    )
    return a, b


def _read_by_item(side: ast.expr) -> ast.expr | None:
    match side:
        case ast.Call(func=ast.Attribute(value=value, attr="item"), args=[], keywords=[]):
            return value
    return None


class OpenConditions:
    """Which conditions only a run can know: those at one of `lines`, or of a name that was bound there."""

    def __init__(self, lines: frozenset[int], node: ast.FunctionDef) -> None:
        self.lines = lines
        bound = (one for one in ast.walk(node) if isinstance(one, ast.Assign) and self.asks(one.value))
        self.names = {name.id for one in bound for target in one.targets for name in ast.walk(target)
                      if isinstance(name, ast.Name)}  # fmt: skip

    def asks(self, node: ast.expr) -> bool:
        """Whether a value is asked for there."""
        return any(getattr(one, "lineno", 0) in self.lines for one in ast.walk(node))

    def is_open(self, test: ast.expr) -> bool:
        """Whether a condition is one of them."""
        return self.asks(test) or bool(self.names & {one.id for one in ast.walk(test) if isinstance(one, ast.Name)})


class _Merging(ast.NodeTransformer):
    """Branches whose condition is one of `lines`, or a name that was bound there, become calls of `choose_arm`."""

    def __init__(self, purity: Purity, lines: frozenset[int], node: ast.FunctionDef) -> None:
        self.purity, self.open, self.count = purity, OpenConditions(lines, node), 0
        self.inside = 0  # an arm that was not taken may ask for values that nobody saw
        self.written = {name for one in ast.walk(node) for name in _written_names(one)}
        self.used: dict[int, set[str]] = {}
        tries = [one for one in ast.walk(node) if isinstance(one, ast.Try)]
        self.tried = {id(one) for outer in tries for one in ast.walk(outer)}

    def _is_open(self, test: ast.expr) -> bool:
        return self.inside > 0 or self.open.is_open(test)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = _with_returns_last(node.body, self._is_open)
        self.used = {id(one): names for one, names in _names_used_elsewhere(node)}
        node.body = self._block(node.body)
        return node

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [new for one in statements for new in self._statement(one)]

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return [node]
        if isinstance(node, ast.Assign) and is_flag(node):
            node.value = _condition(node.value)
            return [node]
        if isinstance(node, ast.If) and self._is_open(node.test) and not self.purity.without_messages([node]):
            self.count += 1
            return [ast.copy_location(ast.Pass(), node)]
        merges = isinstance(node, ast.If) and self._is_open(node.test) and self._may_merge(node)
        purity = self.purity
        self.purity = purity.inside(node) if isinstance(node, ast.For) else purity
        self.inside += merges
        for name in ("body", "orelse", "finalbody"):
            if isinstance(inner := getattr(node, name, None), list):
                setattr(node, name, self._block(inner))
        self.inside -= merges
        self.purity = purity
        if merges and isinstance(node, ast.If):
            return self._merge_arms(node)
        for name in ("value", "test"):
            if isinstance(value := getattr(node, name, None), ast.expr):
                setattr(node, name, _Choices(self).visit(value))
        return [node]

    def _may_merge(self, node: ast.If) -> bool:
        arms, pure = (node.body, node.orelse), self.purity
        returns = [any(isinstance(one, ast.Return) for part in arm for one in ast.walk(part)) for arm in arms]
        ends = all(arm and isinstance(arm[-1], ast.Return) for arm in arms)
        leaves = any(isinstance(one, ast.Break | ast.Continue) for arm in arms for one in arm)
        inside = sum(isinstance(one, ast.Return) for arm in arms for part in arm[:-1] for one in ast.walk(part))
        bound = [{one.id for part in arm for one in _stored_names(part)} for arm in arms]
        if id(node) in self.tried and bound[0] != bound[1]:
            return False  # that a name is not bound may be caught
        return (
            (not any(returns) or (ends and not inside))
            and not leaves
            and not self.written & (bound[0] | bound[1])
            and pure.of_expression(node.test)
            and all(pure.of_statements(arm) for arm in arms)
        )

    def _merge_arms(self, node: ast.If) -> list[ast.stmt]:
        self.count += 1
        ends = bool(node.orelse) and isinstance(node.body[-1], ast.Return)
        stored = {one.id for arm in (node.body, node.orelse) for part in arm for one in _stored_names(part)}
        names = sorted(stored & self.used.get(id(node), stored))
        arms = [f"{ARM}_{self.count}_{place}" for place in (1, 2)]
        result = ast.Return(ast.Tuple([load(name) for name in names], ast.Load()))
        made: list[ast.stmt] = [
            _function(arm, names, list(body) if ends else [*body, result])
            for arm, body in zip(arms, (node.body, node.orelse), strict=True)
        ]
        before = [call_of(VALUE, thunk(load(name))) for name in names]
        call = _choice(self.name, node.test, *(load(arm) for arm in arms), *before)
        target = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        last = ast.Return(call) if ends else ast.Assign([target], call) if names else ast.Expr(call)
        return [ast.copy_location(one, node) for one in (*made, last)]

    @property
    def name(self) -> ast.expr:
        """That of the branch that was counted last, unlike that of any other."""
        return ast.Constant(f"{self.purity.function.__module__}.{self.purity.function.__qualname__}:{self.count}")


class _Choices(ast.NodeTransformer):
    """`a if condition else b`."""

    def __init__(self, merging: _Merging) -> None:
        self.merging = merging

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        pure = self.merging.purity.of_expression
        if not self.merging._is_open(node.test) or not all(map(pure, (node.test, node.body, node.orelse))):
            return node
        self.merging.count += 1
        return ast.copy_location(_choice(self.merging.name, node.test, thunk(node.body), thunk(node.orelse)), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return node


def _with_returns_last(body: list[ast.stmt], is_open: Callable[[ast.expr], bool]) -> list[ast.stmt]:
    """`if c: return a`, then `rest`: the rest becomes the other arm, so that both end with a return."""
    for place, node in enumerate(body):
        if isinstance(node, ast.If) and is_open(node.test) and isinstance(node.body[-1], ast.Return):
            rest = _with_returns_last([*node.orelse, *body[place + 1 :]], is_open)
            if not rest or not isinstance(rest[-1], ast.Return | ast.If):
                rest = [*rest, ast.copy_location(ast.Return(ast.Constant(None)), node)]
            return [*body[:place], ast.copy_location(ast.If(node.test, node.body, rest), node)]
    return body


def _written_names(node: ast.AST) -> Iterator[str]:
    """The name of a value that is written into: what is chosen is a copy, so that the write would be lost to others."""
    match node:
        case ast.AugAssign(target=ast.Name(id=name)):
            yield name
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
            yield name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method.endswith("_"):
            yield name


def _stored_names(node: ast.stmt) -> Iterator[ast.Name]:
    if isinstance(node, ast.FunctionDef):
        return
    yield from (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


def _names_used_elsewhere(function: ast.FunctionDef) -> Iterator[tuple[ast.If, set[str]]]:
    """Each branch outside loops, and the names that are bound or read outside its arms; others are its arms' own."""
    loops = [one for one in ast.walk(function) if isinstance(one, ast.For | ast.While)]
    repeated = {id(one) for loop in loops for one in ast.walk(loop)}
    for node in ast.walk(function):
        if isinstance(node, ast.If) and id(node) not in repeated:
            yield node, set(_names(function) - _names(*node.body, *node.orelse))


def _names(*nodes: ast.AST) -> Counter[str]:
    every = (one for node in nodes for one in ast.walk(node))
    return Counter(
        one.arg if isinstance(one, ast.arg) else one.id for one in every if isinstance(one, ast.arg | ast.Name)
    )


def _choice(name: ast.expr, test: ast.expr, *arms: ast.expr) -> ast.expr:
    asked = ast.keyword("asked", thunk(copy.deepcopy(test)))
    return ast.Call(load(CHOOSE), [name, _condition(copy.deepcopy(test)), *arms], [asked])


def _function(name: str, parameters: list[str], body: list[ast.stmt]) -> ast.stmt:
    arguments = ast.arguments([], [ast.arg(one) for one in parameters], None, [], [], None, [])
    return ast.FunctionDef(name, arguments, body, [], None, None)


def rewrite_branches(
    function: FunctionType, lines: frozenset[int], instances: tuple[Any, ...]
) -> ast.FunctionDef | None:
    """The definition with its open branches merged; `None` where there is none that can be."""
    node = definition_of(function)
    if node is None or READS_ALL_NAMES & {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}:
        return None
    # where a condition begins below its `if`, Python names the line of the `if` as the one that asks
    conditions = (one for one in ast.walk(node) if isinstance(one, ast.If | ast.IfExp) and one.lineno in lines)
    lines |= {one.test.lineno for one in conditions}
    purity, plain = Purity(function=function, instances=instances), copy.deepcopy(node)
    LoopExits(purity, OpenConditions(lines, node).is_open).of_function(node)
    for one in (node, plain):
        merging = _Merging(purity, lines, one)
        changed = merging.visit(one)
        if not asks_for_flags(changed):
            break
    return changed if merging.count else None


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    changes, choices = {}, ArmChoices()
    for function, lines in asked_lines(call).items():
        node = rewrite_branches(function, lines, owners_of(call, function))
        code = compile_for(function, node) if node is not None else None
        if code is not None:
            changes[function] = code
    if not changes:
        raise NotApplicable("no function branches on a tensor's value with arms that only compute")
    with run_rewritten(call, choices, choices.names, changes) as given:
        yield given


SHIM = Shim(
    id="branch-as-where",
    title="Makes a branch on tensor values a choice in the program, by torch.where or torch.cond",
    soundness="precondition",
    enter=_enter,
    does=(
        "An `if` on the value of a tensor, such as a clamp of values that overflow or an early return, is "
        "rewritten in the function's syntax tree: both arms are computed, and the program chooses between "
        "their results. Two numbers of one type give a number, which is read from such a choice. Where an arm may "
        "refuse the values for which it is not taken (it looks up places, divides whole numbers, raises, or gives "
        "NaN), torch.cond computes one arm only; the shim does not apply where torch does not take them. Arms must "
        "only compute: assignments to local names, no writes, no raise. What an arm prints, warns or logs is left out "
        "of the program, with the whole branch where it does nothing else. A loop that is left where a value says so, "
        "by `break` or `return`, is run to its end, and its later steps change nothing. The shim does not apply where "
        "a tensor that was chosen, or was chosen from, is written into later."
    ),
    precondition=(
        "arms that torch.where chooses between, and both sides of `and` and `or`, can be computed in any case; a whole "
        "number that is compared with a float is at most 2**53 (the program asserts it); nobody needs what such an "
        "arm prints, warns or logs (no exported program does that)"
    ),
    cures=(Cure(kinds=("data_dependent_value", "data_dependent_guard")),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export converts such branches",
    rank=20,
    replaces=(
        Replacement(
            target="the functions that branch on a tensor's value",
            before="if torch.isinf(x).any():\n    x = x.clamp(-limit, limit)\n",
            after=(
                "def _arm_1_1(x):\n    x = x.clamp(-limit, limit)\n    return (x,)\n\n"
                "def _arm_1_2(x):\n    return (x,)\n\n"
                "(x,) = _choose_arm(\n    'forward:1', torch.isinf(x).any(), _arm_1_1, _arm_1_2, "
                "_value_of(lambda *_arm: x),\n    asked=lambda *_arm: torch.isinf(x).any(),\n)\n"
            ),
        ),
    ),
)
