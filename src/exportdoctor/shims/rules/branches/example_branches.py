"""Conditions on values are decided as for the example; the program asserts that they come out so.

torch computes the example's values beside the fake ones, as in `torch.export.draft_export`. That would also make
numbers of values: here it may decide conditions only, and none that leaves one number for a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.known_tensors import draws_at_random
from exportdoctor.shims.record import NotApplicable, Replacement, Shim, Unfit
from exportdoctor.torch_internals.example_values import (
    EXAMPLE_VALUES,
    assertions_of,
    can_only_be_zero_or_one,
    decide_by_example,
    find_unasserted,
    is_one_number,
)


class _Assumed:
    """The conditions that were decided, each with torch's record of symbols."""

    def __init__(self) -> None:
        self.conditions: dict[Any, Any] = {}
        self._binary: dict[Any, bool] = {}
        """Whether a symbol was one of two numbers before anything was assumed of it."""

    def note(self, env: Any, condition: Any) -> bool:
        """Note a condition; false where it says of a value which number it is, unless that is one of two."""
        import sympy  # type: ignore[import-untyped]

        for symbol in condition.free_symbols:
            self._binary.setdefault(symbol, can_only_be_zero_or_one(env, symbol))
        equal = sympy.sympify(condition).atoms(sympy.Eq)
        if not all(self._binary[symbol] for one in equal for symbol in one.free_symbols):
            return False
        self.conditions[condition] = env
        return True

    def check(self, program: Any) -> None:
        """Raise NotApplicable where nothing was decided, one number is left for a value, chance decides, or the program
        does not assert what was decided."""
        if not self.conditions:
            raise NotApplicable("no condition on values was decided as for the example")
        for condition, env in self.conditions.items():
            for symbol in condition.free_symbols:
                if is_one_number(env, symbol) and not self._binary[symbol]:
                    raise NotApplicable(f"the conditions leave one number for {symbol}")
        if lost := find_unasserted(program, self.conditions):
            raise NotApplicable(f"the program does not assert {lost}")
        if drawn := next(filter(None, map(_random_source, assertions_of(program))), ""):
            raise NotApplicable(f"a condition depends on numbers that {drawn} draws")


def _random_source(node: Any) -> str:
    """The name of an operator that gives other values each time, from which the node's value comes; else empty."""
    pending, seen = [node], set()
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        writers = (user for user in one.users if user.args[:1] == (one,) and _writes(user))
        if drawn := next((str(node.target) for node in (one, *writers) if _draws(node)), ""):
            return drawn
        pending.extend(one.all_input_nodes)
    return ""


def _writes(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _draws(node: Any) -> bool:
    """Whether it gives other values each time; dropout does in training alone."""
    return node.op == "call_function" and draws_at_random(node.target) and False not in node.args


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    if not EXAMPLE_VALUES.is_supported():
        raise Unfit("this torch cannot compute the example's values while it traces")
    assumed, generator = _Assumed(), torch.get_rng_state()

    def restore_generator(_: Any) -> None:
        """What forward draws for the example's values moves it; runs of the program begin where eager begins."""
        torch.set_rng_state(generator)

    with torch.random.fork_rng(devices=[]), decide_by_example(assumed.note):
        yield replace(call, checks=(*call.checks, assumed.check, restore_generator))


SHIM = Shim(
    id="branches-as-example",
    title="Decides conditions on values as for the example, and asserts them in the program",
    soundness="precondition",
    enter=_enter,
    does=(
        "While torch traces, the example's values are computed beside the fake ones, as `torch.export.draft_export` "
        "does. A condition on values (`if mask.any():`, `if found.shape[0] == 0:`) then takes the branch that the "
        "example takes, and the program asserts that it does. Values stay symbolic: where a number is needed, or the "
        "conditions leave one number for a value, chance decides, or torch drops the assertion, the shim "
        "does not apply."
    ),
    precondition="conditions on values come out as for the example, which the program asserts",
    asserts=True,
    cures=(Cure(kinds=("data_dependent_guard",), exporters=("export",)),),
    needs={"torch": ">=2.13"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    rank=80,
    retire="",
    replaces=(
        Replacement(
            target="the conditions on values",
            before="if mask.any():\n    x = x * mask\n",
            after='torch._check(mask.any().item(), lambda: "as in the example")\nx = x * mask\n',
        ),
    ),
)
