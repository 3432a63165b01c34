"""A step of a loop over rows: what it reads at the loop's index becomes rows that it is given, and what it writes there
rows that it returns."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from exportdoctor.shims.rules.code.made_code import call_of, load
from exportdoctor.shims.rules.code.name_flow import SCAN_PREFIX, bound_names, is_arm, is_name, read_names
from exportdoctor.shims.rules.code.name_uses import NameUses, row_put_first

_NO_STEP = (
    ast.Break, ast.Continue, ast.Return, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda,
)  # fmt: skip
"""What leaves a loop, or binds names of its own."""


@dataclass(frozen=True)
class RowIndex:
    """Which row a step reads or writes: that at the loop's index and `shift`, or at `end` without the index."""

    shift: int = 0
    end: ast.expr | None = None

    def is_same(self, other: RowIndex) -> bool:
        """Whether both stand for the same row."""
        return self.shift == other.shift and _text(self.end) == _text(other.end)


@dataclass(frozen=True)
class StepInput:
    """A row that a step reads: of `tensor`, along dimension `place`."""

    name: str
    tensor: ast.expr
    place: int
    row: RowIndex


@dataclass(frozen=True)
class StepOutput:
    """What a step computes for the list, or for the tensor along dimension `place`, that is called `name`. `is_first`
    says that a row becomes the first one of its list."""

    made: str
    name: str
    place: int = 0
    row: RowIndex = RowIndex()
    is_listed: bool = False
    is_first: bool = False


@dataclass
class LoopStep:
    """Turns the body of a loop into that of a step. `number` is the name of the loop's index where the step is given
    that, too, as a tensor of one whole number."""

    index: str
    uses: NameUses
    inputs: list[StepInput] = field(default_factory=list)
    outputs: list[StepOutput] = field(default_factory=list)
    number: str = ""

    @property
    def ends(self) -> list[ast.expr]:
        """What the loop's index is taken from in the rows that are read or written."""
        rows = [*(one.row for one in self.inputs), *(one.row for one in self.outputs)]
        return [one.end for one in rows if one.end is not None]

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
        if any(map(_is_no_step, made)):
            return None
        reads = _RowReads(self, bound)
        made = [reads.visit(one) for one in made]
        tensors = bound | {one.name for one in self.inputs}
        numbers = _NumberReads(self.index, f"{SCAN_PREFIX}number", tensors)
        made = [numbers.visit(one) for one in made]
        if numbers.found:
            self.number = numbers.name
        outside = {one.name for one in self.outputs}
        if bound & {name for one in self.ends for name in read_names(one)}:
            return None
        parts = [*made, *self.ends, *(each.tensor for each in self.inputs)]
        used = [name for one in parts for name in read_names(one)]
        if reads.failed or self.index in used or outside & {*used, *bound} or len(outside) < len(self.outputs):
            return None
        return made

    def _output(self, node: ast.stmt) -> tuple[str, ast.expr] | None:
        """The name of the row that a statement computes for the outside, and its expression."""
        row = f"{SCAN_PREFIX}made_{len(self.outputs)}"
        match node:
            case ast.Expr(
                ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value], keywords=[])
            ) if self.uses.is_only_stacked(name):
                self.outputs.append(StepOutput(row, name, is_listed=True))
                return row, value
            case ast.Expr(ast.Call() as call) if (
                first := row_put_first(call)
            ) is not None and self.uses.is_only_stacked(first[0].id):
                self.outputs.append(StepOutput(row, first[0].id, is_listed=True, is_first=True))
                return row, first[1]
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=slices)], value=value):
                found = _place_of(self.index, slices)
                if found is not None and found[1].shift == 0 and _is_whole_otherwise(slices, self.index):
                    self.outputs.append(StepOutput(row, name, *found))
                    return row, value
        return None


def _is_no_step(node: ast.AST) -> bool:
    """Whether it leaves the loop or binds names of its own; an arm that a rewrite has made does neither."""
    if is_arm(node):
        return False
    return isinstance(node, _NO_STEP) or any(map(_is_no_step, ast.iter_child_nodes(node)))


class _RowReads(ast.NodeTransformer):
    """Reads of tensors at the loop's index become reads of the step's rows."""

    def __init__(self, step: LoopStep, bound: set[str]) -> None:
        self.step, self.bound, self.failed = step, bound, False

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.visit(node.value)
        found_place = _place_of(self.step.index, node.slice)
        if found_place is None:
            node.slice = self.visit(node.slice)
            return node
        place, row = found_place
        if not isinstance(node.ctx, ast.Load) or {*read_names(node.value)} & self.bound or _has_call(node.value):
            self.failed = True
            return node
        name = f"{SCAN_PREFIX}row_{len(self.step.inputs)}"
        known = (one for one in self.step.inputs if one.row.is_same(row) and one.place == place)
        found = next((one for one in known if _text(one.tensor) == _text(node.value)), None)
        if found is None:
            found = StepInput(name, node.value, place, row)
            self.step.inputs.append(found)
        parts = [_without_index(part) for part in _parts(node.slice) if not _is_index(part, self.step.index)]
        if not parts:
            return ast.copy_location(load(found.name), node)
        indices = parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())
        return ast.copy_location(ast.Subscript(load(found.name), indices, ast.Load()), node)


