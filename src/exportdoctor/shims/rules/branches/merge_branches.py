"""Rewrites branches as calls of a function that chooses between their arms, where these only compute.

`arm_choice.py` has what the code then calls.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from exportdoctor.shims.rules.branches.arm_choice import (
    ALL,
    ANY,
    BOTH,
    CHOOSE,
    EITHER,
    EQUAL,
    LENGTH,
    NOT,
    NUMBER,
    VALUE,
    WITHIN,
)
from exportdoctor.shims.rules.branches.arm_writes import COPY, OWN_TENSOR, WRITTEN, is_copy, own_of_arm
from exportdoctor.shims.rules.branches.loop_exits import LEFT, exits_in, is_flag
from exportdoctor.shims.rules.code.code_swap import ARM, name_of
from exportdoctor.shims.rules.code.made_code import call_of, load, thunk
from exportdoctor.shims.rules.code.name_flow import OTHER_SCOPES, all_names, is_read_first, stored_names
from exportdoctor.shims.rules.code.name_uses import identified_names
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.shims.rules.code.writes import WRITE_BACK, is_in_place_update

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def keep_tensors(node: ast.expr) -> ast.expr:
    """A condition with tensors kept as tensors: no `bool()` or `.item()`, sizes for `len`, and operators for `and`,
    `or`, `not`, `in`, `any`, `all`.

    Only where nothing but its truth counts: `(a or b) > 3` asks for a value, and is left as it is.
    """
    match node:
        case ast.BoolOp(op=op, values=values):
            *rest, last = map(keep_tensors, values)
            for value in reversed(rest):
                last = call_of(BOTH if isinstance(op, ast.And) else EITHER, value, thunk(last))
            return last
        case ast.UnaryOp(op=ast.Not(), operand=value):
            return call_of(NOT, keep_tensors(value))
        case ast.Call(func=ast.Name(id="bool"), args=[value], keywords=[]):
            return keep_tensors(value)
        case ast.Call(func=ast.Name(id="len")):
            return _with_length(node)
        case ast.Call(func=ast.Name(id="any" | "all" as name) as function, args=[values], keywords=[]):
            if isinstance(values, ast.GeneratorExp | ast.ListComp):
                kept = copy.copy(values)
                kept.elt = keep_tensors(values.elt)
                return call_of(ANY if name == "any" else ALL, function, thunk(kept), thunk(values))
            parts = values.elts if isinstance(values, ast.List | ast.Tuple) else []
            if parts and not any(isinstance(one, ast.Starred) for one in parts):
                each = ast.List(list(map(keep_tensors, parts)), ast.Load())
                return call_of(ANY if name == "any" else ALL, function, thunk(each), thunk(values))
        case (
            ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="is_nonzero"), args=[value], keywords=[])
            | ast.Call(func=ast.Attribute(value=value, attr="is_nonzero"), args=[], keywords=[])
        ):
            return value
        case ast.Call(func=ast.Attribute(attr="item"), args=[], keywords=[]):
            return _read_by_item(node) or node
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="equal"), args=[one, other], keywords=[]):
            return call_of(EQUAL, one, other)
        case ast.Compare(left=value, ops=[ast.In() | ast.NotIn() as op], comparators=[container]):
            within = call_of(WITHIN, value, container)
            return within if isinstance(op, ast.In) else call_of(NOT, within)
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
    reads = [_read_number(side) for side in (one, other)]
    one, other = map(_with_length, (one, other))
    if reads == [None, None]:
        return one, other
    both = ast.Constant(None not in reads)
    known = [read or (side, ast.Constant(None)) for side, read in zip((one, other), reads, strict=True)]
    (a, b), (c, d) = known
    return call_of(NUMBER, a, b, thunk(c), both), call_of(NUMBER, c, d, thunk(a), both)


def _with_length(node: ast.expr) -> ast.expr:
    """A number, as a size where it is `len` of a tensor, or reckoned with that."""
    match node:
        case ast.BinOp(left=one, op=op, right=other):
            return ast.BinOp(_with_length(one), op, _with_length(other))
        case ast.Call(func=ast.Name(id="len") as function, args=[value], keywords=[]) if not isinstance(
            value, ast.Starred
        ):
            return call_of(LENGTH, function, value)
    return node


def _read_number(side: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """What a number is read from, and how: by `item`, or by `float` as the code has it."""
    match side:
        case ast.Call(func=ast.Attribute(value=value, attr="item"), args=[], keywords=[]):
            return value, ast.Constant("item")
        case ast.Call(func=ast.Name(id="float"), args=[value], keywords=[]) if not isinstance(value, ast.Constant):
            return value, load("float")
    return None


def _read_by_item(side: ast.expr) -> ast.expr | None:
    match side:
        case ast.Call(func=ast.Attribute(value=value, attr="item"), args=[], keywords=[]):
            return value
    return None


class OpenConditions:
    """Which conditions only a run can know: those at one of `lines`, of a name that was bound there, or of one of
    `names`."""

    def __init__(self, lines: frozenset[int], node: ast.FunctionDef, names: Collection[str] = ()) -> None:
        self.lines = lines
        bound = (one for one in ast.walk(node) if isinstance(one, ast.Assign) and self.asks(one.value))
        self.names = {name.id for one in bound for target in one.targets for name in ast.walk(target)
                      if isinstance(name, ast.Name)} | {*names}  # fmt: skip

    def asks(self, node: ast.expr) -> bool:
        """Whether a value is asked for there."""
        return any(getattr(one, "lineno", 0) in self.lines for one in ast.walk(node))

    def is_open(self, test: ast.expr) -> bool:
        """Whether a condition is one of them."""
        return self.asks(test) or bool(self.names & {one.id for one in ast.walk(test) if isinstance(one, ast.Name)})


class MergedBranches(ast.NodeTransformer):
    """Branches of `node` whose condition is `open_` become calls of `choose`, with it in the form that `condition`
    gives it. `within` tells their names from those of other nodes of the function. With `truths`, `choose` is told
    which results are of these names, which are only asked whether they hold."""

    def __init__(
        self,
        purity: Purity,
        open_: OpenConditions,
        node: ast.FunctionDef,
        *,
        choose: str = CHOOSE,
        condition: Callable[[ast.expr], ast.expr] = keep_tensors,
        within: str = "",
        truths: Collection[str] | None = None,
    ) -> None:
        self.purity, self.open, self.count = purity, open_, 0
        self.choose, self.condition, self.within, self.truths = choose, condition, within, truths
        self.inside = 0  # an arm that was not taken may ask for values that nobody saw
        self.writes = [(name, one) for one in ast.walk(node) for name in _written_names(one) if not is_copy(name)]
        again = (ast.For, ast.While, *OTHER_SCOPES)
        repeated = [one for one in ast.walk(node) if one is not node and isinstance(one, again)]
        self.repeated = {id(one) for part in repeated for one in ast.walk(part)}
        self.function = node
        self.copies = frozenset(filter(is_copy, all_names(node)))
        self.identified = {name for one in ast.walk(node) for name in identified_names(one)}
        self.own: dict[int, list[frozenset[str]]] = {}
        self.used: dict[int, set[str]] = {}
        tries = [one for one in ast.walk(node) if isinstance(one, ast.Try)]
        self.tried = {id(one) for outer in tries for one in ast.walk(outer)}

    def _is_open(self, test: ast.expr) -> bool:
        return self.inside > 0 or self.open.is_open(test)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = with_returns_last(node.body, self._is_open)
        self.used = {id(one): names for one, names in _names_used_elsewhere(node)}
        node.body = self._block(node.body)
        return node

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [new for one in statements for new in self._statement(one)]

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) or (
            isinstance(node, ast.While) and self._ends_by_value(node)
        ):
            return [node]
        if isinstance(node, ast.Assign) and is_flag(node):
            node.value = self.condition(node.value)
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

    def _ends_by_value(self, loop: ast.While) -> bool:
        """Whether a tensor's value ends it: to choose between arms of its steps is left to `while_loops.py`."""
        branches = [one for part in loop.body for one in ast.walk(part) if isinstance(one, ast.If)]
        return any(map(self.open.asks, (loop.test, *(one.test for one in branches if any(exits_in(one))))))

    def _may_merge(self, node: ast.If) -> bool:
        arms, pure = (node.body, node.orelse), self.purity
        returns = [any(isinstance(one, ast.Return) for part in arm for one in ast.walk(part)) for arm in arms]
        ends = all(map(_always_returns, arms))
        leaves = any(isinstance(one, ast.Break | ast.Continue) for arm in arms for one in arm)
        inside = sum(map(_returns_before_end, arms))
        bound = [{one.id for part in arm for one in _stored_names(part)} for arm in arms]
        if id(node) in self.tried and bound[0] != bound[1]:
            return False  # that a name is not bound may be caught
        if self.identified & (bound[0] | bound[1]):
            return False  # a symbolic number is not the number, and a tensor that is chosen not the one
        own = [self._own_of(arm) for arm in arms]
        self.own[id(node)] = [tensors for tensors, _ in own]
        return (
            (not any(returns) or (ends and not inside))
            and not leaves
            and not any(
                self._find_written(node) & names.difference(*made) for names, made in zip(bound, own, strict=True)
            )
            and pure.of_expression(node.test)
            and all(self._is_pure(arm, *made) for arm, made in zip(arms, own, strict=True))
        )

    def _find_written(self, branch: ast.If) -> set[str]:
        """The names of what is written into, but for what the code writes before it comes to the branch."""

        def is_over(one: ast.AST) -> bool:
            line = getattr(one, "lineno", branch.lineno)
            return bool(line < branch.lineno) and id(one) not in self.repeated and id(branch) not in self.repeated

        return {name for name, one in self.writes if not is_over(one)}

    def _own_of(self, arm: Sequence[ast.stmt]) -> tuple[frozenset[str], frozenset[str]]:
        """The names of the tensors, and of the lists and dicts, that an arm makes and may write into."""
        if self.choose != CHOOSE:
            return frozenset(), frozenset()
        return own_of_arm(arm, self.function, self.purity.gives_tensor)

    def _is_pure(self, arm: Sequence[ast.stmt], tensors: frozenset[str], containers: frozenset[str]) -> bool:
        """Whether an arm only computes, or writes into what it has made itself, or into copies."""
        callees = {**self.purity.callees, COPY: (), WRITTEN: (), OWN_TENSOR: ()}
        pure = replace(self.purity, callees=callees, tensors=tensors | self.copies, containers=containers)
        return pure.of_statements(arm)

    def _merge_arms(self, node: ast.If) -> list[ast.stmt]:
        self.count += 1
        ends = _always_returns(node.body) and _always_returns(node.orelse)
        stored = {one.id for arm in (node.body, node.orelse) for part in arm for one in _stored_names(part)}
        names = sorted(stored & self.used.get(id(node), stored))
        arms = [f"{ARM}_{self.count}_{place}" for place in (1, 2)]
        for arm, tensors in zip((node.body, node.orelse), self.own.pop(id(node)), strict=True):
            for part in arm:
                _CheckedTensors(tensors).visit(part)
        result = ast.Return(ast.Tuple([load(name) for name in names], ast.Load()))
        made: list[ast.stmt] = [
            _function(arm, names, list(body) if ends else [*body, result])
            for arm, body in zip(arms, (node.body, node.orelse), strict=True)
        ]
        before = [call_of(VALUE, thunk(load(name))) for name in names]
        call = self.choice(node.test, *(load(arm) for arm in arms), *before)
        if self.truths is not None:
            flags: list[ast.expr] = [ast.Constant(name in self.truths or name.startswith(LEFT)) for name in names]
            call.keywords.append(ast.keyword("flags", ast.Tuple(flags, ast.Load())))
        target = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        last = ast.Return(call) if ends else ast.Assign([target], call) if names else ast.Expr(call)
        return [ast.copy_location(one, node) for one in (*made, last)]

    def choice(self, test: ast.expr, *arms: ast.expr) -> ast.Call:
        """The call for the branch that was counted last, whose name is unlike that of any other."""
        function = self.purity.function
        name = ast.Constant(f"{name_of(function)}:{self.within}{self.count}")
        asked = ast.keyword("asked", thunk(copy.deepcopy(test)))
        return ast.Call(load(self.choose), [name, self.condition(copy.deepcopy(test)), *arms], [asked])


