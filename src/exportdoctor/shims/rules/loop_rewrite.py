"""Rewrites loops over the rows of tensors as steps of a scan: each reads and writes one row, and carries state.

A step may bind local names, read tensors at the loop's index, append to a list that is stacked afterwards, and write
tensors at the index. A name that a step reads before it binds it is carried from step to step. Whatever else a loop
does, it stays as it is.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from exportdoctor.shims.rules.loop_headers import LoopHeader, header_of
from exportdoctor.shims.rules.name_flow import (
    OTHER_SCOPES,
    OWN,
    bound_names,
    is_read_first,
    names_in_other_scopes,
    own_names,
    read_names,
)
from exportdoctor.shims.rules.pure_code import Purity
from exportdoctor.shims.rules.stacked_lists import JOINS, LoopsOfLists

APPLIES, SCAN, TAKE, KEEP, JOIN, WRITE = (
    f"{OWN}{name}" for name in ("applies", "steps", "rows_of", "Rows", "join", "write_rows")
)
"""What rewritten code calls."""

_STATE, _ROWS = f"{OWN}state", f"{OWN}rows"
_NO_STEP = (
    ast.Break, ast.Continue, ast.Return, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda,
)  # fmt: skip
"""What leaves a loop, or binds names of its own."""
_FILLED = ("zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like")
_NEW = ("new_zeros", "new_ones", "new_empty", "new_full", "clone")
_METADATA = frozenset({"shape", "dtype", "device", "ndim"})


@dataclass
class LoopRewrite:
    """Rewrites the loops of one function; `count` says how many. `purity` judges its code."""

    purity: Purity
    count: int = 0

    def of_function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The function with its loops rewritten, in a copy."""
        node = copy.deepcopy(node)
        node.body = LoopsOfLists(self.purity).of_block(node.body)
        self._function, self._seen_inside = node, names_in_other_scopes(node)
        self._stacked: set[str] = set()
        node.body = self._block(node.body, [], [])
        for one in ast.walk(node):
            if (name := _stacked_list(one)) is not None and name in self._stacked:
                one.func = ast.copy_location(ast.Attribute(_load(JOIN), one.func.attr, ast.Load()), one)  # type: ignore[attr-defined]
        return node

    def _block(
        self, statements: list[ast.stmt], preceding: list[ast.stmt], following: list[ast.stmt]
    ) -> list[ast.stmt]:
        """`following` are the statements that may run after the block, in their order; `preceding` those before it, and
        those around it."""
        made: list[ast.stmt] = []
        for place, one in enumerate(statements):
            before, after = [*preceding, *statements[:place]], [*statements[place + 1 :], *following]
            if isinstance(one, ast.For) and (found := self._scan_of(one, before, after)) is not None:
                made += found
                continue
            if not isinstance(one, OTHER_SCOPES):
                again = [one] if isinstance(one, ast.For | ast.While | ast.Try) else []
                for name in ("body", "orelse", "finalbody"):
                    if isinstance(inner := getattr(one, name, None), list):
                        setattr(one, name, self._block(inner, [*before, one], [*again, *after]))
            made.append(one)
        return made

    def _scan_of(self, loop: ast.For, before: list[ast.stmt], after: list[ast.stmt]) -> list[ast.stmt] | None:
        """The statements in place of the loop; None where it is no scan."""
        header = header_of(loop, self.count + 1)
        if header is None or not all(map(self.purity.of_expression, header.expressions)):
            return None
        uses = _Uses(self._function, self._seen_inside)
        step = _Step(index=header.index, uses=uses)
        body = step.of_body(header.body)
        if body is None or not self.purity.of_statements(body):
            return None
        bound = {name for one in body for name in bound_names(one)}
        carried = [name for name in sorted(bound) if is_read_first(name, body)]
        lost = bound - set(carried)
        if any(is_read_first(name, after) for name in (*lost, header.index)) or header.index in bound:
            return None
        if self._seen_inside & {*bound, header.index}:
            return None
        if not all(one.place is None or uses.is_only_written(one.name, loop, before) for one in step.outputs):
            return None
        self.count += 1
        self._stacked |= {one.name for one in step.outputs if one.place is None}
        return self._statements(loop, header, step, body, carried)

    def _statements(
        self, loop: ast.For, header: LoopHeader, step: _Step, body: list[ast.stmt], carried: list[str]
    ) -> list[ast.stmt]:
        number = self.count
        first, length, function = (f"{OWN}{name}_{number}" for name in ("start", "length", "step"))
        state = ast.Tuple([_load(name) for name in carried], ast.Load())
        outputs = ast.Tuple([_load(one.row) for one in step.outputs], ast.Load())
        arguments = ast.arguments([], [ast.arg(_STATE), ast.arg(_ROWS)], None, [], [], None, [])
        unpacked = [
            ast.Assign([_names(names)], _load(source))
            for names, source in ((carried, _STATE), ([one.name for one in step.inputs], _ROWS))
            if names
        ]
        nested = ast.FunctionDef(
            function,
            arguments,
            [*unpacked, *body, ast.Return(ast.Tuple([state, outputs], ast.Load()))],
            [], None, None,
        )  # fmt: skip
        rows: list[ast.expr] = [
            _call(TAKE, one.tensor, ast.Constant(one.place), _load(first), _load(length)) for one in step.inputs
        ]
        targets = [_names(carried), _names([one.row for one in step.outputs])]
        scanned: list[ast.stmt] = [
            nested,
            ast.Assign(
                [ast.Tuple(list(targets), ast.Store())],
                _call(SCAN, _load(function), state, ast.Tuple(rows, ast.Load()), _load(length)),
            ),
        ]
        for one in step.outputs:
            if one.place is None:
                scanned.append(ast.Assign([ast.Name(one.name, ast.Store())], _call(KEEP, _load(one.row))))
            else:
                write = _call(WRITE, _load(one.name), ast.Constant(one.place), _load(first), _load(one.row))
                scanned.append(ast.Expr(write))
        lists: list[ast.expr] = [_load(one.name) for one in step.outputs if one.place is None]
        applies = _call(APPLIES, _load(length), state, ast.Tuple(lists, ast.Load()))
        plain = copy.deepcopy(loop)
        if not header.before:
            plain.iter = _call("range", _load(first), ast.BinOp(_load(first), ast.Add(), _load(length)))
        made: list[ast.stmt] = [
            *header.before,
            ast.Assign([ast.Name(first, ast.Store())], header.start),
            ast.Assign([ast.Name(length, ast.Store())], ast.BinOp(header.stop, ast.Sub(), _load(first))),
            ast.If(applies, scanned, [plain]),
        ]
        return [ast.fix_missing_locations(ast.copy_location(one, loop)) for one in made]


