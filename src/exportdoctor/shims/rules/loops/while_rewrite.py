"""Rewrites `while` loops as calls with a test and a step, two functions of what the loop carries.

A step may only compute and bind local names. A name that it reads before it binds it, that the test reads, or that is
read behind the loop, is carried. `if condition: break` at the beginning or the end of the body becomes part of the
test, and anywhere in the body of a `while True`, whose part before it runs once before the loop. Other exits become
flags (`loop_exits.py`), and branches on what the loop changes choices (`merge_branches.py`).
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exportdoctor.shims.rules.branches.arm_choice import VALUE as VALUE_OF
from exportdoctor.shims.rules.branches.loop_exits import LEFT, RESULT, ExitNames, LoopExits, exits_in, flag_exits
from exportdoctor.shims.rules.branches.merge_branches import MergedBranches, OpenConditions
from exportdoctor.shims.rules.code.code_swap import ARM
from exportdoctor.shims.rules.code.made_code import NO_VALUE, call_of, load, thunk
from exportdoctor.shims.rules.code.name_flow import (
    OTHER_SCOPES,
    bound_names,
    is_name,
    is_read_first,
    names_in_other_scopes,
)
from exportdoctor.shims.rules.code.name_uses import NameUses
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.shims.rules.loops.step_choices import CHOOSE_IN_STEP

RUN, TRUTH, ALL, ANY, NOT, VALUE = (
    f"_while_{name}" for name in ("run", "truth", "all_hold", "any_holds", "does_not_hold", "value_of")
)
"""What rewritten code calls."""

_LEFT = f"{LEFT}_while_"
"""How the names of flags begin that say that a loop was left; those of `for` loops have a number behind `LEFT`."""
_COMPUTE_ANEW = frozenset({"abs", "all", "any", "argmax", "item", "max", "mean", "min", "norm", "prod", "sum"})
"""Methods of a tensor whose results share no memory with it."""


@dataclass(frozen=True)
class _Loop:
    """What runs once before the loop, its test, and its body without exits."""

    before: list[ast.stmt]
    test: ast.expr
    body: list[ast.stmt]
    asked: list[ast.expr]
    """The conditions as they were written."""


@dataclass
class WhileRewrite:
    """Rewrites the loops of one function of which a condition is at one of `lines`; `count` says how many. `purity`
    judges its code."""

    purity: Purity
    lines: frozenset[int]
    count: int = 0

    def of_function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The function with its loops rewritten, in a copy."""
        node = copy.deepcopy(node)
        self._seen_inside = names_in_other_scopes(node)
        self._uses = NameUses(node, self._seen_inside)
        self._reads, self._truths = _count_reads(node), _count_truths(node)
        node.body = self._block(node.body, [])
        return node

    def _block(self, statements: list[ast.stmt], preceding: list[ast.stmt], *, repeats: bool = False) -> list[ast.stmt]:
        """`preceding` are the statements before the block, and those around it. It `repeats` inside of a loop."""
        made: list[ast.stmt] = []
        for place, one in enumerate(statements):
            before = [*preceding, *statements[:place]]
            if not isinstance(one, OTHER_SCOPES):
                again = repeats or isinstance(one, ast.For | ast.While)
                for name in ("body", "orelse", "finalbody"):
                    if isinstance(inner := getattr(one, name, None), list):
                        setattr(one, name, self._block(inner, [*before, one], repeats=again))
            found = self._call_of(one, before, repeats=repeats) if isinstance(one, ast.While) else None
            made += [one] if found is None else found
        return made

    def _call_of(self, loop: ast.While, before: list[ast.stmt], *, repeats: bool) -> list[ast.stmt] | None:
        """The statements in place of the loop; None where it stays."""
        plain = self._without_exits(loop)
        if plain is None or not any(one.lineno in self.lines for each in plain.asked for one in _expressions(each)):
            return None
        changes = _PlainAssignments()
        body, first = (changes.of_statements(part) for part in (plain.body, plain.before))
        pure = self.purity.of_statements([*first, *body]) and self.purity.of_expression(plain.test)
        bound = {name for one in body for name in bound_names(one)}
        if not pure or self._seen_inside & bound:
            return None
        if not all(self._may_be_bound_anew(name, values, loop, before) for name, values in changes.added.items()):
            return None
        tested = {one.id for one in ast.walk(plain.test) if isinstance(one, ast.Name)}
        inside = _count_reads(loop)
        outside = {name for name in bound if self._reads[name] > inside[name]}
        carried = sorted(name for name in bound if name in tested | outside or is_read_first(name, body))
        if not carried:
            return None
        if repeats:  # the loop itself reads them when it runs again
            outside.update(one for one in carried if not one.startswith(_LEFT))  # which begin anew
        self.count += 1
        flags = {name for name in carried if self._truths[name] == self._reads[name] or name.startswith(_LEFT)}
        statements = self._statements(plain.test, body, carried, outside, flags)
        return [ast.copy_location(one, loop) for one in (*first, *statements)]

    def _statements(
        self, test: ast.expr, body: list[ast.stmt], carried: list[str], outside: set[str], flags: set[str]
    ) -> list[ast.stmt]:
        names = [f"{ARM}_{part}_{self.count}" for part in ("test", "step")]
        arguments = ast.arguments([], [ast.arg(one) for one in carried], None, [], [], None, [])
        result = ast.Return(ast.Tuple([load(one) for one in carried], ast.Load()))
        bodies: list[list[ast.stmt]] = [[ast.Return(call_of(TRUTH, _condition(test)))], [*body, result]]
        functions: list[ast.stmt] = [
            ast.FunctionDef(name, arguments, statements, [], None, None)
            for name, statements in zip(names, bodies, strict=True)
        ]
        functions[1] = self._merge_branches(functions[1])
        function = self.purity.function
        call = call_of(
            RUN,
            ast.Constant(f"{function.__module__}.{function.__qualname__}:{self.count}"),
            *map(load, names),
            ast.Tuple([call_of(VALUE, thunk(load(one))) for one in carried], ast.Load()),
            ast.Tuple([ast.Constant(one in outside) for one in carried], ast.Load()),
            ast.Tuple([ast.Constant(one in flags) for one in carried], ast.Load()),
        )
        targets = ast.Tuple([ast.Name(one, ast.Store()) for one in carried], ast.Store())
        no_value: list[ast.stmt] = [  # before the loop, which has taken no step
            ast.If(ast.Compare(load(one), [ast.Is()], [load(NO_VALUE)]), [ast.Delete([ast.Name(one, ast.Del())])], [])
            for one in carried
        ]
        return [*functions, ast.Assign([targets], call), *no_value]

    def _merge_branches(self, step: ast.stmt) -> ast.stmt:
        """The step with its branches merged. A name that is bound in an arm alone has a mark before."""
        assert isinstance(step, ast.FunctionDef)
        changing = {name for one in step.body for name in bound_names(one)}
        merging = MergedBranches(
            self.purity,
            OpenConditions(self.lines, step, changing),
            step,
            choose=CHOOSE_IN_STEP,
            condition=_condition,
            within=f"{self.count}.",
            truths={name for name in changing if self._truths[name] == self._reads[name]},
        )
        merged = merging.visit(step)
        for made in ast.walk(merged):
            if isinstance(made, ast.FunctionDef):
                _mark_unbound(made)
        return merged

    # --- exits

    def _without_exits(self, loop: ast.While) -> _Loop | None:
        """The loop with its exit in its test, or with flags for its exits; None where it has others."""
        exits = [one for part in loop.body for one in exits_in(part)]
        if loop.orelse or any(isinstance(one, ast.Return) for one in exits):
            return None
        if not exits:
            return _Loop([], loop.test, loop.body, [loop.test])
        places = [place for place, one in enumerate(loop.body) if _is_plain_exit(one)]
        if len(places) != 1 or len(exits) > 1:
            return self._with_flags(loop)
        first, rest = loop.body[: places[0]], loop.body[places[0] + 1 :]
        leaves = loop.body[places[0]].test  # type: ignore[attr-defined]
        asked = [loop.test, leaves]
        stays = ast.UnaryOp(ast.Not(), leaves)
        if isinstance(loop.test, ast.Constant) and loop.test.value:
            if any(isinstance(one, ast.If | ast.IfExp) for part in first for one in ast.walk(part)):
                return self._with_flags(loop)  # what runs before the loop would keep its branches
            return _Loop(copy.deepcopy(first), stays, [*rest, *first], asked)
        if not first:
            return _Loop([], ast.BoolOp(ast.And(), [loop.test, stays]), rest, asked)
        if rest:
            return self._with_flags(loop)
        left = f"{_LEFT}{self.count + 1}"
        flag = ast.Assign([ast.Name(left, ast.Store())], leaves)
        return _loop_until(left, loop, [*first, ast.copy_location(flag, leaves)], asked)

    def _with_flags(self, loop: ast.While) -> _Loop | None:
        """The loop with flags for its exits; None where one is inside of something else than an `if`."""
        left, skipped = (f"{_LEFT}{self.count + 1}{suffix}" for suffix in ("", "_step"))
        branches = [one for part in loop.body for one in ast.walk(part) if isinstance(one, ast.If)]
        asked = [loop.test, *(one.test for one in branches if any(exits_in(one)))]
        body = LoopExits(self.purity, lambda _: True).replace_exits(copy.deepcopy(loop.body), ExitNames(left, RESULT))
        if body is None and (flagged := flag_exits(copy.deepcopy(loop.body), left, skipped)) is not None:
            body = [ast.Assign([ast.Name(skipped, ast.Store())], ast.Constant(False)), *flagged]
        return None if body is None else _loop_until(left, loop, body, asked)

    # --- `total += value`

    def _may_be_bound_anew(self, name: str, values: list[ast.expr], loop: ast.While, before: list[ast.stmt]) -> bool:
        """Whether `name = name + value` does what `name += value` does, for nobody sees that a tensor is written into:
        it is a number, or a tensor to which no other name leads. `values` are what is added."""
        every = [one for part in (loop.test, *loop.body) for one in ast.walk(part)]
        uses = [one for one in every if isinstance(one, ast.Name) and one.id == name]
        added_to = [one for one in every if isinstance(one, ast.AugAssign) and is_name(one.target, name)]
        if len(added_to) < sum(map(_is_stored, uses)):
            return False  # it is bound to something else, too
        begins_as_number = _is_number(_last_value(name, before))
        if begins_as_number and all(map(_is_number, values)):
            return True
        computed = {id(one) for part in (loop.test, *loop.body) for one in _operands(part)}
        is_own = begins_as_number or self._uses.is_only_written(name, loop, before)
        return is_own and all(id(one) in computed for one in uses if not _is_stored(one))