class _Choices(ast.NodeTransformer):
    """`a if condition else b`."""

    def __init__(self, merging: MergedBranches) -> None:
        self.merging = merging

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        pure = self.merging.purity.of_expression
        is_open = self.merging._is_open(node.test) and all(map(pure, (node.test, node.body, node.orelse)))
        self.generic_visit(node)
        if not is_open:
            return node
        self.merging.count += 1
        return ast.copy_location(self.merging.choice(node.test, thunk(node.body), thunk(node.orelse)), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return node


def _always_returns(arm: Sequence[ast.stmt]) -> bool:
    """Whether each way through it ends with a `return` in its last statement."""
    match arm:
        case [*_, ast.Return()]:
            return True
        case [*_, ast.If(body=body, orelse=other)]:
            return _always_returns(body) and _always_returns(other)
    return False


def _returns_before_end(arm: Sequence[ast.stmt]) -> int:
    """How many `return` it has elsewhere than at the end of a way through it."""
    before = sum(isinstance(one, ast.Return) for part in arm[:-1] for one in ast.walk(part))
    match arm:
        case [*_, ast.Return()]:
            return before
        case [*_, ast.If(body=body, orelse=other)]:
            return before + _returns_before_end(body) + _returns_before_end(other)
    return sum(isinstance(one, ast.Return) for part in arm for one in ast.walk(part))


def with_returns_last(
    body: list[ast.stmt], is_open: Callable[[ast.expr], bool], *, inside: bool = False
) -> list[ast.stmt]:
    """`if c: return a`, then `rest`: the rest becomes the other arm, so that both end with a return. `inside` of an arm
    every branch counts as one that is open."""
    for place, node in enumerate(body):
        if not isinstance(node, ast.If) or not (inside or is_open(node.test)):
            continue
        then = with_returns_last(node.body, is_open, inside=True)
        if not _always_returns(then):
            continue
        rest = with_returns_last([*node.orelse, *body[place + 1 :]], is_open, inside=True)
        if not rest or not isinstance(rest[-1], ast.Return | ast.If):
            rest = [*rest, ast.copy_location(ast.Return(ast.Constant(None)), node)]
        return [*body[:place], ast.copy_location(ast.If(node.test, then, rest), node)]
    return body


class _CheckedTensors(ast.NodeTransformer):
    """What an arm binds to these names is checked to be a tensor or a number, before it is written into."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in self.names:
                node.value = ast.copy_location(call_of(OWN_TENSOR, node.value), node.value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for place, target in enumerate(targets):
                    if isinstance(target, ast.Name) and target.id in self.names:
                        values[place] = ast.copy_location(call_of(OWN_TENSOR, values[place]), values[place])
        return node


def _written_names(node: ast.AST) -> Iterator[str]:
    """The name of a value that is written into: what is chosen is a copy, so that the write would be lost to others."""
    match node:
        case ast.AugAssign(target=ast.Name(id=name)) if is_in_place_update(node):
            yield name
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
            yield name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method.endswith("_"):
            yield name
        case ast.Call(func=ast.Name(id=call), args=[ast.Lambda(body=ast.Name(id=name)), _]) if call == WRITE_BACK:
            yield name


def _stored_names(node: ast.stmt) -> Iterator[ast.Name]:
    if isinstance(node, ast.FunctionDef):
        return
    yield from stored_names(node)


def _names_used_elsewhere(function: ast.FunctionDef) -> Iterator[tuple[ast.If, set[str]]]:
    """Each branch, and the names that are bound or read outside its arms; others are its arms' own. In a loop those
    count, too, whose value an arm may read that an earlier step has bound."""
    loops = [one for one in ast.walk(function) if isinstance(one, ast.For | ast.While)]
    repeated = {id(one) for loop in loops for one in ast.walk(loop)}
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            used = set(_names(function) - _names(*node.body, *node.orelse))
            if id(node) in repeated:
                stored = {one.id for arm in (node.body, node.orelse) for part in arm for one in _stored_names(part)}
                used |= {name for name in stored if any(is_read_first(name, arm) for arm in (node.body, node.orelse))}
            yield node, used


def _names(*nodes: ast.AST) -> Counter[str]:
    every = (one for node in nodes for one in ast.walk(node))
    return Counter(
        one.arg if isinstance(one, ast.arg) else one.id for one in every if isinstance(one, ast.arg | ast.Name)
    )


def _function(name: str, parameters: list[str], body: list[ast.stmt]) -> ast.stmt:
    arguments = ast.arguments([], [ast.arg(one) for one in parameters], None, [], [], None, [])
    return ast.FunctionDef(name, arguments, body, [], None, None)
