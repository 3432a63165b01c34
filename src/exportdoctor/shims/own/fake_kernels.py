"""A fake kernel for operators that have none: sizes, dtypes and layouts of results as eager calls show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class _Size:
    """A size of a result: `compute` gives it for the sizes and whole numbers of a call, in their order, and `words` as
    an expression of what these are called."""

    compute: Callable[[Sequence[Any]], Any]
    words: Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class _Result:
    """A result: `make` gives it for the tensors and the numbers of a call; `words` are for what these are called."""

    make: Callable[[list[Any], list[Any]], Any]
    words: Callable[[Sequence[str], Sequence[str]], str]


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
    notes: list[str] = []
    with ExitStack() as stack:
        for operator, each in lacking.items():
            kernel, said = _kernel_of(operator, each)
            notes.append(f"the fake kernel of {operator.name()} gives {said}")
            try:
                stack.enter_context(registered_fake_kernel(operator, kernel))
            except RuntimeError as error:
                raise NotApplicable(f"torch takes no fake kernel for {operator.name()}: {error}") from error
        yield replace(call, notes=(*call.notes, *notes))


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


def _kernel_of(operator: Any, calls: Sequence[_Given]) -> tuple[Callable[..., Any], str]:
    """A function that gives empty tensors as the operator was seen to give them, and what these are in words."""
    kinds: list[tuple[Any, list[_Given]]] = []
    for given in calls:
        kind = _taken_apart(*given)[0]
        same = next((each for known, each in kinds if known == kind), None)
        if same is None:
            kinds.append((kind, [given]))
        else:
            same.append(given)
    makers = []
    said = []
    for kind, each in kinds:
        make, words = _results_of(operator.name(), list(_sightings(operator, each)))
        makers.append((kind, make))
        said.append(words(*_names(operator, each[0])))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        kind, tensors, numbers = _taken_apart(args, kwargs)
        make = next((make for known, make in makers if known == kind), None)
        if make is None:
            raise RuntimeError(f"no eager run called {operator.name()} with such arguments")
        return make(tensors, numbers)

    return kernel, "; for other arguments ".join(dict.fromkeys(said))


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


def _names(operator: Any, given: _Given) -> tuple[list[str], list[str]]:
    """What the tensors of a call are called, and its sizes and whole numbers, as `_taken_apart` has them."""
    import torch

    args, kwargs = given
    parameters = [one.name for one in operator._schema.arguments]
    named = [*zip(parameters, args, strict=False), *kwargs.items()]
    tensors: list[str] = []
    numbers: list[str] = []
    for parameter, value in named:
        leaves = tree_flatten(value)[0]
        for place, leaf in enumerate(leaves):
            name = parameter if leaf is value else f"{parameter}[{place}]"
            if isinstance(leaf, torch.Tensor):
                tensors.append(name)
                numbers += [f"{name}.shape[{dim}]" for dim in range(leaf.dim())]
            elif _is_number(leaf):
                numbers.append(name)
    return tensors, numbers


def _is_number(value: Any) -> bool:
    import torch

    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _fact_of(tensor: Any) -> _Tensor:
    return _Tensor(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.is_contiguous())


def _results_of(
    name: str, seen: Sequence[_Sighting]
) -> tuple[Callable[[list[Any], list[Any]], Any], Callable[[Sequence[str], Sequence[str]], str]]:
    """What makes the results of a call from its tensors and numbers, and what says which they are."""
    first = seen[0]
    if any(one.layout != first.layout for one in seen):
        raise NotApplicable(f"{name} gives results of another structure from one call to the next")
    made = [_result(name, place, seen) for place in range(len(first.results))]
    return (
        lambda tensors, numbers: tree_unflatten([one.make(tensors, numbers) for one in made], first.layout),
        lambda tensors, numbers: " and ".join(one.words(tensors, numbers) for one in made) or "nothing",
    )


def _result(name: str, place: int, seen: Sequence[_Sighting]) -> _Result:
    import torch

    results = [one.results[place] for one in seen]
    first = results[0]
    dtype = str(getattr(first, "dtype", "")).removeprefix("torch.")
    if all(one is None for one in results):
        return _Result(lambda tensors, numbers: None, lambda tensors, numbers: "None")
    if not all(isinstance(one, _Tensor) for one in results):  # a number would be a constant of the program
        raise NotApplicable(f"{name} gives what is no tensor")
    if len({(one.dtype, one.device, len(one.shape)) for one in results}) > 1:
        raise NotApplicable(f"{name} gives tensors whose dtype, device or rank differs from one call to the next")
    alike = _alike(seen, place)
    if not all(one.is_contiguous for one in results):
        if alike is None:
            raise NotApplicable(f"{name} gives tensors in a memory layout of its own")
        return _Result(
            lambda tensors, numbers: torch.empty_like(tensors[alike], dtype=first.dtype),
            lambda tensors, numbers: f"{dtype} in the sizes and the layout of {tensors[alike]}",
        )
    inputs = [one.numbers for one in seen]
    sizes = [_size([one.shape[dim] for one in results], inputs) for dim in range(len(first.shape))]

    def make(tensors: list[Any], numbers: list[Any]) -> Any:
        shape = [size.compute(numbers) for size in sizes]
        at = next((one.device for one, fact in zip(tensors, seen[0].given, strict=True) if fact.device == first.device),
                  first.device)  # fmt: skip
        return torch.empty(shape, dtype=first.dtype, device=at)

    return _Result(make, lambda tensors, numbers: f"{dtype}[{', '.join(size.words(numbers) for size in sizes)}]")


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
            return _Size(itemgetter(place), itemgetter(place))
    if len(set(wanted)) == 1:
        return _Size(lambda numbers: wanted[0], lambda names: str(wanted[0]))
    for place, column in enumerate(columns):
        if (form := _of_one(wanted, column)) is not None:
            return _Size(partial(_apply, form.compute, place), partial(_apply, form.words, place))
    for one, other in combinations(range(len(columns)), 2):
        if all(size == a * b for size, a, b in zip(wanted, columns[one], columns[other], strict=True)):
            return _product(one, other)
    return _Size(lambda numbers: torch.library.get_ctx().new_dynamic_size(), lambda names: "any size")


def _product(one: int, other: int) -> _Size:
    return _Size(lambda numbers: numbers[one] * numbers[other], lambda names: f"{names[one]} * {names[other]}")


@dataclass(frozen=True)
class _Form:
    """A function of one number, and how it is written."""

    compute: Callable[[Any], Any]
    words: Callable[[str], str]


def _of_one(wanted: Sequence[int], column: Sequence[int]) -> _Form | None:
    """The size as a function of one number, of which at least two values were seen."""
    low, high = min(column), max(column)
    if low == high:
        return None
    at = dict(zip(column, wanted, strict=True))
    factor = (at[high] - at[low]) // (high - low)
    forms = [_multiple(factor, at[low] - factor * low)] if factor > 0 else []
    forms += [_quotient(more, divisor) for divisor in _DIVISORS for more in range(divisor)]
    pairs = list(zip(wanted, column, strict=True))
    return next((form for form in forms if all(size == form.compute(number) for size, number in pairs)), None)


def _apply(function: Callable[[Any], Any], place: int, values: Sequence[Any]) -> Any:
    return function(values[place])


def _multiple(factor: int, shift: int) -> _Form:
    end = f" {'+' if shift > 0 else '-'} {abs(shift)}" if shift else ""
    return _Form(
        lambda number: factor * number + shift, lambda name: f"{f'{factor} * ' if factor > 1 else ''}{name}{end}"
    )


def _quotient(more: int, by: int) -> _Form:
    return _Form(
        lambda number: (number + more) // by, lambda name: f"({name} + {more}) // {by}" if more else f"{name} // {by}"
    )


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
