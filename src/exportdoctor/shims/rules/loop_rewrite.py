"""Rewrites loops over the rows of tensors as steps of a scan: each reads and writes one row, and carries state.

A step may bind local names, read tensors at the loop's index, append to a list that is stacked afterwards, and write
tensors at the index. A name that a step reads before it binds it is carried from step to step. Whatever else a loop
does, it stays as it is.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from exportdoctor.shims.rules.loop_headers import LoopHeader, header_of
from exportdoctor.shims.rules.name_flow import OTHER_SCOPES, bound_names, is_read_first, read_names
from exportdoctor.shims.rules.pure_code import Purity
from exportdoctor.shims.rules.stacked_lists import JOINS, LoopsOfLists

APPLIES, SCAN, TAKE, KEEP, JOIN, WRITE = "_scan_applies", "_scan", "_rows_of", "_ScannedRows", "_join", "_write_rows"
"""What rewritten code calls."""

_NO_STEP = (
    ast.Break, ast.Continue, ast.Return, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda,
)  # fmt: skip
"""What leaves a loop, or binds names of its own."""


@dataclass
class LoopRewrite:
    """Rewrites the loops of one function; `count` says how many. `purity` judges its code."""

    purity: Purity
    count: int = 0

    def of_function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The function with its loops rewritten, in a copy."""
        node = copy.deepcopy(node)
        node.body = LoopsOfLists().of_block(node.body)
        self._function = node
        self._stacked: set[str] = set()
        node.body = self._block(node.body, [])
        for one in ast.walk(node):
            if (name := _stacked_list(one)) is not None and name in self._stacked:
                one.func = ast.copy_location(ast.Attribute(_load(JOIN), one.func.attr, ast.Load()), one)  # type: ignore[attr-defined]
        return node

    def _block(self, statements: list[ast.stmt], following: list[ast.stmt]) -> list[ast.stmt]:
        """`following` are the statements that may run after the block, in their order."""
        made: list[ast.stmt] = []
        for place, one in enumerate(statements):
            after = [*statements[place + 1 :], *following]
            if isinstance(one, ast.For) and (found := self._scan_of(one, after)) is not None:
                made += found
                continue
            if not isinstance(one, OTHER_SCOPES):
                again = [one] if isinstance(one, ast.For | ast.While) else []
                for name in ("body", "orelse", "finalbody"):
                    if isinstance(inner := getattr(one, name, None), list):
                        setattr(one, name, self._block(inner, [*again, *after]))
            made.append(one)
        return made

    def _scan_of(self, loop: ast.For, after: list[ast.stmt]) -> list[ast.stmt] | None:
        """The statements in place of the loop; None where it is no scan."""
        header = header_of(loop, self.count + 1)
        if header is None or not all(map(self.purity.of_expression, header.expressions)):
            return None
        step = _Step(index=header.index, function=self._function)
        body = step.of_body(header.body)
        if body is None or not self.purity.of_statements(body):
            return None
        bound = {name for one in body for name in bound_names(one)}
        carried = [name for name in sorted(bound) if is_read_first(name, body)]
        lost = bound - set(carried)
        if any(is_read_first(name, after) for name in (*lost, header.index)) or header.index in bound:
            return None
        self.count += 1
        self._stacked |= {one.name for one in step.outputs if one.place is None}
        return self._statements(loop, header, step, body, carried)

    def _statements(
        self, loop: ast.For, header: LoopHeader, step: _Step, body: list[ast.stmt], carried: list[str]
    ) -> list[ast.stmt]:
        number = self.count
        first, length, function = f"_start_{number}", f"_length_{number}", f"_step_{number}"
        state = ast.Tuple([_load(name) for name in carried], ast.Load())
        outputs = ast.Tuple([_load(one.row) for one in step.outputs], ast.Load())
        arguments = ast.arguments([], [ast.arg("_state"), ast.arg("_rows")], None, [], [], None, [])
        unpacked = [
            ast.Assign([_names(names)], _load(source))
            for names, source in ((carried, "_state"), ([one.name for one in step.inputs], "_rows"))
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


@dataclass
class _Step:
    """Turns the body of a loop into that of a step."""

    index: str
    function: ast.FunctionDef
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
        row = f"_row_for_{len(self.outputs)}"
        match node:
            case ast.Expr(
                ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value], keywords=[])
            ) if self._is_only_stacked(name):
                self.outputs.append(_Output(row, name, None))
                return row, value
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=slices)], value=value):
                place = _place_of(self.index, slices)
                if place is not None and _is_whole_otherwise(slices, self.index):
                    self.outputs.append(_Output(row, name, place))
                    return row, value
        return None

    def _is_only_stacked(self, name: str) -> bool:
        """Whether the list is nothing but made, appended to and stacked or joined."""
        allowed = set[int]()
        for one in ast.walk(self.function):
            match one:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=found) as of, attr="append")) if found == name:
                    allowed.add(id(of))
                case ast.Call(args=[ast.Name(id=found) as of, *_]) if _stacked_list(one) == found == name:
                    allowed.add(id(of))
        loads = (one for one in ast.walk(self.function) if isinstance(one, ast.Name) and one.id == name)
        return all(isinstance(one.ctx, ast.Store) or id(one) in allowed for one in loads)


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
        name = f"_row_{len(self.step.inputs)}"
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
        case ast.Slice(lower=None, upper=None, step=None) | ast.Constant(value=None) | ast.Constant(value=int()):
            return True
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


def _stacked_list(node: ast.AST) -> str | None:
    """The name of the list in `torch.stack(name, ...)`, and its like."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=attribute), args=[ast.Name(id=name), *_]) if (
            attribute in JOINS
        ):
            return name
    return None
