"""A loop over the rows of a dynamic dimension that carries state becomes a scan in the program.

Python asks `range` for its number, so that a recurrence over the sequence fixes the sequence. The functions are
rewritten by their syntax tree (`loop_rewrite.py`), so that where the number is symbolic torch's scan runs the body.
"""

from __future__ import annotations

import ast
import dis
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, owners_of, swap_code, user_functions
from exportdoctor.shims.rules.code.name_flow import READS_ALL_NAMES, SCAN_PREFIX, all_names, own_names
from exportdoctor.shims.rules.code.observed_rewrite import value_of
from exportdoctor.shims.rules.code.own_containers import WITH_ITEM, with_item
from exportdoctor.shims.rules.code.own_tensors import UPDATED, with_update
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.shims.rules.loops.loop_code import (
    APPLIES,
    BEGINS,
    JOIN,
    KEEP,
    MIRROR,
    NUMBERS,
    SCAN,
    TAKE,
    VALUE,
    WRITE,
)
from exportdoctor.shims.rules.loops.loop_headers import COUNT, SOURCE
from exportdoctor.shims.rules.loops.loop_rewrite import LoopRewrite
from exportdoctor.shims.rules.loops.loop_steps import WITH_NUMBER
from exportdoctor.torch_internals.loop_operators import run_steps
from exportdoctor.torch_internals.shape_env import is_surely
from exportdoctor.torch_internals.trees import tree_flatten, tree_unflatten


class Rows:
    """A list of tensors to which a scan has added as many as it had steps. `parts` are rows, and tensors that have such
    rows as their dimension 0, each with whether it is the latter."""

    def __init__(self, parts: Sequence[tuple[Any, bool]]) -> None:
        self.parts = list(parts)

    def append(self, row: Any) -> None:
        """As that of a list."""
        self.parts.append((row, False))

    def insert(self, place: int, row: Any) -> None:
        """As that of a list, for a new first row."""
        self.parts.insert(place, (row, False))

    def reverse(self) -> None:
        """As that of a list."""
        self.parts = self[::-1].parts

    def __getitem__(self, places: slice) -> Rows:
        """As that of a list, for `[1:]`, `[:-1]` and `[::-1]`: there is at least one row in each part."""
        if places == slice(None, None, -1):
            return Rows([(part.flip(0) if is_many else part, is_many) for part, is_many in reversed(self.parts)])
        first, end = (0, slice(1, None)) if places.start == 1 else (-1, slice(None, -1))
        parts = self.parts[:]
        part, is_many = parts.pop(first)
        if is_many:
            parts.insert(0 if first == 0 else len(parts), (part[end], True))
        return Rows(parts)


def with_rows(before: Any, rows: Any, is_first: bool) -> Rows:
    """A list, and the rows of a scan behind it; or before it, the last one first."""
    parts = before.parts if isinstance(before, Rows) else [(one, False) for one in before]
    return Rows([(rows.flip(0), True), *parts] if is_first else [*parts, (rows, True)])


def scan_applies(numbers: Sequence[Any], state: Sequence[Any], lists: Sequence[Any]) -> bool:
    """Whether a loop is one for a scan: what it carries are tensors, or tuples, lists and dicts of tensors, what its
    lists have are tensors, and the number of its steps, the first of `numbers`, is symbolic. The other numbers are what
    its index is taken from."""
    import torch

    listed = (one for each in lists if isinstance(each, list) for one in each)
    is_dynamic = isinstance(numbers[0], torch.SymInt) and all(isinstance(one, int | torch.SymInt) for one in numbers)
    return is_dynamic and all(isinstance(one, torch.Tensor) for one in (*listed, *_values_in(state)))


def begins_plainly(numbers: Sequence[Any], state: Sequence[Any], lists: Sequence[Any]) -> bool:
    """Whether a loop would be one for a scan, but that its first step is given None or a number for some state."""
    values = [*_values_in(state)]
    others = [one for one in values if not (one is None or type(one) in (int, float))]
    return len(others) < len(values) and scan_applies(numbers, others, lists)


def _values_in(state: Iterable[Any], *, inside: bool = False) -> Iterator[Any]:
    """What tuples, lists and dicts hold. A list or dict `inside` of another stands for itself: it may have a name."""
    for one in state:
        if isinstance(one, tuple):
            yield from _values_in(one, inside=inside)
        elif type(one) in (list, dict) and not inside:
            yield from _values_in(one.values() if type(one) is dict else one, inside=True)
        else:
            yield one


