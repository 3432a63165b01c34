"""A loop over the numbers that a tensor has, as that over the experts of tokens, becomes one over all that it may have.

How often Python runs such a loop depends on values. Where the body indexes a list of modules, or a parameter, by the
number, all numbers are known: the loop goes over all of them, with a condition that the tensor has the number around
its body, and the program asserts that the tensor has no other. Of each condition a choice is made, as `branch.py` does.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.branches.branch import SHIM as BRANCHES
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, swap_code, user_functions
from exportdoctor.shims.rules.code.name_flow import READS_ALL_NAMES, all_names
from exportdoctor.shims.rules.code.pure_callees import only_computes
from exportdoctor.shims.rules.loops.found_rewrite import ELEMENT, KEPT, PLACES, PREFIX, VALUES, FoundLoops

_PYTHONS_OWN = {"frozenset", "int", "len", "list", "range", "set", "sorted", "tuple"}
"""What the rewriting takes for Python's own functions."""
_FOR = dis.opmap["FOR_ITER"]


class FoundNumbers:
    """What rewritten code calls; `refused` is why the shim does not apply."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    @property
    def names(self) -> dict[str, Callable[..., Any]]:
        """What the names mean in the code."""
        among, places = (
            only_computes(lambda *given: self.among(*given)),
            only_computes(lambda *given: self.places(*given)),
        )
        return {VALUES: among, PLACES: places, ELEMENT: number_of, KEPT: numbers_in}

    def among(self, tensor: Any, holders: Sequence[Any], most: int | None) -> list[Any]:
        """For each number from 0, below the length of each of `holders`, whether the tensor has it. The program asserts
        that it has no other."""
        import torch

        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in _whole_dtypes():
            raise self._refuse("a loop goes over what are no whole numbers of a tensor")
        count = min(self._length(holder) for holder in holders)
        if most is not None and count > most:
            raise self._refuse(f"the order of a set is known for numbers below {most} alone, and there are {count}")
        within = ((tensor >= 0) & (tensor < count)).all()
        if torch.compiler.is_exporting():
            message = f"a loop goes over numbers of a tensor, which has others than 0 to {count - 1}"
            torch.ops.aten._assert_async.msg(within, message)
        elif not within:
            raise IndexError(f"a number is none from 0 to {count - 1}")
        return [(tensor == number).any() for number in range(count)]

    def places(self, tensor: Any, looked_at: Any = None) -> list[Any]:
        """For each place of a tensor of one dimension whether it is not zero there; or whether `tensor`, the places at
        which `looked_at` was not zero, has it."""
        import torch

        given = tensor if looked_at is None else looked_at
        if not isinstance(given, torch.Tensor) or given.dim() != 1:
            raise self._refuse("a loop goes over places in what is no tensor of one dimension")
        count = self._length(given)
        if looked_at is None:
            return [given[place] != 0 for place in range(count)]
        return [(tensor == place).any() for place in range(count)]

    def _length(self, holder: Any) -> int:
        import torch

        kinds = (list, tuple, torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)
        length: Any = None
        if isinstance(holder, torch.Tensor) and holder.dim():
            length = holder.shape[0]
        elif isinstance(holder, kinds):
            length = len(holder)
        if type(length) is not int:
            raise self._refuse("nothing of a fixed length says how many numbers there may be")
        return length

    def _refuse(self, why: str) -> NotApplicable:
        import torch

        if not torch.compiler.is_dynamo_compiling():
            self.refused.append(why)
        return NotApplicable(why)


@only_computes
def number_of(number: int, tensor: Any, dims: int, is_place: bool) -> Any:
    """The number as a loop over a tensor gives it: without dimensions, or with one of size one."""
    import torch

    dtype = torch.int64 if is_place else tensor.dtype
    return torch.tensor([number] if dims else number, dtype=dtype, device=tensor.device)


@only_computes
def numbers_in(tensor: Any, are_places: bool) -> Any:
    """What a list of its numbers, or of the places where it is not zero, is made of later; a write into it is none."""
    return tensor != 0 if are_places else tensor.clone()


def _whole_dtypes() -> tuple[Any, ...]:
    import torch

    return torch.int64, torch.int32, torch.int16, torch.int8


def _rewritten(function: FunctionType, refused: list[str]) -> CodeType | None:
    """Its code with such loops over all numbers; None where there is none."""
    node, loops = definition_of(function), FoundLoops()
    if node is None or _means_other_things(function, set(all_names(node))):
        return None
    changed = loops.of_function(node)
    refused += loops.refused
    return compile_for(function, changed) if loops.count else None


def _means_other_things(function: FunctionType, names: set[str]) -> bool:
    """Whether names in it are not what they are taken for, or may be read in ways that its code does not show."""
    import torch

    code, known = function.__code__, function.__globals__
    bound = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    own = any(name.startswith(PREFIX) for name in names)
    return own or bool(
        _PYTHONS_OWN & {*known, *bound}
        or names & READS_ALL_NAMES
        or "torch" in bound
        or known.get("torch", torch) is not torch
    )


def _loops(code: CodeType) -> bool:
    return _FOR in code.co_code[::2]


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    refused: list[str] = []
    found = dict.fromkeys(user_functions(call, _loops))
    changes = {one: code for one in found if (code := _rewritten(one, refused)) is not None}
    if not changes:
        raise NotApplicable("; ".join(refused) or "no function has a loop over the numbers that a tensor has")
    numbers = FoundNumbers()
    with swap_code(changes, numbers.names):
        try:
            with BRANCHES.apply(call) as given:
                yield given
        finally:
            if numbers.refused:
                raise NotApplicable(numbers.refused[0])


SHIM = Shim(
    id="found-numbers-as-range",
    title="Makes a loop over the numbers that a tensor has one over all that it may have",
    soundness="precondition",
    enter=_enter,
    does=(
        "How often Python runs `for expert in chosen.unique().tolist()`, or `for expert in counts.nonzero()`, depends "
        "on values. Where the body indexes a list of modules, a parameter or the like by the number, or the places are "
        "those in a tensor of a fixed size, all numbers that there may be are known. The loop goes over them in the "
        "same order, with the condition around its body that the tensor has the number. Of that condition, and of "
        "other branches on tensor values, a choice is made in the program, as `branch-as-where` does, by the same "
        "rules. The program computes the body for every number, also for those that are not found: experts without a "
        "token run on no rows, and what each step changes is copied. Not applicable where the loop is left by `break` "
        "or `return`, where its number is read behind it, or where the order of a set is not known."
    ),
    precondition=(
        "a tensor has no other numbers than those from 0 to below the length of what the loop's body indexes by them "
        "(the program asserts it); and the conditions of `branch-as-where`: the body can be computed for a number that "
        "is not found"
    ),
    cures=(
        Cure(
            kinds=("data_dependent_value", "data_dependent_guard"),
            where=r": for \w+ in |: \w+ = .*(\btolist\(|\bset\()",
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export converts such loops",
    rank=15,
    replaces=(
        Replacement(
            target="the functions that loop over the numbers that a tensor has",
            before=(
                "for expert in chosen.unique().tolist():\n    rows = chosen == expert\n"
                "    out[rows] = self.experts[expert](x[rows])\n"
            ),
            after=(
                "found = _found_among(chosen, (self.experts,), None)\nfor number in range(len(found)):\n"
                "    if found[number]:\n        expert = number\n        rows = chosen == expert\n"
                "        out[rows] = self.experts[expert](x[rows])\n"
            ),
        ),
    ),
)
