"""A `while` on a tensor's value becomes a loop in the program, by torch's while_loop, where its body only computes.

The functions are rewritten by their syntax tree (`while_rewrite.py`). What the loop carries are tensors in the program:
a number becomes one of 64 bits, out of which the test and the step read it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.asked_lines import asked_lines, run_known
from exportdoctor.shims.rules.code_swap import compile_for, definition_of, owners_of, swap_code
from exportdoctor.shims.rules.later_writes import LaterWrites
from exportdoctor.shims.rules.name_flow import READS_ALL_NAMES, all_names
from exportdoctor.shims.rules.number_types import symbolic_numbers
from exportdoctor.shims.rules.pure_code import Purity
from exportdoctor.shims.rules.while_rewrite import ALL, ANY, NOT, RUN, TRUTH, VALUE, WhileRewrite
from exportdoctor.torch_internals.loop_operators import run_while

_UNBOUND = object()
"""The value of a name that has none before the loop."""
Step = Callable[..., tuple[Any, ...]]


@dataclass
class WhileLoops:
    """The functions that the code calls, and what was observed of each loop, by its name."""

    observing: bool = False
    seen: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """What the first step of a loop made in an eager run."""
    refused: list[str] = field(default_factory=list)
    writes: LaterWrites = field(
        default_factory=lambda: LaterWrites("loop", "with which a loop on values began or ended", operator="while_loop")
    )

    @property
    def names(self) -> dict[str, Any]:
        """What the names mean in the code."""
        return {RUN: self.run, TRUTH: truth_of, ALL: all_hold, ANY: any_holds, NOT: does_not_hold, VALUE: value_of}

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Within it, what eager runs of the code show is noted."""
        self.observing = True
        try:
            yield
        finally:
            self.observing = False

    def run(
        self,
        loop: str,
        test: Callable[..., Any],
        step: Step,
        state: tuple[Any, ...],
        read_later: tuple[bool, ...],
    ) -> tuple[Any, ...]:
        """The state after the loop, also where only a run of the program knows how many steps it takes."""
        import torch

        if _UNBOUND in [one for one in state if not isinstance(one, torch.Tensor)]:
            return _run_in_python(test, step, state)
        if self.observing:
            return _run_in_python(test, step, state, lambda made: self.seen.setdefault(loop, made))
        if not torch.compiler.is_exporting():
            return _run_in_python(test, step, state)
        later = self.seen.get(loop, state)
        kinds = [kind for one in zip(state, later, strict=True) if (kind := _kind_of(*one)) is not None]
        if len(kinds) < len(state):
            return _run_in_python(test, step, state)
        began = tuple(map(_pack, kinds, state, later))
        try:
            ended = run_while(
                lambda *given: test(*map(_unpack, kinds, given)),
                lambda *given: tuple(map(_pack, kinds, step(*map(_unpack, kinds, given)), given)),
                began,
            )
        except Exception as error:
            said = next(iter(str(error).strip().splitlines()), "")
            self.refused.append(f"torch's while_loop does not take that of {loop}: {type(error).__name__}: {said:.160}")
            raise NotApplicable(self.refused[-1]) from error
        if not torch.compiler.is_dynamo_compiling():
            self.writes.keep(*state, *ended)
        results = zip(kinds, ended, state, read_later, strict=True)
        return tuple(_unpack(kind, end) if read else before for kind, end, before, read in results)


def _run_in_python(
    test: Callable[..., Any], step: Step, state: tuple[Any, ...], note: Callable[[Any], Any] | None = None
) -> tuple[Any, ...]:
    while test(*state):
        state = step(*state)
        if note is not None:
            note(state)
    return state


# --- what a loop carries


def _kind_of(value: Any, later: Any) -> str | None:
    """How the program carries a value that is `later` after a step: as a `tensor`, as a `truth`, or as a number that is
    an `int` or a `float`. None where it cannot."""
    import torch

    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, bool | torch.SymBool):
        return "truth"
    if isinstance(later, torch.Tensor):
        return "tensor" if later.dim() == 0 and _is_exact(value, later.dtype) else None
    if isinstance(value, int | torch.SymInt):
        return "int" if isinstance(later, int | torch.SymInt) else None
    return "float" if isinstance(value, float | torch.SymFloat) else None