def rows_first(value: Any, place: int) -> Any:
    """A tensor with that dimension as dimension 0; anything else as it is."""
    import torch

    return value.movedim(place, 0) if isinstance(value, torch.Tensor) and value.dim() else value


def count_of(*values: Any) -> Any:
    """The rows that each of these tensors has; none where one is no tensor, or has others: such a loop stays as it is.
    The program then holds for equal sizes."""
    import torch

    counts = [one.shape[0] if isinstance(one, torch.Tensor) and one.dim() else 0 for one in values]
    return counts[0] if all(is_surely(counts[0] == one) for one in counts[1:]) else 0


def start_from_end(end: Any, tensor: Any, place: int, start: Any, length: Any) -> Any:
    """The first of the rows at `end` without the index, which begins with `start`; a negative `end` counts from behind,
    as in an index."""
    last = end + tensor.shape[place] if isinstance(end, int) and end < 0 else end
    return last - (start + length - 1)


def rows_of(tensor: Any, place: int, start: Any, length: Any, backwards: bool) -> Any:
    """The rows that the loop reads, as dimension 0 in the order of its steps."""
    rows = tensor.movedim(place, 0).narrow(0, start, length)
    return rows.flip(0) if backwards else rows


def numbers_of(start: Any, length: Any, backwards: bool, beside: Any = None) -> Any:
    """The numbers of the steps in their order, on the device of what is read `beside` them."""
    import torch

    numbers = torch.arange(length, device=getattr(beside, "device", None)) + start
    return numbers.flip(0) if backwards else numbers


def with_number(left: Any, right: Any, name: str) -> Any:
    """The operator of that name on a tensor and the number of a step, which is a tensor of one int64, as on the tensor
    and a whole number of Python. Raises TypeError where there is no tensor beside the number."""
    import torch

    for number, other in ((left, right), (right, left)):
        if isinstance(number, torch.Tensor) and not isinstance(other, torch.Tensor):
            raise TypeError("a step computes with its number and with no tensor beside it")
    if left.dim() == right.dim() == 0 and left.dtype != right.dtype:  # a number of Python leaves the tensor's dtype
        kinds = [one.dtype for one in (left, right) if one.dtype not in (torch.int64, torch.bool)]
        left, right = (one.to(kinds[0]) if kinds and one.dtype == torch.int64 else one for one in (left, right))
    return getattr(operator, name)(left, right)


def scan(step: Callable[[Any, Any], Any], state: Sequence[Any], rows: Sequence[Any], length: Any) -> tuple[Any, Any]:
    """The state after all steps, and the rows that they computed."""
    import torch

    tensors, layout = tree_flatten(tuple(state))
    carried = [one.clone(memory_format=torch.contiguous_format) for one in tensors]
    device = next((one.device for one in (*tensors, *rows)), None)
    read = list(rows) or [torch.zeros(length, device=device)]

    def one_step(before: Any, given: Any) -> tuple[list[Any], list[Any]]:
        after, made = step(tree_unflatten(before[: len(carried)], layout), tuple(given[: len(rows)]))
        changed, changed_layout = tree_flatten(tuple(after))
        if changed_layout != layout:
            raise TypeError("a step of the loop carries other containers than it was given")
        new = [one.clone(memory_format=torch.contiguous_format) for one in changed]
        return new or [before[0].clone()], [one.clone() for one in made]

    last, made = run_steps(one_step, carried or [torch.zeros(1, device=device)], read)
    return tree_unflatten(last[: len(carried)], layout), tuple(made)