@dataclass(frozen=True)
class _Input:
    """A row that a step reads: `tensor` at the index, which stands at dimension `place`."""

    name: str
    tensor: ast.expr
    place: int


@dataclass(frozen=True)
class _Output:
    """What a step computes for the list, or for the tensor at dimension `place`, that is called `name`."""

    row: str
    name: str
    place: int | None


@dataclass(frozen=True)
class _Uses:
    """Where a function uses a list or a tensor: its loops may write it later only where nothing else sees that."""

    function: ast.FunctionDef
    inside: set[str]
    """The names that functions in it mention."""

    def is_only_stacked(self, name: str) -> bool:
        """Whether the list is nothing but made anew, appended to and stacked or joined."""
        allowed = set[int]()
        for one in ast.walk(self.function):
            allowed.update(map(id, _made_by(one, _is_empty_list).values()))
            match one:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=found) as of, attr="append")) if found == name:
                    allowed.add(id(of))
                case ast.Call(args=[ast.Name(id=found) as of, *_]) if _stacked_list(one) == found == name:
                    allowed.add(id(of))
        every = (one for one in ast.walk(self.function) if name in own_names(one))
        return name not in self.inside and all(id(one) in allowed for one in every)

    def is_only_written(self, name: str, loop: ast.For, before: Sequence[ast.stmt]) -> bool:
        """Whether the tensor was made anew in one of the statements before the loop, and what follows uses it only to
        write rows, so that no other tensor is a view of it. `before` has also each statement around the loop."""
        allowed = {id(one) for one in ast.walk(loop)}
        for one in ast.walk(self.function):
            match one:
                case ast.Attribute(value=ast.Name() as of, attr=attribute) if attribute in _METADATA:
                    allowed.add(id(of))
                case ast.Subscript(value=ast.Name() as of, ctx=ast.Store()):
                    allowed.add(id(of))
        for one in reversed(before):
            if name in _made_by(one, _is_new_tensor):
                return name not in self.inside
            if any(name in own_names(each) and id(each) not in allowed for each in ast.walk(one)):
                return False
        return False