def _count_reads(node: ast.AST) -> Counter[str]:
    """How often each name is read, `name += value` included, which may write into what the name has."""
    every = list(ast.walk(node))
    added_to = [one.target for one in every if isinstance(one, ast.AugAssign)]
    reads = [one for one in every if isinstance(one, ast.Name) and not _is_stored(one)]
    return Counter(one.id for one in (*reads, *added_to) if isinstance(one, ast.Name))


def _count_truths(node: ast.AST) -> Counter[str]:
    """How often each name is only asked whether it holds, in the conditions of a function."""
    waiting = [one.test for one in ast.walk(node) if isinstance(one, ast.While | ast.If)]
    found: Counter[str] = Counter()
    while waiting:
        match waiting.pop():
            case ast.Name(id=name):
                found[name] += 1
            case ast.BoolOp(values=values):
                waiting += values
            case ast.UnaryOp(op=ast.Not(), operand=value):
                waiting.append(value)
    return found


def _mark_unbound(function: ast.FunctionDef) -> None:
    """Let each local name of a function have a mark that is read before a choice between two arms: to dynamo a name
    without a value is an error."""
    own = {name for one in function.body if not isinstance(one, OTHER_SCOPES) for name in bound_names(one)}
    own -= {one.arg for one in function.args.args}
    read = set()
    for one in ast.walk(function):
        match one:
            case ast.Call(func=ast.Name(id=called), args=[ast.Lambda(body=ast.Name(id=name))]) if called == VALUE_OF:
                read.add(name)
    marks = [ast.Assign([ast.Name(one, ast.Store())], load(NO_VALUE)) for one in sorted(own & read)]
    function.body[:0] = marks