class _Joins:
    """`torch.stack` and its like of a list, or of the rows of a scan."""

    def stack(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """As `torch.stack`."""
        import torch

        if not isinstance(tensors, Rows):
            return torch.stack(tensors, *args, **kwargs)
        parts = [part if is_many else part.unsqueeze(0) for part, is_many in tensors.parts]
        return _copy((parts[0] if len(parts) == 1 else torch.cat(parts)).movedim(0, _dim(*args, **kwargs)))

    def cat(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """As `torch.cat`."""
        import torch

        if not isinstance(tensors, Rows):
            return torch.cat(tensors, *args, **kwargs)
        dim = _dim(*args, **kwargs)
        made = [_in_place(part, dim) if is_many else part for part, is_many in tensors.parts]
        return _copy(made[0]) if len(made) == 1 else torch.cat(made, dim)

    concat = cat


def _dim(dim: int = 0, *, axis: int | None = None) -> int:
    return dim if axis is None else axis


def _copy(tensor: Any) -> Any:
    """What torch makes of a list is new memory, in the order of the dimensions."""
    import torch

    return tensor.clone(memory_format=torch.contiguous_format)


def _in_place(rows: Any, dim: int) -> Any:
    """The rows along that dimension of each."""
    place = dim if dim >= 0 else dim + rows.dim() - 1
    return rows.movedim(0, place).flatten(place, place + 1)


def write_rows(tensor: Any, place: int, start: Any, rows: Any, backwards: bool) -> None:
    """What the steps write to the tensor, each row in the shape of what it is written to."""
    rows = rows.flip(0) if backwards else rows
    written = tensor.movedim(place, 0).narrow(0, start, rows.shape[0])
    while rows.dim() < written.dim():
        rows = rows.unsqueeze(1)
    written.copy_(rows)


_FOR = dis.opmap["FOR_ITER"]
_PYTHONS_OWN = {"dict", "enumerate", "len", "list", "range", "reversed", "zip"}
"""What the rewriting takes for Python's own functions."""
JOINS = _Joins()
NAMES: dict[str, Any] = {
    APPLIES: scan_applies, SCAN: scan, TAKE: rows_of, KEEP: with_rows, JOIN: JOINS, WRITE: write_rows, VALUE: value_of,
    SOURCE: rows_first, COUNT: count_of, BEGINS: begins_plainly, MIRROR: start_from_end, WITH_ITEM: with_item,
    UPDATED: with_update, NUMBERS: numbers_of,
    WITH_NUMBER: with_number,
}  # fmt: skip


def _rewritten(function: FunctionType, instances: tuple[Any, ...]) -> CodeType | None:
    """Its code with loops that may be scans; None where there is no such loop."""
    node = definition_of(function)
    if node is None or _means_other_things(function, node):
        return None
    rewrite = LoopRewrite(Purity(function=function, instances=instances, may_raise=True))
    changed = rewrite.of_function(node)
    return compile_for(function, changed) if rewrite.count else None


def _means_other_things(function: FunctionType, node: ast.FunctionDef) -> bool:
    """Whether names in it are not what they are taken for, or may be read in ways that its code does not show."""
    import torch

    names, known = {*all_names(node)}, function.__globals__
    bound = {name for one in ast.walk(node) if not _is_read(one) for name in own_names(one)}
    own = any(name.startswith(SCAN_PREFIX) for name in names) or not known.keys().isdisjoint(NAMES)
    others = _PYTHONS_OWN & {*known, *bound} or names & READS_ALL_NAMES
    return own or bool(others) or "torch" in bound or known.get("torch", torch) is not torch


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _loops(code: CodeType) -> bool:
    """Whether there is a `for` in it, or a list that is made by one."""
    return _FOR in code.co_code[::2]


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = dict.fromkeys(user_functions(call, _loops))
    changes = {one: code for one in found if (code := _rewritten(one, owners_of(call, one))) is not None}
    if not changes:
        raise NotApplicable("no function has a loop whose steps read and write one row and carry state")
    with swap_code(changes, NAMES):
        yield call


SHIM = Shim(
    id="loops-as-scan",
    title="Makes a loop over a dynamic dimension that carries state a scan in the program",
    soundness="precondition",
    enter=_enter,
    does=(
        "Python asks `range` for its number, so that a recurrence over the sequence fixes how long it is. Where each "
        "step of a loop, forwards or backwards, reads and writes one row and carries tensors to the next, also in "
        "tuples, and in lists and dicts that the function makes, or a list of rows is stacked, also one that begins "
        "with a row and whose last row is read, torch's scan runs it, whose program holds for any number of steps from "
        "three on. One step is refused where the number is computed from a size (`x.shape[1] - 1`), two where the "
        "state begins as None or a number (`total = 0`), and none always. torch.onnx translates it to ONNX's Scan."
    ),
    precondition=(
        "each such loop runs at least once, at least twice where the number of its steps is computed from a size, and "
        "at least three times where its state begins as None or a number; the program refuses fewer steps"
    ),
    cures=(Cure(kinds=("dynamic_dim_specialised",)),),
    needs={"torch": ">=2.13"},
    link="https://onnx.ai/onnx/operators/onnx__Scan.html",
    retire="torch.export keeps the number of steps of such loops dynamic",
    rank=30,
    replaces=(
        Replacement(
            target="the functions that loop over the rows of a tensor",
            before=(
                "for t in range(x.shape[1]):\n    state = decay[:, t] * state + x[:, t]\n    states.append(state)\n"
                "return torch.stack(states, dim=1)\n"
            ),
            after=(
                "state, states = scan(step, state, (decay.movedim(1, 0), x.movedim(1, 0)))\n"
                "return states.movedim(0, 1)\n"
            ),
        ),
    ),
)
