"""What code with merged branches calls: an arm by its condition, both arms and `torch.where`, or `torch.cond`.

`torch.where` computes both arms, `torch.cond` only the one that is taken. The latter is used where an arm may refuse
values for which it is not taken: that is observed in eager runs, in which both arms of every branch are computed. Where
torch does not take such arms, the shim does not apply, and `refused` says so.
"""

from __future__ import annotations

import builtins
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from exportdoctor.shims.export_call import ExportCall, Inputs
from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.rules.branches.arm_watch import (
    RefusesNothing,
    Unmergeable,
    copy_values,
    reachable,
    watch_arm,
)
from exportdoctor.shims.rules.branches.arm_writes import COPY, OWN_TENSOR, WRITTEN, Holder, is_copy
from exportdoctor.shims.rules.branches.chosen_numbers import beside_tensor, choose_number, choose_tensor
from exportdoctor.shims.rules.branches.empty_shortcuts import alike_rows
from exportdoctor.shims.rules.branches.guarded_operands import compute_guarded
from exportdoctor.shims.rules.code.later_writes import LaterWrites
from exportdoctor.shims.rules.code.observed_rewrite import UNBOUND, ObservedRewrite, value_of
from exportdoctor.shims.rules.code.own_tensors import with_update
from exportdoctor.shims.rules.code.pure_callees import only_computes
from exportdoctor.shims.rules.code.writes import WITHOUT_GRADIENTS, WRITE_BACK
from exportdoctor.targets.eager import same_values, storage_id
from exportdoctor.torch_internals.loop_operators import plain_tracing
from exportdoctor.torch_internals.shape_env import count_assertions, has_unbacked_size, same_sizes
from exportdoctor.torch_internals.trees import tree_flatten, tree_unflatten

CHOOSE, VALUE, BOTH, EITHER, NOT = "_choose_arm", "_value_of", "_both_hold", "_either_holds", "_does_not_hold"
NUMBER, EQUAL, ANY, ALL, WITHIN = "_number_of", "_all_equal", "_any_holds", "_all_hold", "_is_within"
LENGTH, SUM = "_length_of", "_own_sum"
"""The names by which the code calls them."""

_LARGEST_EXACT = 2**53
_SECONDS = 5.0
"""Of processor time for inputs with rows alike."""
_NOTHING = object()
"""What an arm gave that raised."""


@dataclass
class _Branch:
    """What was observed of one: whether an arm may refuse values, and how its results are laid out.

    `layout` is the one of all results that were seen; None where there are several, or they are not tensors alone.
    `arms` are those of which any was seen, 0 and 1. `unmergeable` says what an arm does that nobody may do unasked.
    `undefined` says that the arm that was not taken gave NaN. `answers` are those that were no tensors: a condition on
    sizes, which may be on how much was found. `finds` are the arms that look up places that were found; `left` those
    that were computed where they were not taken.
    """

    refuses: bool = False
    undefined: bool = False
    finds: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    answers: set[bool] = field(default_factory=set)
    layout: Any = None
    seen: list[Any] = field(default_factory=list)
    arms: set[int] = field(default_factory=set)
    unmergeable: str = ""

    @property
    def is_seen(self) -> bool:
        """Whether each arm that finds something was computed where it was not taken, where it mostly finds nothing."""
        return self.finds <= self.left

    def note(self, arm: int, value: Any) -> None:
        """The layout of an arm's result."""
        self.arms.add(arm)
        self.seen.append(_layout_of(value))
        self.layout = self.seen[0] if all(one == self.seen[0] for one in self.seen) else None


