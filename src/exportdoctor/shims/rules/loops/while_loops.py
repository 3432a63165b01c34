"""A `while` on a tensor's value becomes a loop in the program, by torch's while_loop, where its body only computes.

The functions are rewritten by their syntax tree (`while_rewrite.py`; `step_choices.py` has what branches in a step
become). What the loop carries are tensors in the program: a number becomes one of 64 bits, out of which the test and
the step read it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.branches.arm_watch import Unmergeable, watch_arm
from exportdoctor.shims.rules.code.asked_lines import code_of_asking
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, name_unreadable
from exportdoctor.shims.rules.code.later_writes import LaterWrites
from exportdoctor.shims.rules.code.made_code import NO_VALUE
from exportdoctor.shims.rules.code.name_flow import READS_ALL_NAMES, all_names
from exportdoctor.shims.rules.code.observed_rewrite import UNBOUND, ObservedRewrite, run_rewritten, value_of
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.shims.rules.loops.loop_conditions import all_hold, any_holds, does_not_hold, truth_of
from exportdoctor.shims.rules.loops.step_choices import StepChoices
from exportdoctor.shims.rules.loops.while_rewrite import ALL, ANY, NOT, RUN, TRUTH, VALUE, WhileRewrite
from exportdoctor.torch_internals.loop_operators import run_while

Step = Callable[..., tuple[Any, ...]]


@dataclass
class WhileLoops(ObservedRewrite):
    """The functions that the code calls, and what was observed of each loop, by its name."""

    seen: dict[Any, list[tuple[Any, ...]]] = field(default_factory=dict)
    """What the steps of a loop made of such a state in eager runs, a description of each value."""
    writes: LaterWrites = field(
        default_factory=lambda: LaterWrites("loop", "with which a loop on values began or ended", operator="while_loop")
    )

    def __post_init__(self) -> None:
        self.choices = StepChoices(codes=self.codes, refused=self.refused)

    @property
    def names(self) -> dict[str, Any]:
        """What the names mean in the code."""
        return {RUN: self.run, TRUTH: truth_of, ALL: all_hold, ANY: any_holds, NOT: does_not_hold, VALUE: value_of,
                NO_VALUE: UNBOUND, **self.choices.names}  # fmt: skip

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Within it, what eager runs of the loops and of the branches in them show is noted."""
        with super().observe(), self.choices.observe():
            yield

    def run(
        self,
        loop: str,
        test: Callable[..., Any],
        step: Step,
        state: tuple[Any, ...],
        read_outside: tuple[bool, ...],
        flags: tuple[bool, ...],
    ) -> tuple[Any, ...]:
        """The state after the loop, also where only a run of the program knows how many steps it takes.

        `read_outside` are the names that code outside the loop reads, `flags` those that are only asked whether they
        hold.
        """
        import torch

        if any(one is UNBOUND for one in state):
            return _run_in_python(test, step, state)
        key = (loop, *map(_describe, state))
        if self.observing:
            return _run_in_python(test, partial(self._observe, loop, key, step), state)
        if not torch.compiler.is_exporting():
            return _run_in_python(test, step, state)
        if key not in self.seen:
            raise self.refuse(f"no eager run takes a step of {loop} from such values")
        kinds = []
        for place, value in enumerate(state):
            later = [made[place] for made in self.seen[key]]
            kind = _kind_of(value, later, read_outside=read_outside[place], is_flag=flags[place])
            if kind is None:
                raise self.refuse(f"a value that {loop} carries is of several kinds, or of none that a program has")
            kinds.append(kind)
        likes = [self.seen[key][0][place] for place in range(len(state))]
        began = tuple(map(_begin, kinds, state, likes))
        try:
            ended = run_while(
                lambda *given: test(*map(_unpack, kinds, given)),
                lambda *given: tuple(map(_pack, kinds, step(*map(_unpack, kinds, given)))),
                began,
            )
        except Exception as error:
            raise self.refuse(f"torch's while_loop does not take that of {loop}: {_reason_of(error)}") from error
        if not torch.compiler.is_dynamo_compiling():
            self.writes.keep(*state, *ended)
        results = zip(kinds, ended, state, read_outside, strict=True)
        return tuple(_unpack(kind, end) if read else before for kind, end, before, read in results)

    def _observe(self, loop: str, key: Any, step: Step, *state: Any) -> tuple[Any, ...]:
        """The next state, which is noted. Refused is a step that does more than compute, or that gives a tensor which
        others have: a later write into it would be lost."""
        watch = watch_arm(self.codes, calls=True)
        try:
            made: tuple[Any, ...] = watch.run(step, state)
        except Unmergeable as error:
            self.refuse(f"{error}, in a step of {loop}")
            return step(*state)
        new, old = watch.new_ones(made), {id(one) for one in state}
        if any(_is_tensor(one) and id(one) not in new | old for one in made):
            self.refuse(f"a step of {loop} gives a tensor that shares memory with another")
        self.seen.setdefault(key, []).append(tuple(map(_describe, made)))
        return made


def _run_in_python(test: Callable[..., Any], step: Step, state: tuple[Any, ...]) -> tuple[Any, ...]:
    while test(*state):
        state = step(*state)
    return state


def _reason_of(error: Exception) -> str:
    """What a step raised, in which dynamo tells it; else what dynamo says."""
    said = " ".join(str(error).split())
    own = re.search(r"raised exception (?:Unmergeable|NotApplicable)\((['\"])(.*?)\1\)", said)
    return own[2] if own else f"{type(error).__name__}: {said:.300}"


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