WITH_NUMBER = f"{SCAN_PREFIX}with_number"
"""What rewritten code calls: an operator on a tensor and the tensor of the number of a step."""
_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv"}


class _NumberReads(ast.NodeTransformer):
    """The index as a number beside a tensor, as in `state * (index + 1)`, becomes a tensor of one whole number: its
    class decides nothing there. `tensors` are the names that the step makes or is given."""

    def __init__(self, index: str, name: str, tensors: set[str]) -> None:
        self.index, self.name, self.tensors, self.found = index, name, tensors, False

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if type(node.op) in _OPERATORS:
            for number, other in ((node.left, node.right), (node.right, node.left)):
                names = {*read_names(other)}
                if _is_number_of(number, self.index) and names & self.tensors and self.index not in names:
                    for one in ast.walk(number):
                        if isinstance(one, ast.Name):
                            one.id = self.name
                    self.found = True
                    name = _OPERATORS[type(node.op)]
                    call = call_of(WITH_NUMBER, node.left, node.right, ast.Constant(name))
                    return ast.fix_missing_locations(ast.copy_location(call, node))
        return self.generic_visit(node)


def _is_number_of(node: ast.expr, index: str) -> bool:
    """Whether it is the index, or a sum or a product of it and whole numbers of the code."""
    match node:
        case ast.Name(id=name):
            return name == index
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            of_index = [_is_number_of(one, index) for one in (left, right)]
            whole = [isinstance(one, ast.Constant) and type(one.value) is int for one in (left, right)]
            return any(of_index) and all(one or other for one, other in zip(of_index, whole, strict=True))
    return False


# --- indices


def _parts(slices: ast.expr) -> list[ast.expr]:
    return list(slices.elts) if isinstance(slices, ast.Tuple) else [slices]


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


def _row_of(part: ast.expr, index: str) -> RowIndex | None:
    """The row that a part of an index stands for: a number may be added to the loop's index, or the index be taken from
    what each step computes alike. A dimension of one row stands for it, too."""
    match part:
        case ast.BinOp(left=ast.Name(id=name), op=ast.Add() | ast.Sub() as sign, right=ast.Constant(value=int() as by)):
            plain = name == index and not isinstance(by, bool)
            return RowIndex(by if isinstance(sign, ast.Add) else -by) if plain else None
        case ast.BinOp(left=ast.Constant(value=int() as by), op=ast.Add(), right=ast.Name(id=name)):
            return RowIndex(by) if name == index and not isinstance(by, bool) else None
    if is_name(part, index) or _is_row_slice(part, index):
        return RowIndex()
    end = _end_of(part, index)
    return RowIndex(end=ast.fix_missing_locations(ast.copy_location(end, part))) if end is not None else None


def _end_of(part: ast.expr, index: str) -> ast.expr | None:
    """What the index is taken from: `n - 1` in `n - 1 - index` and in `n - (index + 1)`, -1 in `-index - 1`."""
    match part:
        case ast.BinOp(left=end, op=ast.Sub(), right=ast.Name(id=name)) if name == index:
            return None if index in read_names(end) else end
        case ast.BinOp(left=end, op=ast.Sub(), right=ast.BinOp(left=ast.Name(id=name), op=ast.Add(), right=by)):
            others = name == index and index not in (*read_names(end), *read_names(by))
            return ast.BinOp(end, ast.Sub(), by) if others else None
        case ast.BinOp(left=inner, op=ast.Sub(), right=ast.Constant(value=int() as by)):
            before = _end_of(inner, index)
            return None if before is None else ast.BinOp(before, ast.Sub(), ast.Constant(by))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _end_of(ast.BinOp(ast.Constant(0), ast.Sub(), inner), index)
    return None


def _is_index(part: ast.expr, index: str) -> bool:
    """Whether it stands for a row, and is no dimension of one row."""
    return _row_of(part, index) is not None and not _is_row_slice(part, index)


def _without_index(part: ast.expr) -> ast.expr:
    """What is left of a part of an index for the row itself: a dimension of one row is a new one."""
    names = {one.id for one in ast.walk(part) if isinstance(one, ast.Name)}
    is_row = isinstance(part, ast.Slice) and bool(names)
    return ast.copy_location(ast.Constant(None), part) if is_row else part


def _place_of(index: str, slices: ast.expr) -> tuple[int, RowIndex] | None:
    """The dimension at which an index has the loop's, counted from behind after `...`, and which row that is.
    None where it has none.

    The other parts may be `:`, `...`, None and whole numbers, and nothing that is computed.
    """
    parts = _parts(slices)
    found = [(place, row) for place, part in enumerate(parts) if (row := _row_of(part, index)) is not None]
    if len(found) != 1 or not all(_is_simple(part) for place, part in enumerate(parts) if place != found[0][0]):
        return None
    ((at, row),) = found
    before, behind = parts[:at], parts[at + 1 :]
    if any(_is_ellipsis(part) for part in before):
        return -1 - sum(not _is_new(part) for part in behind), row
    return sum(not _is_new(part) for part in before), row


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
    rest = [part for part in _parts(slices) if not _is_index(part, index)]
    return all((isinstance(part, ast.Slice) and _is_simple(part)) or _is_ellipsis(part) for part in rest)


def _text(node: ast.expr | None) -> str:
    return "" if node is None else ast.dump(node)


def _has_call(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Call) for one in ast.walk(node))