@dataclass
class ArmChoices(ObservedRewrite):
    """The functions that the code calls, and what was observed of each branch, by its name."""

    writes: LaterWrites = field(
        default_factory=lambda: LaterWrites(
            "branch", "that a branch on values has chosen, or was chosen from", operator="cond"
        )
    )
    """Tensors that a choice may have a copy of, or that are such a copy."""
    branches: dict[str, _Branch] = field(default_factory=dict)
    watches: list[Any] = field(default_factory=list)
    """Those of the arms that run now; None for one of `torch.cond`."""
    of_sizes: bool = False
    """Whether a branch may be on a size that depends on values."""
    held: list[tuple[Any, Any]] = field(default_factory=list)
    """Tensors that an eager run has chosen, or chosen from, where the program has a copy; with their values then."""

    def look_back(self) -> None:
        """Refuse where what was chosen, or chosen from, has other values now: torch counts no write into a list of
        tensors, nor those of a batch norm."""
        if not all(same_values(one.detach(), then) for one, then in self.held):
            self.refuse(f"a tensor is written into {self.writes.named}")
        self.held.clear()

    def further_inputs(self, call: ExportCall) -> Iterator[Inputs]:
        """The example with all rows alike, with which less is found, while a condition on sizes has had one answer, or
        an arm that finds something was taken each time."""
        end, every = time.process_time() + _SECONDS, self.branches.values()
        if not self.of_sizes and all(one.is_seen for one in every):
            return
        for inputs in alike_rows((call.args, call.kwargs)):
            if time.process_time() > end or all(len(one.answers) != 1 and one.is_seen for one in every):
                break
            yield inputs

    @property
    def names(self) -> dict[str, Any]:
        """What the names mean in the code."""
        return {CHOOSE: self.choose, VALUE: value_of, BOTH: both_hold, EITHER: either_holds, NOT: does_not_hold,
                NUMBER: number_of, EQUAL: all_equal, ANY: any_holds, ALL: all_hold, WITHIN: is_within,
                LENGTH: length_of, WRITTEN: value_of, COPY: self.copy_to_write, WRITE_BACK: self.write_back,
                OWN_TENSOR: self.own_tensor, WITHOUT_GRADIENTS: without_gradients, SUM: own_sum}  # fmt: skip

    @only_computes
    def choose(
        self,
        branch: str,
        condition: Any,
        then: Callable[..., Any],
        other: Callable[..., Any],
        *before: Any,
        asked: Callable[[], Any] | None = None,
    ) -> Any:
        """The result of the arm that the condition says, also where only a run of the program can tell.

        Where the arms cannot be merged, `asked`, the condition as it was written, fails where it did.
        """
        if self.observing:
            return self._observe(branch, condition, then, other, before)
        if not _is_open(condition):
            return then(*before) if condition else other(*before)
        known = self.branches.get(branch)
        if known is not None and known.unmergeable:
            return self._as_before(condition, then, other, before, asked)
        asserted = count_assertions(condition)
        chosen, of_size = _as_truth(condition), not _is_tensor(condition)
        by_cond = known is not None and known.layout is not None and _is_traced_by_dynamo()
        unseen = known is not None and (not known.is_seen or (bool(known.finds) and _is_traced_by_dynamo()))
        if known is not None and (known.refuses or known.undefined or by_cond or unseen):
            may_be_where = of_size and not known.refuses and not unseen and not _is_traced_by_dynamo()
            found = self._by_cond(branch, chosen, then, other, before, known, must=not may_be_where)
            if found is not _NOTHING:
                return self._without_assertions(branch, condition, asserted, found)
        if known is not None and len(known.arms) == 2 and _is_traced_by_dynamo() and not _writes_copies(then, other):
            return _merge(chosen, then(*before), other(*before))  # dynamo lets nothing be watched
        around = self._places_around()
        watches = [watch_arm(self.codes, calls=known is None, nothing=of_size, places=around) for _ in range(2)]
        try:
            results = [self._run(watch, arm, before) for watch, arm in zip(watches, (then, other), strict=True)]
            if any(watch.refuses or (known is None and watch.finds) for watch in watches):
                raise self._refuse(branch, "no eager run came there" if known is None else "it is not sure that places "
                                   "which it looks up are in range for all sizes")  # fmt: skip
            self._without_assertions(branch, condition, asserted, None, finds=any(watch.finds for watch in watches))
            found = _merge(chosen, *results)
        except RefusesNothing as error:
            if error.watch not in watches:
                raise  # for a branch around this one
            found = self._by_cond(branch, chosen, then, other, before, known or _Branch())
            return self._without_assertions(branch, condition, asserted, found)
        except Unmergeable:
            if known is not None and known.finds:
                found = self._by_cond(branch, chosen, then, other, before, known)
                return self._without_assertions(branch, condition, asserted, found)
            return self._as_before(condition, then, other, before, asked)
        self._remember(watches, results, found)
        return found

    def _without_assertions(
        self, branch: str, condition: Any, asserted: int, found: Any, *, finds: bool = False
    ) -> Any:
        """`found`; raises NotApplicable where torch asserts more on sizes than before the arms ran, taken or not: where
        the condition is on a size, or an arm that `finds` something is no arm of torch.cond."""
        if count_assertions(condition) != asserted and (finds or not _is_tensor(condition)):
            why = f"torch asserts for the whole program what an arm of {branch} needs of the sizes of what was found"
            raise self.refuse(why)
        return found

    def _places_around(self) -> Any:
        """Those that the arm around has found; None where there is no arm around, or it is one of torch.cond."""
        return self.watches[-1].places if self.watches and self.watches[-1] is not None else None

    def _run(self, watch: Any, arm: Callable[..., Any], before: tuple[Any, ...]) -> Any:
        self.watches.append(watch)
        try:
            return watch.run(arm, before)
        finally:
            self.watches.pop()

    def copy_to_write(self, value: Any, holder: Holder) -> Any:
        """A copy of what an arm writes into, where both arms run to be chosen between; the value itself otherwise, and
        where it is a number that a name holds.

        Raises Unmergeable for a list or dict that may have another name, another object, or a number of an attribute.
        """
        import torch

        if not self.watches or value is UNBOUND:
            return value
        watch = self.watches[-1]
        if isinstance(value, torch.Tensor):
            return value.clone() if watch is None else watch.copy(value)
        numbers = (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
        if isinstance(value, numbers) and holder != "attribute":
            return value
        if watch is None or type(value) not in (list, dict) or holder != "own list":
            raise Unmergeable("an arm writes into an object that may be known elsewhere")
        return watch.copy_container(value)

    def own_tensor(self, value: Any) -> Any:
        """What an arm makes and writes into. Raises Unmergeable for what is neither a tensor nor a number."""
        import torch

        kinds = (torch.Tensor, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
        if self.watches and not isinstance(value, kinds):
            raise Unmergeable("an arm writes into an object")
        return value

    def write_back(self, read: Callable[[], Any], written: Any, *, recorded: bool = True) -> Any:
        """The tensor, list or dict that `read` gives, with what its copy holds; a number in place of another one. Where
        it is not `recorded`, autograd takes the tensor for what it was before."""
        import torch

        value = written if written is UNBOUND else read()
        if value is written:
            return written
        if isinstance(value, list):
            value[:] = written
        elif isinstance(value, dict):
            value.update(written)
        if not isinstance(value, torch.Tensor):
            return value if isinstance(value, list | dict) else written
        if self.watches and self.watches[-1] is not None:
            self.watches[-1].write_back(value, written, recorded=recorded)
        else:
            copy_values(value, written, recorded=recorded)
        return value

    def _as_before(self, condition: Any, then: Any, other: Any, before: tuple[Any, ...], asked: Any) -> Any:
        return then(*before) if (condition if asked is None else asked()) else other(*before)

    def _remember(self, watches: Sequence[Any], results: Sequence[Any], found: Any) -> None:
        """What is chosen is a copy. A later write to it, or to what it was chosen from, is to be noticed where another
        name may lead to the other."""
        self.writes.keep(*self._find_shared(watches, results, found))

    def _find_shared(self, watches: Sequence[Any], results: Sequence[Any], found: Any = None) -> list[Any]:
        """What arms give to which another name may lead, and what was chosen from it: `found`, if that is known."""
        left, right = (tree_flatten(value)[0] for value in results)
        is_new = [watch.new_ones(result) for watch, result in zip(watches, results, strict=True)]
        merged = tree_flatten(found)[0] if found is not None else [_NOTHING] * len(left)
        if len(left) != len(right):  # a name that one arm does not bind
            known = {id(leaf) for leaf in (*left, *right)}
            return [*left, *right, *(leaf for leaf in merged if id(leaf) not in known)]
        shared: list[Any] = []
        for one, other, chosen in zip(left, right, merged, strict=True):
            is_one = one is other or chosen is one or chosen is other
            if not is_one and not (id(one) in is_new[0] and id(other) in is_new[1]):
                shared += [one, other, chosen]
        return shared

    def _by_cond(
        self,
        branch: str,
        chosen: Any,
        then: Any,
        other: Any,
        before: tuple[Any, ...],
        known: _Branch,
        *,
        must: bool = True,
    ) -> Any:
        """The results by `torch.cond`, whose arms return tensors alone, of equal strides, that no input shares.

        Where torch does not take the arms, it raises NotApplicable, and notes it in `refused`, if that `must` be;
        otherwise it gives `_NOTHING`.
        """
        import torch

        layout, unseen = known.layout, len(known.arms) < 2
        given = before if _is_traced_by_dynamo() else _without_shared_memory(then, other, before)

        def tensors(arm: Any) -> tuple[Any, ...]:
            leaves, own = tree_flatten(arm(*given))
            if unseen and own != layout:  # no eager run could compute it
                raise Unmergeable("the arms give results of other structure")
            return tuple(leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves)

        why = "their results are not laid out in one way"
        if layout is not None:
            try:
                with plain_tracing(), self._in_cond():
                    found = torch.cond(chosen, lambda: tensors(then), lambda: tensors(other), ())
            except Exception as error:
                why = f"torch.cond does not take them: {type(error).__name__}: {' '.join(str(error).split()):.300}"
            else:
                if not _is_traced_by_dynamo():
                    self.writes.keep(*found, *_not_copied(then, other, before))
                return tree_unflatten(found, layout)
        if not must:
            return _NOTHING
        raise self._refuse(branch, why)

    @contextmanager
    def _in_cond(self) -> Iterator[None]:
        if _is_traced_by_dynamo():  # which lets no arm note anything; the arm around it did
            yield
            return
        self.watches.append(None)
        try:
            yield
        finally:
            self.watches.pop()

    def _refuse(self, branch: str, why: str) -> NotApplicable:
        return self.refuse(f"an arm of {branch} may refuse values for which it is not taken, and {why}")

    def _observe(self, branch: str, condition: Any, then: Any, other: Any, before: tuple[Any, ...]) -> Any:
        known, results = self.branches.setdefault(branch, _Branch()), []
        watches = [watch_arm(self.codes, calls=True, places=self._places_around()) for _ in range(2)]
        for arm, watch in zip((then, other), watches, strict=True):
            try:
                results.append(self._run(watch, arm, before))
            except Unmergeable as error:
                results.append(_NOTHING)
                known.unmergeable = str(error)
            except Exception:
                results.append(_NOTHING)
                known.refuses = True
                if watch.copied:
                    known.unmergeable = "an arm that writes into tensors fails where it is not taken"
            known.refuses |= watch.refuses
        for place, value in enumerate(results):
            if value is not _NOTHING:
                known.note(place, value)
        try:
            holds = bool(condition)
        except Exception:  # without values both arms are seen nevertheless
            return _merge(_as_truth(condition), *results)
        if not _is_tensor(condition):
            known.answers.add(holds)
        known.finds |= {place for place, watch in enumerate(watches) if watch.finds}
        known.left |= {int(holds)} if results[int(holds)] is not _NOTHING else set()
        taken, left = results if holds else results[::-1]
        if taken is not _NOTHING and left is not _NOTHING:
            self.held += [(one, one.detach().clone()) for one in self._find_shared(watches, results) if _is_tensor(one)]
        known.undefined |= _has_nan(left) and not _has_nan(taken)
        return (then if holds else other)(*before) if taken is _NOTHING else taken


@only_computes
def own_sum(value: Any, other: Any, name: str) -> Any:
    """What `value += other` and its like give a tensor or number that nobody else has, as a new one."""
    made = with_update(value, other, name)
    if _is_tensor(value) and not same_sizes(made, value):
        raise Unmergeable("what is added to a tensor may have another size")
    return made


def without_gradients() -> AbstractContextManager[Any]:
    """`torch.no_grad()`, where gradients are recorded: torch cannot save a program that has one inside of another."""
    import torch

    return torch.no_grad() if torch.is_grad_enabled() else nullcontext()


def _writes_copies(*arms: Callable[..., Any]) -> bool:
    """Whether an arm writes into copies of what it is given."""
    return any(is_copy(name) for arm in arms for name in arm.__code__.co_varnames)


def _not_copied(then: Callable[..., Any], other: Callable[..., Any], before: tuple[Any, ...]) -> list[Any]:
    """The values that the arms can reach, without those of which they write into a copy: these are written back."""
    names = then.__code__.co_varnames[: then.__code__.co_argcount]
    copied = {storage_id(one) for name, one in zip(names, before, strict=False) if is_copy(name) and _is_tensor(one)}
    values = tree_flatten((*before, *reachable(then), *reachable(other)))[0]
    return [one for one in values if _is_tensor(one) and storage_id(one) not in copied]


def _without_shared_memory(
    then: Callable[..., Any], other: Callable[..., Any], before: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What the arms are given, with copies of tensors that share memory with another one: torch.cond takes none."""
    values = [one for one in tree_flatten((*before, *reachable(then), *reachable(other)))[0] if _is_tensor(one)]
    count = Counter(storage_id(one) for one in {id(value): value for value in values}.values())
    return tuple(one.clone() if _is_tensor(one) and count[storage_id(one)] > 1 else one for one in before)


def _is_traced_by_dynamo() -> bool:
    """Whether this runs inside an arm of `torch.cond` or in a strict export, which take no function mode."""
    import torch

    return torch.compiler.is_dynamo_compiling()


def _layout_of(value: Any) -> Any:
    leaves, layout = tree_flatten(value)
    return layout if leaves and all(map(_is_tensor, leaves)) else None


def _has_nan(value: Any) -> bool:
    return any(bool(leaf.isnan().any()) for leaf in tree_flatten(value)[0] if _is_tensor(leaf))


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


# --- conditions


@only_computes
def both_hold(one: Any, other: Callable[[], Any]) -> Any:
    """`one and other()`."""
    if not _is_open(one):
        return one and other()
    first = _as_truth(one)
    return first & _as_truth(compute_guarded(first, other))


@only_computes
def either_holds(one: Any, other: Callable[[], Any]) -> Any:
    """`one or other()`."""
    if not _is_open(one):
        return one or other()
    first = _as_truth(one)
    return first | _as_truth(compute_guarded(~first, other))


@only_computes
def does_not_hold(value: Any) -> Any:
    """`not value`."""
    return ~_as_truth(value) if _is_open(value) else not value


@only_computes
def any_holds(function: Callable[..., Any], values: Callable[[], Any], plain: Callable[[], Any]) -> Any:
    """`any(values())`, with tensors kept as tensors; of `plain()` where the code calls something else `any`."""
    return _some_hold(values()) if function is builtins.any else function(plain())


@only_computes
def all_hold(function: Callable[..., Any], values: Callable[[], Any], plain: Callable[[], Any]) -> Any:
    """`all(values())`, with tensors kept as tensors; of `plain()` where the code calls something else `all`."""
    if function is not builtins.all:
        return function(plain())
    return does_not_hold(_some_hold(map(does_not_hold, values())))


def _some_hold(values: Iterable[Any]) -> Any:
    found: Any = False
    for value in values:
        found = _as_truth(found) | _as_truth(value) if _is_open(found) or _is_open(value) else bool(value)
        if found is True:
            break
    return found


@only_computes
def is_within(value: Any, container: Any) -> Any:
    """`value in container`."""
    import torch

    if isinstance(value, torch.SymBool):  # torch finds it unequal to every number
        value = torch.sym_ite(value, 1, 0)
    compared = (torch.Tensor, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
    if isinstance(container, torch.Tensor) and _is_open(container) and isinstance(value, compared):
        return torch.eq(container, value).any()  # type: ignore[arg-type]
    of_numbers = isinstance(container, set | frozenset | dict) and not isinstance(value, torch.Tensor)
    if _is_open(value) and (isinstance(container, list | tuple) or of_numbers):
        return _some_hold(value is one or value == one for one in container)
    return value in container


@only_computes
def length_of(function: Callable[..., Any], value: Any) -> Any:
    """`len(value)`, of a tensor the size, which only a run of the program may know; where the code calls something else
    `len`, what that gives."""
    return value.shape[0] if function is builtins.len and _is_tensor(value) and value.dim() else function(value)


@only_computes
def number_of(value: Any, read: Any, other: Callable[[], Any], both: bool) -> Any:
    """A side of a comparison with `other` in which a number is read, from this one by `read`, "item" or the function
    float, unless that is None, or from `both`. The
    comparison must give what that of Python's numbers of 64 bits gives; a tensor would make another number one of its
    own dtype, and does where it is compared with a float that is read. A whole number that is compared with a float
    becomes one: the program asserts that it can be one."""
    import torch

    exporting = torch.compiler.is_exporting()
    if read is None:
        return torch.scalar_tensor(value, dtype=torch.float64) if type(value) is float and exporting else value
    if not exporting or not _is_tensor(value) or value.is_complex() or value.dtype is torch.uint64:
        return value.item() if read == "item" else read(value)
    if read != "item" and not value.is_floating_point():
        value = value.to(torch.float64)
    beside = other()
    if value.is_floating_point():
        compared = torch.result_type(beside, 1.0) if _is_tensor(beside) and not both else torch.float64
        return value.reshape(()).to(compared)
    number = value.reshape(()).to(torch.int64)
    if isinstance(beside, float | torch.SymFloat) or (_is_tensor(beside) and beside.is_floating_point()):
        exact = (number <= _LARGEST_EXACT) & (number >= -_LARGEST_EXACT)
        torch.ops.aten._assert_async.msg(exact, "a whole number beyond 2**53 is compared with a float")
    return number


@only_computes
def all_equal(one: Any, other: Any) -> Any:
    """`torch.equal(one, other)`, as a tensor where only a run of the program can tell."""
    import torch

    open_ = _is_open(one) and _is_open(other)
    alike = open_ and one.dtype == other.dtype and one.device == other.device and same_sizes(one, other)
    return (one == other).all() if alike else torch.equal(one, other)


def _is_open(value: Any) -> bool:
    """Whether only a run of the program knows it."""
    import torch

    if isinstance(value, torch.SymBool | torch.SymInt | torch.SymFloat):
        return has_unbacked_size(value)
    return isinstance(value, torch.Tensor) and torch.compiler.is_exporting()


def _as_truth(value: Any) -> Any:
    """A condition as a tensor, bool ()."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.reshape(()).to(torch.bool)
    if isinstance(value, torch.SymBool):
        return torch.scalar_tensor(torch.sym_ite(value, 1, 0), dtype=torch.int64) != 0
    if isinstance(value, torch.SymInt | torch.SymFloat):
        number: Any = value
        return torch.scalar_tensor(number) != 0
    return torch.full((), bool(value))


def _merge(chosen: Any, one: Any, other: Any) -> Any:
    if one is other or other is UNBOUND:  # the arm that does not bind a name leads nowhere that reads it
        return one
    if one is UNBOUND:
        return other
    (left, layout), (right, same) = tree_flatten(one), tree_flatten(other)
    if layout != same and type(one) is tuple and type(other) is tuple and len(one) == len(other):
        return tuple(_merge(chosen, *pair) for pair in zip(one, other, strict=True))  # one may bind fewer names
    if layout != same:
        raise Unmergeable("the arms give results of other structure")
    if len(left) == 1 and left[0] is one:
        if not _is_tensor(one) and not _is_tensor(other):
            return choose_number(chosen, one, other)
        return choose_tensor(chosen, *_alike(beside_tensor(one, other), beside_tensor(other, one)))
    return tree_unflatten([_merge(chosen, a, b) for a, b in zip(left, right, strict=True)], layout)


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    if not same_sizes(one, other) or one.dtype != other.dtype or one.device != other.device:
        raise Unmergeable("the arms give tensors of other sizes or dtypes")
    return one, other