# --- what a loop carries


def _describe(value: Any) -> Any:
    """A tensor's dtype, rank and device; the class of any other value, of a symbolic number that of Python's."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.device
    numbers: dict[Any, Any] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return numbers.get(type(value), type(value))


def _kind_of(value: Any, later: Sequence[Any], *, read_outside: bool, is_flag: bool) -> str | None:
    """How the program carries a value that steps make such `later` ones of: as a `tensor`, as a `truth`, or as a number
    that is an `int` or a `float`. None where it cannot."""
    import torch

    kinds = {*later}
    if isinstance(value, torch.Tensor):
        return "tensor" if kinds == {_describe(value)} else None
    if is_flag and not read_outside and kinds <= {bool, *(one for one in kinds if _is_truth(one))}:
        return "truth"
    if len(kinds) > 1:
        return None
    (kind,) = kinds
    if isinstance(kind, tuple):  # it becomes a tensor
        dtype, rank, _ = kind
        alike = dtype in (torch.int64, torch.get_default_dtype()) and dtype.is_floating_point == (type(value) is float)
        return "tensor" if rank == 0 and (alike or not read_outside) and _is_exact(value, dtype) else None
    names = {int: "int", float: "float"}
    return names.get(kind) if kind is _describe(value) else None


def _is_truth(kind: Any) -> bool:
    """Whether it describes a tensor of one flag."""
    import torch

    return isinstance(kind, tuple) and kind[:2] == (torch.bool, 0)


def _is_exact(value: Any, dtype: Any) -> bool:
    """Whether a tensor of that dtype can have this number."""
    import torch

    if type(value) not in (int, float) or (type(value) is float and not dtype.is_floating_point):
        return False
    return bool(torch.tensor(value, dtype=dtype).item() == value)


def _begin(kind: str, value: Any, like: Any) -> Any:
    """The first value as a new tensor; a number that steps make a tensor of is one as `like` describes it."""
    if kind == "tensor" and not _is_tensor(value):
        import torch

        dtype, _, device = like
        return torch.full((), value, dtype=dtype, device=device)
    return _pack(kind, value)


def _pack(kind: str, value: Any) -> Any:
    """The value as a new tensor. Raises Unmergeable for one of another kind, as a step may make that no eager run
    took."""
    import torch

    if kind == "truth":
        return truth_of(value).clone()
    if kind == "tensor":
        if not isinstance(value, torch.Tensor):
            raise Unmergeable("a step makes a number of what was a tensor")
        return value.clone(memory_format=torch.contiguous_format)
    kinds = (int, torch.SymInt) if kind == "int" else (float, torch.SymFloat)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise Unmergeable(f"a step makes another value of what was a number of type {kind}")
    number: Any = value
    return torch.scalar_tensor(number, dtype=torch.int64 if kind == "int" else torch.float64)


def _unpack(kind: str, tensor: Any) -> Any:
    return tensor.item() if kind in ("int", "float") else tensor


# --- the shim


def _rewrite_loops(function: FunctionType, lines: frozenset[int], instances: tuple[Any, ...]) -> CodeType | None:
    """Its code with loops that may be the program's; None where there is no such loop."""
    node = definition_of(function)
    if node is None or READS_ALL_NAMES & {*all_names(node)}:
        return None
    rewrite = WhileRewrite(Purity(function=function, instances=instances), lines)
    changed = rewrite.of_function(node)
    return compile_for(function, changed) if rewrite.count else None


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    loops, changes = WhileLoops(), code_of_asking(call, _rewrite_loops)
    if not changes:
        why = "no function has a `while` on a tensor's value with a body that only computes"
        raise NotApplicable(name_unreadable(call) or why)
    with run_rewritten(call, loops, loops.names, changes) as given:
        yield given


SHIM = Shim(
    id="while-as-while-loop",
    title="Makes a `while` on a tensor's value a loop in the program, by torch's while_loop",
    soundness="precondition",
    enter=_enter,
    does=(
        "Python asks a tensor whether a `while` goes on. The function is rewritten in its syntax tree, so that torch's "
        "while_loop runs the body as often as the values say. The body may only compute and bind local names; what it "
        "carries keeps its sizes and dtypes. An `if` in it on what the loop changes becomes a choice between two arms, "
        "by torch.where, or by torch.cond where an arm may refuse values; so do `if condition: break` and `continue`. "
        "The shim does not apply where a tensor is written into with which the loop began or ended. torch.onnx "
        "translates the loop to ONNX's Loop, but for one with a torch.cond."
    ),
    precondition=(
        "both sides of `and` and `or` in a loop's conditions, and arms that torch.where chooses between, can be "
        "computed in any case; whole numbers stay within 64 bits"
    ),
    cures=(Cure(kinds=("data_dependent_value", "data_dependent_guard"), where=r": (?:while|if) "),),
    needs={"torch": ">=2.13"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export converts such loops",
    rank=21,
    replaces=(
        Replacement(
            target="the functions with a `while` on a tensor's value",
            before="while (y * y - x).abs().max() > 1e-4:\n    y = 0.5 * (y + x / y)\n",
            after=(
                "def _arm_test_1(y):\n    return (y * y - x).abs().max() > 1e-4\n\n"
                "def _arm_step_1(y):\n    y = 0.5 * (y + x / y)\n    return (y,)\n\n"
                "(y,) = while_loop(_arm_test_1, _arm_step_1, (y,))\n"
            ),
        ),
    ),
)
