"""`if found.shape[0] == 0: continue`: a shortcut for the case that nothing is found, which export cannot decide.

The code behind it mostly gives the same for tensors without rows, so that the program can always run it. That is
compared in eager for inputs with which nothing is found: the known ones, and the example with all of its rows alike, so
that all but a few of several experts find nothing. Of each time that the condition is asked in a call, the program
asserts that something is found unless such an input has shown what nothing does there.
"""

from __future__ import annotations

import ast
import dis
import functools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Literal

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Inputs
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.branches.slice_conditions import SliceConditions
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, name_of, swap_code, user_functions
from exportdoctor.shims.rules.code.pure_callees import only_computes
from exportdoctor.targets.eager import CallResult, run_calls, same_values
from exportdoctor.torch_internals.module_proxies import is_same_module, state_id
from exportdoctor.torch_internals.shape_env import is_decided, truth_of_nothing
from exportdoctor.torch_internals.trees import tree_flatten, tree_leaves, tree_map

if TYPE_CHECKING:
    import torch

_SETTLE = "_exportdoctor_settle"
_ASKS_FOR_NOTHING = (
    r"(Eq|Ne)\([^(),]*u\d+[^(),]*, 0\)|u\d+ (> 0|<= 0|< 1|>= 1)\b|\b0 < [^,]*u\d+"
    r"|(Eq|Ne)\([^(),]*u\d+[^(),]*, [^(),]*u\d+[^(),]*\)|u\d+ (>=|<) [^,]*u\d+"
)
Mode = Literal["watch", "export", "force"]
"""What a condition does: answer and be noted, be settled while the program is made, or answer as it was settled."""
_SIZES = frozenset({"shape", "size", "numel", "len"})
_SLICES = frozenset({"BUILD_SLICE", "BINARY_SLICE"})
_MOST_ROWS, _MOST_FRAMES, _SECONDS = 12, 60, 5.0
"""Of processor time for inputs with rows alike."""


Asked = tuple[str, tuple[tuple[str, int, str], ...], int]
"""A condition; the user's calls that lead to it, each with code, line and module; how often these have asked before."""


