"""A fake kernel for operators that have none: sizes, dtypes and layouts of results as eager calls show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from operator import itemgetter
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import run_copy
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.targets.eager import copy_inputs, storage_id
from exportdoctor.torch_internals.fake_tensors import has_fakes
from exportdoctor.torch_internals.kernel_registry import FAKE_KERNELS, lacks_fake_kernel, registered_fake_kernel
from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class
from exportdoctor.torch_internals.trees import tree_flatten, tree_unflatten

_HIGHER_ORDER = "higher_order"
_OF_TORCH = ("aten", "prim", "prims", _HIGHER_ORDER)
_MOST_ALIKE = 3
"""Calls of one kind with equal sizes: a model may have as many as it has layers."""
_MORE = (1, 2, 3)
_DIVISORS = (2, 3, 4, 5, 8, 16, 32)
_Size = Callable[[list[Any]], Any]
"""Computes a size of a result from the sizes and whole numbers of a call, in their order."""


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    device: Any
    is_contiguous: bool


@dataclass(frozen=True)
class _Sighting:
    """A call in eager: `kind` is the structure of its arguments with those that are neither tensors nor whole numbers,
    `given` are its tensors and `numbers` its sizes and whole numbers."""

    kind: Any
    given: tuple[_Tensor, ...]
    numbers: tuple[int, ...]
    results: tuple[Any, ...]
    layout: Any


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    if not FAKE_KERNELS.is_supported():
        raise NotApplicable("this torch registers fake kernels in another way")
    if has_fakes(call.module, (call.args, call.kwargs)):
        raise NotApplicable("the model has no values, so that no operator can be run to see what it gives")
    calls = _calls_of_operators(call)
    lacking = {one: each for one, each in calls.items() if lacks_fake_kernel(one, *each[0])}
    if not lacking:
        raise NotApplicable("forward calls no operator from outside of torch that has no fake kernel")
    with ExitStack() as stack:
        for operator, each in lacking.items():
            try:
                stack.enter_context(registered_fake_kernel(operator, _kernel_of(operator, each)))
            except RuntimeError as error:
                raise NotApplicable(f"torch takes no fake kernel for {operator.name()}: {error}") from error
        yield call


_Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a call of an operator."""


def _calls_of_operators(call: ExportCall) -> dict[Any, list[_Given]]:
    """The calls of operators from outside of torch, for the example and for inputs of other sizes."""
    found: dict[Any, list[_Given]] = {}
    seen: list[Any] = []

    class Watch(dispatch_mode_class()):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "namespace", _HIGHER_ORDER) not in _OF_TORCH:
                kind, _, numbers = _taken_apart(args, kwargs or {})
                alike = [one for one in seen if one == (func, kind, numbers)]
                if len(alike) < _MOST_ALIKE:
                    seen.append((func, kind, numbers))
                    found.setdefault(func, []).append(copy_inputs((args, kwargs or {})))
            return func(*args, **(kwargs or {}))

    with Watch():
        run_copy(call)
        for inputs in call.more_inputs:
            with suppress(Exception):
                run_copy(call, copy_inputs(inputs))
    return found


def _kernel_of(operator: Any, calls: Sequence[_Given]) -> Callable[..., Any]:
    """A function that gives empty tensors as the operator was seen to give them."""
    kinds: list[tuple[Any, list[_Given]]] = []
    for given in calls:
        kind = _taken_apart(*given)[0]
        same = next((each for known, each in kinds if known == kind), None)
        if same is None:
            kinds.append((kind, [given]))
        else:
            same.append(given)
    makers = [(kind, _results_of(operator.name(), list(_sightings(operator, each)))) for kind, each in kinds]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        kind, tensors, numbers = _taken_apart(args, kwargs)
        make = next((make for known, make in makers if known == kind), None)
        if make is None:
            raise RuntimeError(f"no eager run called {operator.name()} with such arguments")
        return make(tensors, numbers)

    return kernel


def _sightings(operator: Any, calls: Sequence[_Given]) -> Iterator[_Sighting]:
    """What the operator gives for calls of one kind, and for changed ones, which it may refuse."""
    import torch

    with torch.random.fork_rng(devices=()):
        for given in calls:
            try:
                seen = _run(operator, given)
            except NotApplicable:
                raise
            except Exception as error:
                raise NotApplicable(f"{operator.name()} cannot be run once more: {error}") from error
            yield seen
        for changed in _changed_calls(calls):
            with suppress(Exception):
                seen = _run(operator, changed)
                yield seen