def _is_exact(value: Any, dtype: Any) -> bool:
    """Whether a tensor of that dtype can have this number."""
    import torch

    if type(value) not in (int, float) or (type(value) is float and not dtype.is_floating_point):
        return False
    return bool(torch.tensor(value, dtype=dtype).item() == value)


def _pack(kind: str, value: Any, like: Any) -> Any:
    """The value as a new tensor; a number that is carried as a tensor as one of the dtype of `like`."""
    import torch

    if kind == "truth":
        return truth_of(value).clone()
    if kind == "int":
        return torch.scalar_tensor(value, dtype=torch.int64)
    if kind == "float":
        return torch.scalar_tensor(value, dtype=torch.float64)
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.contiguous_format)
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _unpack(kind: str, tensor: Any) -> Any:
    return tensor.item() if kind in ("int", "float") else tensor


def value_of(read: Callable[[], Any]) -> Any:
    """What `read` gives, or a mark where the name is not bound yet."""
    try:
        return read()
    except NameError:
        return _UNBOUND


# --- conditions


def truth_of(value: Any) -> Any:
    """During export a condition as a tensor, bool (); otherwise the value."""
    import torch

    if not torch.compiler.is_exporting():
        return value
    if isinstance(value, torch.Tensor):
        return value.reshape(()).to(torch.bool)
    number = value if type(value) in (bool, torch.SymBool) else value != 0
    return torch.scalar_tensor(torch.sym_ite(number, 1, 0), dtype=torch.int64) != 0


def all_hold(first: Any, *others: Callable[[], Any]) -> Any:
    """`first and other() and ...`; during export all of them are computed."""
    import torch

    if not torch.compiler.is_exporting():
        return first and all(one() for one in others)
    found = truth_of(first)
    for one in others:
        found = found & truth_of(one())
    return found


def any_holds(first: Any, *others: Callable[[], Any]) -> Any:
    """`first or other() or ...`; during export all of them are computed."""
    import torch

    if not torch.compiler.is_exporting():
        return first or any(one() for one in others)
    found = truth_of(first)
    for one in others:
        found = found | truth_of(one())
    return found


def does_not_hold(value: Any) -> Any:
    """`not value`."""
    import torch

    return ~truth_of(value) if torch.compiler.is_exporting() else not value


# --- the shim


def _rewrite_loops(function: FunctionType, lines: frozenset[int], instances: Sequence[Any]) -> CodeType | None:
    """Its code with loops that may be the program's; None where there is no such loop."""
    node = definition_of(function)
    if node is None or READS_ALL_NAMES & {*all_names(node)}:
        return None
    rewrite = WhileRewrite(Purity(function=function, instances=instances), lines)
    changed = rewrite.of_function(node)
    return compile_for(function, changed) if rewrite.count else None


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    loops = WhileLoops()
    found = {one: _rewrite_loops(one, lines, owners_of(call, one)) for one, lines in asked_lines(call).items()}
    changes = {one: code for one, code in found.items() if code is not None}
    if not changes:
        raise NotApplicable("no function has a `while` on a tensor's value with a body that only computes")
    with symbolic_numbers(call), swap_code(changes, loops.names):
        with loops.observe():
            run_known(call)
        try:
            yield replace(call, checks=(*call.checks, loops.writes.check))
        finally:
            if loops.refused:  # forward may have caught it
                raise NotApplicable(loops.refused[0])


SHIM = Shim(
    id="while-as-while-loop",
    title="Makes a `while` on a tensor's value a loop in the program, by torch's while_loop",
    soundness="precondition",
    enter=_enter,
    does=(
        "Python asks a tensor whether a `while` goes on. The function is rewritten in its syntax tree, so that torch's "
        "while_loop runs the body as often as the values say. The body may only compute and bind local names; what it "
        "carries keeps its sizes and dtypes. `if condition: break` may stand at the beginning or the end of the body, "
        "and anywhere in that of a `while True`. The shim does not apply where a tensor is written into with which the "
        "loop began or ended. torch.onnx translates the loop to ONNX's Loop."
    ),
    precondition="both sides of `and` and `or` in the loop's condition can be computed in any case",
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