@dataclass
class Shortcuts:
    """The conditions that were settled, and what eager runs show of them."""

    call: ExportCall
    mode: Mode = "export"
    counts: Counter[tuple[str, tuple[tuple[str, int, str], ...]]] = field(default_factory=Counter)
    """How often each condition was asked in this run."""
    answers: dict[Asked, bool] = field(default_factory=dict)
    """Those of one run in eager."""
    inputs: list[Inputs] = field(default_factory=list)
    """Those that eager takes."""
    runs: list[tuple[dict[Asked, bool], Counter[Any]]] = field(default_factory=list)
    """The answers and counts of each of them."""
    settled: dict[Asked, bool] = field(default_factory=dict)
    excused: set[Asked] = field(default_factory=set)
    """Those for which no assertion was made."""

    @only_computes
    def settle(self, place: str, value: Any, of_empty_slice: bool | None, low: Any, high: Any) -> Any:
        """The condition; while exporting, the answer for something that is found where it asks whether anything is.

        `of_empty_slice` is what it gives for a slice that is empty, where it asks for that; where `high` is less than
        `low`, it gives that, too.
        """
        import torch

        if self.mode == "export" and not torch.compiler.is_exporting():
            return value  # in an eager run of another shim
        path = self._path(sys._getframe(1))
        asked = (place, path, self.counts[place, path])
        self.counts[place, path] += 1
        if self.mode == "force":
            return self.settled.get(asked, value)
        if self.mode == "watch":
            if _is_number(value):  # a size is no tensor
                self.answers[asked] = bool(value)
            return value
        of_nothing, is_ordered = truth_of_nothing(value), False
        if of_nothing is None and of_empty_slice is not None and not is_decided(value):
            of_nothing, is_ordered = of_empty_slice, low is not None
        if of_nothing is None or self.settled.get(asked) is of_nothing:
            return value
        self.settled[asked] = not of_nothing
        if any(answers.get(asked) is of_nothing for answers, _ in self.runs):
            self.excused.add(asked)
            if is_ordered:
                torch._check(low <= high)
        else:
            holds = value != 0 if isinstance(value, torch.SymInt) else value
            torch._check(torch.sym_not(holds) if of_nothing else holds)
        return not of_nothing

    def watch(self) -> None:
        """Note the answers in the known inputs, and in some whose rows are alike, that eager takes."""
        call, end = self.call, time.process_time() + _SECONDS
        known = ((call.args, call.kwargs), *call.more_inputs)
        for place, inputs in enumerate((*known, *alike_rows(known[0]))):
            if place >= len(known) and time.process_time() > end:
                break
            if self._run(inputs, "watch") is not None:
                self.inputs.append(inputs)
                self.runs.append((self.answers, self.counts))
        self.counts = Counter()

    def check(self) -> None:
        """Raises NotApplicable where no condition was settled, or an input gives something else without the
        shortcuts."""
        if not self.settled:
            raise NotApplicable("no condition asks whether anything was found")
        exported = self.counts
        for asked in self.excused:  # a run that skipped some code may have counted otherwise
            shown = [
                counts
                for answers, counts in self.runs
                if answers.get(asked) is not None and self.settled[asked] is not answers[asked]
            ]
            if all(counts[asked[:2]] != exported[asked[:2]] for counts in shown):
                raise NotApplicable("which of several conditions finds nothing is not known")
        for inputs in self.inputs:
            plain = self._run(inputs, "watch")
            if plain is not None and not _are_equal(plain, self._run(inputs, "force")):
                raise NotApplicable("where nothing is found, the code behind the shortcut gives something else")

    def _run(self, inputs: Inputs, mode: Mode) -> CallResult | None:
        """What eager gives for these inputs; None for those that it refuses."""
        self.mode, self.answers, self.counts = mode, {}, Counter()
        try:
            return run_calls(self.call.module, [inputs])[0]
        except Exception:
            return None
        finally:
            self.mode = "export"

    def _path(self, frame: FrameType | None) -> tuple[tuple[str, int, str], ...]:
        path: list[tuple[str, int, str]] = []
        while frame is not None and len(path) < _MOST_FRAMES:
            code = frame.f_code
            if is_user_file(code.co_filename):
                first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
                path.append(
                    (code.co_qualname, frame.f_lineno, self._names.get(id(getattr(first, "__dict__", None)), ""))
                )
                if is_same_module(first, self.call.module):
                    break
            frame = frame.f_back
        return tuple(path)

    @functools.cached_property
    def _names(self) -> dict[int, str]:
        return {state_id(module): name for name, module in self.call.module.named_modules()}


