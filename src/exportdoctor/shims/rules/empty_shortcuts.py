"""`if found.shape[0] == 0: continue`: a shortcut for the case that nothing is found, which export cannot decide.

The code behind it mostly gives the same for tensors without rows, so that the program can always run it. That is
compared in eager for the known inputs with which nothing is found; where there is none, the program asserts that
something is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any, Literal

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Inputs
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code_swap import compile_for, definition_of, swap_code, user_functions
from exportdoctor.targets.eager import CallResult, run_calls, same_values
from exportdoctor.torch_internals.shape_env import truth_of_nothing
from exportdoctor.torch_internals.trees import tree_flatten

_SETTLE = "_exportdoctor_settle"
_ASKS_FOR_NOTHING = r"(Eq|Ne)\([^(),]*u\d+[^(),]*, 0\)|u\d+ (> 0|<= 0|< 1|>= 1)\b|\b0 < [^,]*u\d+"
Mode = Literal["watch", "export", "force"]
"""What a condition does: answer and be noted, be settled while the program is made, or answer as it was settled."""
_SIZES = frozenset({"shape", "size", "numel", "len"})


@dataclass
class Shortcuts:
    """The conditions that were settled, and what eager runs show of them."""

    mode: Mode = "export"
    answers: dict[str, set[bool]] = field(default_factory=dict)
    """Those of one run in eager."""
    seen: dict[str, set[bool]] = field(default_factory=dict)
    settled: dict[str, bool] = field(default_factory=dict)

    def settle(self, place: str, value: Any) -> Any:
        """The condition; while exporting, the answer for something that is found where it asks whether anything is."""
        import torch

        if self.mode == "force":
            return self.settled.get(place, value)
        if self.mode == "watch":
            if isinstance(value, bool | int):  # a size is no tensor
                self.answers.setdefault(place, set()).add(bool(value))
            return value
        of_nothing = truth_of_nothing(value)
        if of_nothing is None or self.settled.get(place) is of_nothing:
            return value
        self.settled[place] = not of_nothing
        if of_nothing not in self.seen.get(place, ()):
            holds = value != 0 if isinstance(value, torch.SymInt) else value
            torch._check(torch.sym_not(holds) if of_nothing else holds)
        return not of_nothing

    def watch(self, call: ExportCall) -> None:
        """Note the answers in the known inputs that eager takes."""
        for inputs in ((call.args, call.kwargs), *call.more_inputs):
            answers = self.answers = dict[str, set[bool]]()
            if self._run(call, inputs, "watch") is not None:
                for place, found in answers.items():
                    self.seen.setdefault(place, set()).update(found)

    def check(self, call: ExportCall) -> None:
        """Raises NotApplicable where no condition was settled, or a known input gives something else without the
        shortcuts."""
        if not self.settled:
            raise NotApplicable("no condition asks whether anything was found")
        for inputs in ((call.args, call.kwargs), *call.more_inputs):
            plain = self._run(call, inputs, "watch")
            if plain is not None and not _are_equal(plain, self._run(call, inputs, "force")):
                raise NotApplicable("where nothing is found, the code behind the shortcut gives something else")

    def _run(self, call: ExportCall, inputs: Inputs, mode: Mode) -> CallResult | None:
        """What eager gives for these inputs; None for those that it refuses."""
        self.mode = mode
        try:
            return run_calls(call.module, [inputs])[0]
        except Exception:
            return None
        finally:
            self.mode = "export"


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


class _Conditions(ast.NodeTransformer):
    """Each condition of an `if`, and each part of one that `and`, `or` and `not` join."""

    def __init__(self, function: str) -> None:
        self.function, self.count = function, 0

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
        place = ast.Constant(f"{self.function}:{self.count}")
        return ast.copy_location(ast.Call(name, [place, node], []), node)


def _asks_for_sizes(code: CodeType) -> bool:
    return not _SIZES.isdisjoint(code.co_names)


def _rewritten(function: FunctionType) -> CodeType | None:
    """Its code with conditions that may be settled; None where there is none."""
    node = definition_of(function)
    if node is None:
        return None
    conditions = _Conditions(f"{function.__module__}.{function.__qualname__}")
    changed = conditions.visit(node)
    return compile_for(function, changed) if conditions.count else None


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = dict.fromkeys(user_functions(call, _asks_for_sizes))
    changes = {one: code for one in found if (code := _rewritten(one)) is not None}
    if not changes:
        raise NotApplicable("no function asks a condition on sizes")
    shortcuts = Shortcuts()
    with swap_code(changes, {_SETTLE: shortcuts.settle}):
        shortcuts.watch(call)
        yield replace(call, checks=(*call.checks, lambda program: shortcuts.check(call)))


SHIM = Shim(
    id="no-empty-shortcut",
    title="Runs the code behind a shortcut for empty tensors in any case",
    soundness="precondition",
    enter=_enter,
    does=(
        "`if found.shape[0] == 0: continue`, and its like, asks for a size that depends on values. The code behind it "
        "runs for tensors without rows, too, and mostly gives what the shortcut gives: the program always runs it. "
        "Known inputs with which nothing is found are compared in eager, and the shim does not apply where they give "
        "something else."
    ),
    precondition=(
        "where nothing is found, the code behind the shortcut gives what the shortcut gives; without a known input "
        "that shows it, the program asserts that something is found"
    ),
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
