"""Rewrites loops over the rows of tensors as steps of a scan: each reads and writes one row, and carries state.

A step may bind local names, read tensors at the loop's index, append to a list that is stacked afterwards, and write
tensors at the index. A name that a step reads before it binds it is carried from step to step. Whatever else a loop
does, it stays as it is.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exportdoctor.shims.rules.loop_headers import LoopHeader, header_of
from exportdoctor.shims.rules.loop_steps import LoopStep
from exportdoctor.shims.rules.made_code import call_of, load, thunk
from exportdoctor.shims.rules.name_flow import (
    OTHER_SCOPES,
    OWN,
    bound_names,
    is_read_first,
    names_in_other_scopes,
)
from exportdoctor.shims.rules.name_uses import NameUses, stacked_list
from exportdoctor.shims.rules.pure_code import Purity
from exportdoctor.shims.rules.stacked_lists import LoopsOfLists, write_lists_plainly

APPLIES, SCAN, TAKE, KEEP, JOIN, WRITE, VALUE = (
    f"{OWN}{name}" for name in ("applies", "steps", "rows_of", "with_rows", "join", "write_rows", "value_of")
)
"""What rewritten code calls."""

_STATE, _ROWS = f"{OWN}state", f"{OWN}rows"


@dataclass
class LoopRewrite:
    """Rewrites the loops of one function; `count` says how many. `purity` judges its code."""

    purity: Purity
    count: int = 0

    def of_function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The function with its loops rewritten, in a copy."""
        node = copy.deepcopy(node)
        write_lists_plainly(node)
        node.body = LoopsOfLists(self.purity).of_block(node.body)
        self._function, self._seen_inside = node, names_in_other_scopes(node)
        self._stacked: set[str] = set()
        node.body = self._block(node.body, [], [])
        for one in ast.walk(node):
            if (of := stacked_list(one)) is not None and of.id in self._stacked:
                one.func = ast.copy_location(ast.Attribute(load(JOIN), one.func.attr, ast.Load()), one)  # type: ignore[attr-defined]
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
        uses = NameUses(self._function, self._seen_inside)
        step = LoopStep(index=header.index, uses=uses)
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
        if any(one.shift < 0 and not _is_at_least(header.start, -one.shift) for one in step.inputs):
            return None  # before the first row Python reads the last one
        if not all(one.place is None or uses.is_only_written(one.name, loop, before) for one in step.outputs):
            return None
        shared = _shared_rows(body, carried, [one.row for one in step.outputs if one.place is None])
        if len({*shared.values()}) < len(shared):
            return None  # a tensor that is in two lists
        self.count += 1
        self._stacked |= {one.name for one in step.outputs if one.place is None}
        return self._statements(loop, header, step, body, carried, shared)

    def _statements(
        self,
        loop: ast.For,
        header: LoopHeader,
        step: LoopStep,
        body: list[ast.stmt],
        carried: list[str],
        shared: Mapping[str, str],
    ) -> list[ast.stmt]:
        number = self.count
        first, length, function = (f"{OWN}{name}_{number}" for name in ("start", "length", "step"))
        state = ast.Tuple([load(name) for name in carried], ast.Load())
        outputs = ast.Tuple([load(one.row) for one in step.outputs], ast.Load())
        arguments = ast.arguments([], [ast.arg(_STATE), ast.arg(_ROWS)], None, [], [], None, [])
        unpacked = [
            ast.Assign([_names(names)], load(source))
            for names, source in ((carried, _STATE), ([one.name for one in step.inputs], _ROWS))
            if names
        ]
        nested = ast.FunctionDef(
            function,
            arguments,
            [*unpacked, *body, ast.Return(ast.Tuple([state, outputs], ast.Load()))],
            [], None, None,
        )  # fmt: skip
        backwards = ast.Constant(header.backwards)
        rows: list[ast.expr] = [
            call_of(
                TAKE, one.tensor, ast.Constant(one.place), _with_shift(load(first), one.shift), load(length), backwards
            )
            for one in step.inputs
        ]
        targets = [_names(carried), _names([one.row for one in step.outputs])]
        scanned: list[ast.stmt] = [
            nested,
            ast.Assign(
                [ast.Tuple(list(targets), ast.Store())],
                call_of(SCAN, load(function), state, ast.Tuple(rows, ast.Load()), load(length)),
            ),
        ]
        for row, name in shared.items():
            last = ast.Subscript(load(row), ast.UnaryOp(ast.USub(), ast.Constant(1)), ast.Load())
            scanned.append(ast.Assign([ast.Name(name, ast.Store())], last))
        for one in step.outputs:
            if one.place is None:
                kept = call_of(KEEP, load(one.name), load(one.row))
                scanned.append(ast.Assign([ast.Name(one.name, ast.Store())], kept))
            else:
                write = call_of(WRITE, load(one.name), ast.Constant(one.place), load(first), load(one.row), backwards)
                scanned.append(ast.Expr(write))
        lists: list[ast.expr] = [load(one.name) for one in step.outputs if one.place is None]
        before: list[ast.expr] = [call_of(VALUE, thunk(load(name))) for name in carried]
        applies = call_of(APPLIES, load(length), ast.Tuple(before, ast.Load()), ast.Tuple(lists, ast.Load()))
        plain = copy.deepcopy(loop)
        if header.over is not None:
            plain.iter = header.over
        else:
            indices = call_of("range", load(first), ast.BinOp(load(first), ast.Add(), load(length)))
            plain.iter = call_of("reversed", indices) if header.backwards else indices
        made: list[ast.stmt] = [
            *header.before,
            ast.Assign([ast.Name(first, ast.Store())], header.start),
            ast.Assign([ast.Name(length, ast.Store())], ast.BinOp(header.stop, ast.Sub(), load(first))),
            ast.If(applies, scanned, [plain]),
        ]
        return [ast.fix_missing_locations(ast.copy_location(one, loop)) for one in made]


def _shared_rows(body: Sequence[ast.stmt], carried: Sequence[str], rows: Sequence[str]) -> dict[str, str]:
    """The rows that are the state itself where a step ends, each with its name: a list and the name share the last."""
    found: dict[str, str] = {}
    for one in body:
        bound = {*bound_names(one)}
        found = {row: name for row, name in found.items() if not bound & {row, name}}
        match one:
            case ast.Assign(targets=[ast.Name(id=row)], value=ast.Name(id=name)) if row in rows and name in carried:
                found[row] = name
    return found


def _names(names: Sequence[str]) -> ast.Tuple:
    return ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())


def _is_at_least(number: ast.expr, least: int) -> bool:
    """Whether a number that the code shows is at least this."""
    match number:
        case ast.Constant(value=int() as value):
            return value >= least
        case ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=int() as value)):
            return _is_at_least(left, least - value)
    return False


def _with_shift(start: ast.expr, by: int) -> ast.expr:
    return start if by == 0 else ast.BinOp(start, ast.Add(), ast.Constant(by))