def alike_rows(example: Inputs) -> Iterator[Inputs]:
    """The example with one row in the place of all, for several rows: of floats (..., C) over all but the last
    dimension, of whole numbers over all. Masks stay."""
    import torch

    rows = max((_rows_of(leaf) for leaf in tree_leaves(example) if isinstance(leaf, torch.Tensor)), default=0)
    for row in range(0, rows, max(1, rows // _MOST_ROWS)):
        yield tree_map(functools.partial(_alike, row=row), example)


def _rows_of(tensor: torch.Tensor) -> int:
    import torch

    if tensor.dtype == torch.bool or tensor.layout != torch.strided or not tensor.dim() or not tensor.numel():
        return 0
    whole = not tensor.is_floating_point() or tensor.dim() == 1
    return tensor.numel() if whole else tensor.numel() // tensor.shape[-1]


def _alike(leaf: Any, row: int) -> Any:
    import torch

    rows = _rows_of(leaf) if isinstance(leaf, torch.Tensor) else 0
    if rows < 2:
        return leaf
    flat = leaf.reshape(rows, -1)
    return flat[row % rows].expand_as(flat).reshape(leaf.shape).clone()


def _are_equal(plain: CallResult, forced: CallResult | None) -> bool:
    """Whether two calls gave the same and left the same in their inputs and buffers."""
    import torch

    if forced is None:
        return False
    (left, layout), (right, same) = (
        tree_flatten([one.output, one.after, one.buffers, one.numbers]) for one in (plain, forced)
    )
    return layout == same and all(
        same_values(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else bool(a == b)
        for a, b in zip(left, right, strict=True)
    )


def _is_number(value: Any) -> bool:
    """Whether it is a flag or a whole number, of Python or of numpy."""
    import numpy as np

    return isinstance(value, bool | int | np.bool_ | np.integer)


class _Conditions(ast.NodeTransformer):
    """Each condition of an `if`, and each part of one that `and`, `or` and `not` join."""

    def __init__(self, function: str, slices: SliceConditions) -> None:
        self.function, self.slices, self.count = function, slices, 0

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test = self._settle(node.test)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test = self._settle(node.test)
        return node

    def _settle(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.BoolOp(values=values):
                node.values = [self._settle(value) for value in values]
                return node
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                node.operand = self._settle(operand)
                return node
        self.count += 1
        name = ast.Name(_SETTLE, ast.Load())
        nothing, none = self.slices.of_nothing(node), ast.Constant(None)
        answer = none if nothing is None else ast.Constant(nothing.answer)
        bounds = (none, none) if nothing is None else (nothing.low or none, nothing.high or none)
        place = ast.Constant(f"{self.function}:{self.count}")
        return ast.copy_location(ast.Call(name, [place, node, answer, *bounds], []), node)


def _asks_for_sizes(code: CodeType) -> bool:
    """Whether it may: it names what gives sizes, or it slices."""
    return not _SIZES.isdisjoint(code.co_names) or any(one.opname in _SLICES for one in dis.get_instructions(code))


def _rewritten(function: FunctionType) -> CodeType | None:
    """Its code with conditions that may be settled; None where there is none."""
    node = definition_of(function)
    if node is None:
        return None
    conditions = _Conditions(name_of(function), SliceConditions(node))
    changed = conditions.visit(node)
    return compile_for(function, changed) if conditions.count else None


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = dict.fromkeys(user_functions(call, _asks_for_sizes))
    changes = {one: code for one in found if (code := _rewritten(one)) is not None}
    if not changes:
        raise NotApplicable("no function asks a condition on sizes")
    shortcuts = Shortcuts(call)
    with swap_code(changes, {_SETTLE: shortcuts.settle}):
        shortcuts.watch()
        yield replace(call, checks=(*call.checks, lambda program: shortcuts.check()))


SHIM = Shim(
    id="no-empty-shortcut",
    title="Runs the code behind a shortcut for empty tensors in any case",
    soundness="precondition",
    enter=_enter,
    does=(
        "`if found.shape[0] == 0: continue`, and its like, asks for a size that depends on values; so does "
        "`if count == 0: continue`, where the function has a slice `x[start : start + count]`. The code behind it "
        "runs for tensors without rows, too, and mostly gives what the shortcut gives: the program always runs it. "
        "Inputs with which nothing is found are compared in eager, known ones and the example with all rows alike, and "
        "the shim does not apply where they give something else."
    ),
    precondition=(
        "where nothing is found, the code behind the shortcut gives what the shortcut gives; without an input "
        "that shows it, the program asserts that something is found"
    ),
    asserts=True,
    cures=(Cure(kinds=("data_dependent_guard",), message=_ASKS_FOR_NOTHING),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="the code has no such shortcut, or asks torch.fx.experimental.symbolic_shapes.guard_or_false",
    rank=18,
    replaces=(
        Replacement(
            target="the functions that skip what nothing was found for",
            before="if rows.numel() == 0:\n    continue\n",
            after="if guard_or_false(rows.numel() == 0):\n    continue\n",
        ),
    ),
)
