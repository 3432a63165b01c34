"""`if` on a tensor's value, or on how much was found (`len(x[mask]) > 0`), becomes a choice in the program,
`torch.where` or `torch.cond`, where its arms are pure.

The conditions are found by running forward: every place where Python asks a tensor for its value, or for a size that
may depend on values. A size of an input stays a number, for a guard to be made of it. The function is
rewritten by its syntax tree (`merge_branches.py`; `arm_choice.py` has what the code then calls). What cannot be chosen
between (other sizes, dtypes or Python values) stays a branch, and fails as before.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.branches.arm_attributes import assign_by_names
from exportdoctor.shims.rules.branches.arm_choice import CHOOSE, SUM, ArmChoices
from exportdoctor.shims.rules.branches.arm_ends import ArmEnds
from exportdoctor.shims.rules.branches.arm_writes import write_into_copies
from exportdoctor.shims.rules.branches.inlined_calls import inline_calls, return_behind_writes
from exportdoctor.shims.rules.branches.loop_attributes import assign_behind_loops
from exportdoctor.shims.rules.branches.loop_exits import LoopExits, asks_for_flags
from exportdoctor.shims.rules.branches.merge_branches import MergedBranches, OpenConditions, with_returns_last
from exportdoctor.shims.rules.code.asked_lines import SizedByValues, code_of_asking
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, name_unreadable, user_functions
from exportdoctor.shims.rules.code.name_flow import READS_ALL_NAMES
from exportdoctor.shims.rules.code.observed_rewrite import run_rewritten
from exportdoctor.shims.rules.code.own_tensors import write_counters_as_bindings, write_sums_as_bindings
from exportdoctor.shims.rules.code.pure_code import Purity


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
    purity = Purity(function=function, instances=instances, callees={SUM: ()})
    return_behind_writes(node, OpenConditions(lines, node).is_open, purity)
    inline_calls(node, OpenConditions(lines, node).is_open, purity)
    write_counters_as_bindings(node)
    write_sums_as_bindings(node, purity, OpenConditions(lines, node).is_open, SUM)
    assign_behind_loops(node, OpenConditions(lines, node).is_open, purity)
    assign_by_names(node, OpenConditions(lines, node).is_open, instances)
    ArmEnds(OpenConditions(lines, node).is_open).of_function(node)
    plain = copy.deepcopy(node)
    LoopExits(purity, OpenConditions(lines, node).is_open).of_function(node)
    for one in (node, plain):
        is_open = OpenConditions(lines, one).is_open
        one.body = with_returns_last(one.body, is_open)
        write_into_copies(one, is_open, purity.is_plain_attribute)
        merging = MergedBranches(purity, OpenConditions(lines, one), one)
        changed = merging.visit(one)
        if not asks_for_flags(changed):
            break
    return changed if merging.count else None


def _code_of(function: FunctionType, lines: frozenset[int], instances: tuple[Any, ...]) -> CodeType | None:
    node = rewrite_branches(function, lines, instances)
    return compile_for(function, node) if node is not None else None


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    if next(user_functions(call, lambda code: CHOOSE in code.co_names), None) is not None:
        yield call  # another shim has applied this one, to all functions
        return
    sizes = SizedByValues()
    changes = code_of_asking(call, _code_of, sizes=sizes)
    choices = ArmChoices(of_sizes=sizes.asked)
    if not changes:
        why = "no function branches on a tensor's value with arms that only compute, nor on how much was found"
        raise NotApplicable(name_unreadable(call) or why)
    with run_rewritten(call, choices, choices.names, changes) as given:
        yield given


SHIM = Shim(
    id="branch-as-where",
    title="Makes a branch on tensor values a choice in the program, by torch.where or torch.cond",
    soundness="precondition",
    enter=_enter,
    does=(
        "An `if` on the value of a tensor, such as a clamp of values that overflow or an early return, or a `match` "
        "of one with plain values, or on how much was found (`len(x[mask]) > 0`, `found.numel() == 0`), also where "
        "another function has read that number, is rewritten in the function's syntax tree: both arms are computed, "
        "and the program chooses between their results. Two numbers of one type give a number, which is read from "
        "such a choice. Where an arm may refuse the values for which it is not taken (it looks up places, divides "
        "whole numbers, raises, or gives NaN), torch.cond computes one arm only; the shim does not apply where torch "
        "does not take them, unless an arm does no more than give NaN where nothing was found, which torch.where "
        "leaves out. Nor does it where torch asserts for the whole program what one arm needs of how much was found. "
        "Arms must only compute, by assignments to local names or to tensors that `self` holds, or write into "
        "tensors, and into lists and dicts that the function makes: they write into copies, and the values that are "
        "chosen are written back, also where an arm returns early. Where they call a method of the module that does "
        "so, its statements stand in place of the call, and what Python computes before it stays before it. What "
        "begins as a number and is added to in an arm (`total = 0`, `total += loss`) gets a new value there. The "
        "second side of `and` and `or` is computed in any case: where it asks for the greatest or least value, or for"
        " a row, of what may be nothing, it is computed of more, and the program asserts that there is something "
        "wherever Python computes it. They may not raise, draw random values, or read what they write into by another"
        " name. What an arm prints, warns or logs is left out of the program, with the whole branch where it does "
        "nothing else. A loop that is left where a value says so, by `break` or `return`, is run to its end, and its "
        "later steps change nothing. It may keep a tensor on the module (`self.err = ...`, `if self.err < tol: "
        "break`), where nothing else that it runs could see that. Where both arms end by appending to one list, what "
        "they append is chosen. The shim does not apply where a tensor that was chosen, or was chosen from, is "
        "written into later."
    ),
    precondition=(
        "arms that torch.where chooses between, both sides of `and` and `or`, and all that `any` and `all` go over can "
        "be computed in any case; a whole number that is compared with a float is at most 2**53 (the program asserts "
        "it); where one arm gives a number and the other a tensor of no dimension, one of its dtype does as well; "
        "nobody needs what such an arm prints, warns or logs, or what such a loop leaves in an attribute that is no "
        "buffer (no exported program does either), or takes gradients through an arm that is not taken and gives NaN "
        "or infinity, or through one of torch.cond that writes into a tensor (torch raises then)"
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