def _loop_until(left: str, loop: ast.While, body: list[ast.stmt], asked: list[ast.expr]) -> _Loop:
    """The loop as long as the flag does not hold."""
    no: list[ast.stmt] = [ast.Assign([ast.Name(left, ast.Store())], ast.Constant(False))]
    goes_on = ast.BoolOp(ast.And(), [ast.UnaryOp(ast.Not(), load(left)), loop.test])
    return _Loop(no, goes_on, body, asked)


def _is_plain_exit(node: ast.stmt) -> bool:
    match node:
        case ast.If(body=[ast.Break()], orelse=[]):
            return True
    return False


def _last_value(name: str, before: Sequence[ast.stmt]) -> ast.expr | None:
    """What the name is bound to by the last of the statements that binds it, if that is an assignment."""
    match next((one for one in reversed(before) if name in bound_names(one)), None):
        case ast.Assign(targets=[ast.Name()], value=value):
            return value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
            found = [value for target, value in zip(names, values, strict=True) if is_name(target, name)]
            return found[0] if len(found) == 1 else None
    return None


def _is_number(node: ast.expr | None) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


class _PlainAssignments(ast.NodeTransformer):
    """`name = name + value` for `name += value`; `added` has the values by name."""

    def __init__(self) -> None:
        self.added: dict[str, list[ast.expr]] = {}

    def of_statements(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements, in a copy."""
        return [self.visit(one) for one in copy.deepcopy(list(statements))]

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name):
            return node
        self.added.setdefault(node.target.id, []).append(node.value)
        value = ast.copy_location(ast.BinOp(load(node.target.id), node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], value), node)


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    """What goes into an expression whose result is a new tensor."""
    for one in ast.walk(node):
        match one:
            case ast.BinOp(left=left, right=right):
                yield from (left, right)
            case ast.Compare(left=left, comparators=others):
                yield from (left, *others)
            case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=value):
                yield value
            case ast.AugAssign(value=value):
                yield value
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _COMPUTE_ANEW:
                yield value


# --- conditions


def _condition(node: ast.expr) -> ast.expr:
    """A condition with tensors kept as tensors: no `bool()`, and operators for `and`, `or`, `not`."""
    match node:
        case ast.BoolOp(op=op, values=[first, *rest]):
            others = [thunk(_condition(one)) for one in rest]
            return call_of(ALL if isinstance(op, ast.And) else ANY, _condition(first), *others)
        case ast.UnaryOp(op=ast.Not(), operand=value):
            return call_of(NOT, _condition(value))
        case ast.Call(func=ast.Name(id="bool"), args=[value], keywords=[]):
            return _condition(value)
        case ast.Compare(left=left, ops=ops, comparators=others) if len(ops) > 1:
            sides = zip((left, *others), ops, others, strict=False)
            pairs: list[ast.expr] = [ast.Compare(one, [op], [other]) for one, op, other in sides]
            return call_of(ALL, pairs[0], *map(thunk, pairs[1:]))
    return node


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    return (one for one in ast.walk(node) if isinstance(one, ast.expr) and hasattr(one, "lineno"))