def _changed_calls(calls: Sequence[_Given]) -> Iterator[_Given]:
    """The calls with zeros and with other numbers in their tensors, which may change the sizes of results; then the
    first one with more of what calls have different numbers of."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for given in calls:
        for scale in (0, 1):
            leaves, layout = tree_flatten(copy_inputs(given))
            places = [at for at, one in enumerate(leaves) if isinstance(one, torch.Tensor) and one.is_floating_point()]
            for at in places:
                leaves[at] = (torch.randn(leaves[at].shape, generator=generator) * scale).to(leaves[at])
            if places:
                yield tree_unflatten(leaves, layout)
    columns = list(zip(*(_taken_apart(*given)[2] for given in calls), strict=True))
    for column in dict.fromkeys(one for one in columns if len(set(one)) > 1):
        for more in _MORE:
            with suppress(Exception):  # there is nothing of which more could be made
                larger = _enlarge(calls[0], [one == column for one in columns], more)
                yield larger


def _enlarge(given: _Given, which: Sequence[bool], more: int) -> _Given:
    """The call with these of its sizes and whole numbers larger; tensors begin again where they end."""
    import torch

    leaves, layout = tree_flatten(copy_inputs(given))
    places = iter(which)
    for at, one in enumerate(leaves):
        if isinstance(one, torch.Tensor):
            for dim, grows in enumerate([next(places) for _ in one.shape]):
                if grows:
                    size = leaves[at].shape[dim]
                    rows = torch.arange(size + more, device=one.device) % size
                    leaves[at] = leaves[at].index_select(dim, rows)
        elif _is_number(one) and next(places):
            leaves[at] = one + more
    enlarged: _Given = tree_unflatten(leaves, layout)
    return enlarged


def _run(operator: Any, given: _Given) -> _Sighting:
    import torch

    kind, tensors, numbers = _taken_apart(*given)
    before, facts = set(map(storage_id, tensors)), tuple(map(_fact_of, tensors))
    with torch.no_grad():
        args, kwargs = copy_inputs(given)
        before |= set(map(storage_id, _taken_apart(args, kwargs)[1]))
        results, layout = tree_flatten(operator(*args, **kwargs))
    if any(storage_id(one) in before for one in results if isinstance(one, torch.Tensor)):
        raise NotApplicable(f"{operator.name()} returns memory of its arguments")
    made = tuple(_fact_of(one) if isinstance(one, torch.Tensor) else one for one in results)
    return _Sighting(kind, facts, tuple(numbers), made, layout)


def _taken_apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any], list[Any]]:
    """What kind of call it is, its tensors, and its sizes and whole numbers."""
    import torch

    leaves, layout = tree_flatten((args, kwargs))
    kinds: list[Any] = []
    tensors: list[Any] = []
    numbers: list[Any] = []
    for one in leaves:
        if isinstance(one, torch.Tensor):
            kinds.append(("tensor", one.dim(), one.dtype))
            tensors.append(one)
            numbers += one.shape
        elif _is_number(one):
            kinds.append("number")
            numbers.append(one)
        else:
            kinds.append(one)
    return (layout, kinds), tensors, numbers


def _is_number(value: Any) -> bool:
    import torch

    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _fact_of(tensor: Any) -> _Tensor:
    return _Tensor(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.is_contiguous())


def _results_of(name: str, seen: Sequence[_Sighting]) -> Callable[[list[Any], list[Any]], Any]:
    """Makes the results of a call from its tensors and numbers."""
    first = seen[0]
    if any(one.layout != first.layout for one in seen):
        raise NotApplicable(f"{name} gives results of another structure from one call to the next")
    made = [_result(name, place, seen) for place in range(len(first.results))]
    return lambda tensors, numbers: tree_unflatten([make(tensors, numbers) for make in made], first.layout)


def _result(name: str, place: int, seen: Sequence[_Sighting]) -> Callable[[list[Any], list[Any]], Any]:
    import torch

    results = [one.results[place] for one in seen]
    first = results[0]
    if all(one is None for one in results):
        return lambda tensors, numbers: None
    if not all(isinstance(one, _Tensor) for one in results):  # a number would be a constant of the program
        raise NotApplicable(f"{name} gives what is no tensor")
    if len({(one.dtype, one.device, len(one.shape)) for one in results}) > 1:
        raise NotApplicable(f"{name} gives tensors whose dtype, device or rank differs from one call to the next")
    alike = _alike(seen, place)
    if not all(one.is_contiguous for one in results):
        if alike is None:
            raise NotApplicable(f"{name} gives tensors in a memory layout of its own")
        return lambda tensors, numbers: torch.empty_like(tensors[alike], dtype=first.dtype)
    inputs = [one.numbers for one in seen]
    sizes = [_size([one.shape[dim] for one in results], inputs) for dim in range(len(first.shape))]

    def make(tensors: list[Any], numbers: list[Any]) -> Any:
        shape = [size(numbers) for size in sizes]
        at = next((one.device for one, fact in zip(tensors, seen[0].given, strict=True) if fact.device == first.device),
                  first.device)  # fmt: skip
        return torch.empty(shape, dtype=first.dtype, device=at)

    return make


def _alike(seen: Sequence[_Sighting], place: int) -> int | None:
    """The argument whose shape and strides the result has in each call."""
    for one in range(len(seen[0].given)):
        pairs = [(each.given[one], each.results[place]) for each in seen]
        if all((given.shape, given.stride) == (made.shape, made.stride) for given, made in pairs):
            return one
    return None


def _size(wanted: Sequence[int], inputs: Sequence[Sequence[int]]) -> _Size:
    """How a size of a result follows from the numbers of the call: the simplest that holds in each; else it is one
    that only a run can tell."""
    import torch

    columns = list(zip(*inputs, strict=True))
    for place, column in enumerate(columns):
        if list(column) == list(wanted):
            return itemgetter(place)
    if len(set(wanted)) == 1:
        return lambda numbers: wanted[0]
    for place, column in enumerate(columns):
        if (computed := _of_one(wanted, column)) is not None:
            return partial(_compute, computed, place)
    for one, other in combinations(range(len(columns)), 2):
        if all(size == a * b for size, a, b in zip(wanted, columns[one], columns[other], strict=True)):
            return partial(_multiply, one, other)
    return lambda numbers: torch.library.get_ctx().new_dynamic_size()


def _of_one(wanted: Sequence[int], column: Sequence[int]) -> Callable[[Any], Any] | None:
    """The size as a function of one number, of which at least two values were seen."""
    low, high = min(column), max(column)
    if low == high:
        return None
    at = dict(zip(column, wanted, strict=True))
    factor = (at[high] - at[low]) // (high - low)
    forms = [partial(_scale, factor=factor, shift=at[low] - factor * low)] if factor > 0 else []
    forms += [partial(_divide, more=more, by=divisor) for divisor in _DIVISORS for more in range(divisor)]
    pairs = list(zip(wanted, column, strict=True))
    return next((form for form in forms if all(size == form(number) for size, number in pairs)), None)


def _compute(form: Callable[[Any], Any], place: int, numbers: list[Any]) -> Any:
    return form(numbers[place])


def _multiply(one: int, other: int, numbers: list[Any]) -> Any:
    return numbers[one] * numbers[other]


def _scale(number: Any, *, factor: int, shift: int) -> Any:
    return factor * number + shift


def _divide(number: Any, *, more: int, by: int) -> Any:
    return (number + more) // by


SHIM = Shim(
    id="fake-kernels",
    title="Gives operators that have no fake kernel one, as eager calls show their results",
    soundness="precondition",
    enter=_enter,
    does=(
        "torch.export runs each operator on fake tensors, for which an operator from outside of torch needs a kernel "
        "of its own. Here the operator is run in eager, on the example, on inputs of other sizes, and on other "
        "numbers: a fake kernel gives tensors of the dtypes, the layout and the sizes that were seen. A size that "
        "does not follow from those of the call is one that only a run can tell. The operator stays in the program."
    ),
    precondition="for every input the operator gives tensors of the sizes, dtypes and layouts of its fake kernel",
    cures=(Cure(kinds=("missing_fake_kernel",)),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/library.html#torch.library.register_fake",
    retire="the operator's author registers a fake kernel",
    rank=30,
    replaces=(
        Replacement(
            target="torch.library.register_fake",
            before="torch.export.export(model, (x,))\n",
            after=(
                '@torch.library.register_fake("namespace::operator")\n'
                "def _(x):\n"
                "    return torch.empty(x.shape, dtype=x.dtype, device=x.device)\n"
                "\n"
                "torch.export.export(model, (x,))\n"
            ),
        ),
    ),
)