@dataclass
class _Step:
    """Turns the body of a loop into that of a step."""

    index: str
    uses: _Uses
    inputs: list[_Input] = field(default_factory=list)
    outputs: list[_Output] = field(default_factory=list)

    def of_body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        """The step's statements; None where the body is none."""
        bound = {name for one in statements for name in bound_names(one)}
        made: list[ast.stmt] = []
        for one in copy.deepcopy(list(statements)):
            output = self._output(one)
            if output is not None:
                made.append(ast.copy_location(ast.Assign([ast.Name(output[0], ast.Store())], output[1]), one))
            else:
                made.append(one)
        if any(isinstance(each, _NO_STEP) for one in made for each in ast.walk(one)):
            return None
        reads = _RowReads(self, bound)
        made = [reads.visit(one) for one in made]
        outside = {one.name for one in self.outputs}
        used = [name for one in (*made, *(each.tensor for each in self.inputs)) for name in read_names(one)]
        if reads.failed or self.index in used or outside & {*used, *bound} or len(outside) < len(self.outputs):
            return None
        return made

    def _output(self, node: ast.stmt) -> tuple[str, ast.expr] | None:
        """The name of the row that a statement computes for the outside, and its expression."""
        row = f"{OWN}made_{len(self.outputs)}"
        match node:
            case ast.Expr(
                ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value], keywords=[])
            ) if self.uses.is_only_stacked(name):
                self.outputs.append(_Output(row, name, None))
                return row, value
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=slices)], value=value):
                place = _place_of(self.index, slices)
                if place is not None and _is_whole_otherwise(slices, self.index):
                    self.outputs.append(_Output(row, name, place))
                    return row, value
        return None


class _RowReads(ast.NodeTransformer):
    """Reads of tensors at the loop's index become reads of the step's rows."""

    def __init__(self, step: _Step, bound: set[str]) -> None:
        self.step, self.bound, self.failed = step, bound, False

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.visit(node.value)
        place = _place_of(self.step.index, node.slice)
        if place is None:
            node.slice = self.visit(node.slice)
            return node
        if not isinstance(node.ctx, ast.Load) or {*read_names(node.value)} & self.bound or _has_call(node.value):
            self.failed = True
            return node
        name = f"{OWN}row_{len(self.step.inputs)}"
        known = (one for one in self.step.inputs if one.place == place and _same(one.tensor, node.value))
        found = next(known, None)
        if found is None:
            found = _Input(name, node.value, place)
            self.step.inputs.append(found)
        parts = [_without_index(part) for part in _parts(node.slice) if not _is_name(part, self.step.index)]
        if not parts:
            return ast.copy_location(_load(found.name), node)
        indices = parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())
        return ast.copy_location(ast.Subscript(_load(found.name), indices, ast.Load()), node)


# --- indices


def _parts(slices: ast.expr) -> list[ast.expr]:
    return list(slices.elts) if isinstance(slices, ast.Tuple) else [slices]


