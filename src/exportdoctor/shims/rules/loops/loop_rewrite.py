"""Rewrites loops over the rows of tensors as steps of a scan: each reads and writes one row, and carries state.

A step may bind local names, read tensors at the loop's index, add to a list that is stacked afterwards, and write
tensors at the index. A name that a step reads before it binds it is carried from step to step; where it begins as None
or a number, the first step runs by itself. Whatever else a loop does, it stays as it is.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from exportdoctor.shims.rules.code.made_code import load
from exportdoctor.shims.rules.code.name_flow import (
    OTHER_SCOPES,
    all_names,
    bound_names,
    is_read_first,
    names_in_other_scopes,
)
from exportdoctor.shims.rules.code.name_uses import NameUses, stacked_list
from exportdoctor.shims.rules.code.own_containers import WITH_ITEM, names_written_in_place, write_items_as_bindings
from exportdoctor.shims.rules.code.own_tensors import UPDATED, write_updates_as_bindings
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.shims.rules.loops.loop_code import JOIN, LoopCode
from exportdoctor.shims.rules.loops.loop_headers import header_of
from exportdoctor.shims.rules.loops.loop_steps import WITH_NUMBER, LoopStep
from exportdoctor.shims.rules.loops.stacked_lists import LoopsOfLists, write_lists_plainly


@dataclass
class LoopRewrite:
    """Rewrites the loops of one function; `count` says how many. `purity` judges its code."""

    purity: Purity
    count: int = 0

    def of_function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The function with its loops rewritten, in a copy."""
        node = copy.deepcopy(node)
        write_lists_plainly(node)
        write_updates_as_bindings(node, self.purity)
        self._written = names_written_in_place(node)
        self._containers = set[str]() if self._written else write_items_as_bindings(node)
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
        purity = replace(self.purity, callees={**self.purity.callees, WITH_ITEM: (), UPDATED: (), WITH_NUMBER: ()})
        if header is None or not all(map(purity.of_expression, header.expressions)):
            return None
        uses = NameUses(self._function, self._seen_inside)
        step = LoopStep(index=header.index, uses=uses)
        body = step.of_body(header.body)
        if body is None or not purity.of_statements(body) or not all(map(purity.of_expression, step.ends)):
            return None
        bound = {name for one in body for name in bound_names(one)}
        carried = [name for name in sorted(bound) if is_read_first(name, body)]
        lost = bound - set(carried)
        if any(is_read_first(name, after) for name in (*lost, header.index)) or header.index in bound:
            return None
        if self._seen_inside & {*bound, header.index}:
            return None
        if any(one.row.shift < 0 and not _is_at_least(header.start, -one.row.shift) for one in step.inputs):
            return None  # before the first row Python reads the last one
        if not all(one.is_listed or uses.is_only_written(one.name, loop, before) for one in step.outputs):
            return None
        shared = _shared_rows(body, carried, [one.made for one in step.outputs if one.is_listed])
        if len({*shared.values()}) < len(shared):
            return None  # a tensor that is in two lists
        later = {name for name in carried if is_read_first(name, after)}
        if len(carried) + sum(one.is_listed for one in step.outputs) > 1 and self._may_write(later, after, purity):
            return None  # the same tensor may be in a list, or have another name
        if self._written and later & _names_bound_to_names(body):
            return None  # what is written into may be the tensor that a step has handed on
        self.count += 1
        number = self.count
        self._stacked |= {one.name for one in step.outputs if one.is_listed}
        loop.body = self._block(loop.body, [*before, loop], [loop, *after])  # it may stay as it is
        plain = header_of(loop, number)
        assert plain is not None
        return LoopCode(number, loop, plain, step, body, carried, shared).statements()

    def _may_write(self, names: set[str], after: Sequence[ast.stmt], purity: Purity) -> bool:
        """Whether the code writes into a tensor that one of these names has after the loop, as far as it shows that.
        What a list or dict of them holds may have another name: there a layer which works in place counts, too."""
        calls = (one for each in after for one in ast.walk(each) if isinstance(one, ast.Call))
        given = (
            one for one in calls if self._containers & names & {name for part in one.args for name in all_names(part)}
        )
        return bool(self._written & names) or any(_works_in_place(purity.resolve(one.func)) for one in given)


def _names_bound_to_names(body: Sequence[ast.stmt]) -> set[str]:
    """The names that a step binds to what another name has, as in `a, b = b, a`."""
    found: set[str] = set()
    for one in (each for part in body for each in ast.walk(part)):
        match one:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name()):
                found.add(name)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
                pairs = zip(names, values, strict=True)
                found |= {to.id for to, of in pairs if isinstance(to, ast.Name) and isinstance(of, ast.Name)}
    return found


def _works_in_place(layer: Any) -> bool:
    """Whether it is a layer of torch that writes into what it is given."""
    import torch

    while isinstance(layer, torch.nn.Sequential) and len(layer):
        layer = layer[0]
    return isinstance(layer, torch.nn.Module) and bool(getattr(layer, "inplace", False))


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


def _is_at_least(number: ast.expr, least: int) -> bool:
    """Whether a number that the code shows is at least this."""
    match number:
        case ast.Constant(value=int() as value):
            return value >= least
        case ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=int() as value)):
            return _is_at_least(left, least - value)
    return False