def _is_name(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_row_slice(node: ast.expr, index: str) -> bool:
    """`index : index + 1`, a dimension of one row."""
    match node:
        case ast.Slice(
            lower=ast.Name(id=first),
            upper=ast.BinOp(left=ast.Name(id=second), op=ast.Add(), right=ast.Constant(value=1)),
            step=None,
        ):
            return first == second == index
    return False


def _without_index(part: ast.expr) -> ast.expr:
    """What is left of a part of an index for the row itself: a dimension of one row is a new one."""
    names = {one.id for one in ast.walk(part) if isinstance(one, ast.Name)}
    is_row = isinstance(part, ast.Slice) and bool(names)
    return ast.copy_location(ast.Constant(None), part) if is_row else part


def _place_of(index: str, slices: ast.expr) -> int | None:
    """The dimension at which an index has the loop's; counted from behind after `...`. None where it has none.

    The other parts may be `:`, `...`, None and whole numbers, and nothing that is computed.
    """
    parts = _parts(slices)
    found = [place for place, part in enumerate(parts) if _is_name(part, index) or _is_row_slice(part, index)]
    if len(found) != 1 or not all(_is_simple(part) for place, part in enumerate(parts) if place != found[0]):
        return None
    before, behind = parts[: found[0]], parts[found[0] + 1 :]
    if any(_is_ellipsis(part) for part in before):
        return -1 - sum(not _is_new(part) for part in behind)
    return sum(not _is_new(part) for part in before)


def _is_simple(part: ast.expr) -> bool:
    match part:
        case ast.Slice(lower=None, upper=None, step=None) | ast.Constant(value=None):
            return True
        case ast.Constant(value=int() as number):
            return not isinstance(number, bool)  # which selects nothing or everything, as a new dimension
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int())):
            return True
    return _is_ellipsis(part)


def _is_ellipsis(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) and part.value is Ellipsis


def _is_new(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) and part.value is None


def _is_whole_otherwise(slices: ast.expr, index: str) -> bool:
    """Whether every other part of an index is `:` or `...`."""
    rest = [part for part in _parts(slices) if not _is_name(part, index)]
    return all((isinstance(part, ast.Slice) and _is_simple(part)) or _is_ellipsis(part) for part in rest)


# --- names


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _names(names: Sequence[str]) -> ast.Tuple:
    return ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_load(name), list(arguments), [])


def _same(one: ast.expr, other: ast.expr) -> bool:
    return ast.dump(one) == ast.dump(other)


def _has_call(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Call) for one in ast.walk(node))


def _made_by(node: ast.AST, is_made: Callable[[ast.expr], bool]) -> dict[str, ast.expr]:
    """The names that an assignment gives a new value of their own, each with its node."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            pairs = list(zip(targets, values, strict=True))
        case ast.Assign(targets=[target], value=value):
            pairs = [(target, value)]
    return {one.id: one for one, value in pairs if isinstance(one, ast.Name) and is_made(value)}


def _is_empty_list(node: ast.expr) -> bool:
    match node:
        case ast.List(elts=[]) | ast.Call(func=ast.Name(id="list"), args=[], keywords=[]):
            return True
    return False


def _is_new_tensor(node: ast.expr) -> bool:
    """`torch.zeros(...)`, `x.new_zeros(...)` and their like, also converted."""
    match node:
        case ast.Call(func=ast.Attribute(value=made, attr="to" | "contiguous")):
            return _is_new_tensor(made)
        case ast.Call(func=ast.Attribute(value=of, attr=attribute), keywords=how) if "out" not in [
            one.arg for one in how
        ]:
            return attribute in _NEW or (_is_name(of, "torch") and attribute in _FILLED)
    return False


def _stacked_list(node: ast.AST) -> str | None:
    """The name of the list in `torch.stack(name, ...)`, and its like."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=attribute), args=[ast.Name(id=name), *_]) if (
            attribute in JOINS
        ):
            return name
    return None
