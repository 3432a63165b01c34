"""Repairs inputs that a model refuses: the message of the failed forward leads to the next inputs to try.

A best-first search: of all inputs tried, those with which the forward came furthest, in modules that returned or at
least into the model's own, are changed next. It is bounded in runs and in seconds.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import linecache
import math
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from exportdoctor.core.exception_text import text_of
from exportdoctor.targets.parts.documented_inputs import TensorSpec, documented_inputs, guessed_input
from exportdoctor.targets.parts.input_layouts import FIRST
from exportdoctor.targets.parts.model_context import ModelContext, forward_names, nested_configurations

Specs = Mapping[str, TensorSpec]

_MOST_RUNS = 60
_FURTHEST = 3
"""Inputs that another form of the model is asked first."""
_LARGEST_SIDE, _LARGEST_AXIS = 2048, 500_000
_MOST_VALUES, _MOST_FAKE_VALUES = 30_000_000, 300_000_000
"""Of one input: a real forward on more takes seconds and gigabytes."""
_NUMBER = re.compile(r"\d+")
_PRODUCT = re.compile(
    "multiplied|reduction dim|channels|normalized_shape|must match|n.t match|expected (?:input|hidden)"
)
_MULTIPLE = re.compile(r"is invalid for input of size|divisible by|multiple of")
_CHANNELS = re.compile(r"to have (\d+) channels, but got")
_ROWS = re.compile(r"shape '\[(?:-1|0), (\d+), ")
"""Where a batch is split into groups; 0 where it has fewer rows than a group."""
_EXPECTED_DIMS = re.compile(
    r"expected (?P<to>\d)[, )].*got \d|unpack \(expected (?P<unpack>\d)|expected (?P<dim>\d)D|(?P<or>\d)-?D tensor"
)


def repair_inputs(
    subject: ModelContext, starts: Iterable[Specs], run: Callable[[Specs], Any], *, seconds: float
) -> Specs | None:
    """Inputs that `run` accepts, found from `starts` by changing what its exceptions complain of; None if none were.

    The `seconds` are of this thread's processor time: what else runs on the machine does not change what is found.
    """
    order = itertools.count()
    waiting: list[tuple[int, bool, int, Specs, _Refusal]] = []
    tried: list[tuple[int, bool, int, Specs]] = []
    seen: set[tuple[Any, ...]] = set()
    documented = documented_inputs(subject)
    most = _MOST_FAKE_VALUES if subject.is_fake else _MOST_VALUES
    runs, end = 0, time.thread_time() + seconds
    fresh: Iterator[Specs] = itertools.chain(subject.search.furthest, starts)
    while True:
        for specs in fresh:
            key = tuple(sorted(specs.items(), key=lambda item: item[0]))
            if key in seen or any(_count_values(spec) > most for spec in specs.values()):
                continue
            seen.add(key)
            if runs >= _MOST_RUNS or time.thread_time() > end:
                subject.search.furthest = [specs for *_, specs in heapq.nsmallest(_FURTHEST, tried)]
                return None
            runs += 1
            with _count_returns() as returned:
                try:
                    run(specs)
                    return specs
                except Exception as error:
                    place = (-len(returned), "required positional argument" in text_of(error), next(order), specs)
                    tried.append(place)
                    heapq.heappush(waiting, (*place, _refusal(error)))
        if not waiting:
            return None
        *_, furthest, complaint = heapq.heappop(waiting)
        fresh = _changes(subject, furthest, complaint, documented)


@dataclass(frozen=True)
class _Refusal:
    """What is known of an exception without its frames, which keep a forward's tensors alive."""

    text: str
    names_of_none: list[str]
    is_of_index: bool


def _refusal(error: Exception) -> _Refusal:
    text = text_of(error)
    is_of_index = isinstance(error, IndexError) or "out of range" in text or "out of bounds" in text
    return _Refusal(text, _names_of_none(error), is_of_index)


def _count_values(spec: TensorSpec) -> int:
    return math.prod(getattr(FIRST, one.replace(" ", "_")) if isinstance(one, str) else one for one in spec.dims)


@contextmanager
def _count_returns() -> Iterator[list[None]]:
    """A list that grows by one with each module that returns."""
    from torch.nn.modules.module import register_module_forward_hook

    returned: list[None] = []
    hook = register_module_forward_hook(lambda *_: returned.append(None))
    try:
        yield returned
    finally:
        hook.remove()


def _changes(subject: ModelContext, specs: Specs, refusal: _Refusal, documented: Specs) -> Iterator[Specs]:
    """What may help against this exception, likeliest first."""
    text = refusal.text
    yield from _arguments(subject, specs, refusal, documented)
    if re.search("too small|greater than|negative|non-positive", text):
        yield from _larger_images(specs)
    if "is invalid for input of size" in text or "divisible" in text:
        yield from _images_that_halve(subject, specs)
    if re.search("Kernel size can't be greater|Output size is too small", text):
        for name, spec in _floats_first(specs):
            if spec.kind == "float" and (spec.dims[-1:] == ("sequence",) or len(spec.dims) == 3):
                yield {**specs, name: replace(spec, dims=(*spec.dims[:-1], "samples"))}
    if re.search("dimensions of tensors must match|same number of dimensions", text):
        for name, spec in _floats_first(specs):
            if spec.kind == "float" and len(spec.dims) > 2:
                yield {**specs, name: replace(spec, dims=(spec.dims[0], *spec.dims[2:]))}
    rows = _ROWS.search(text)
    if rows:  # a group of that many rows of this input is one row of the batch
        for name, spec in specs.items():
            if spec.dims[:1] == ("batch",):
                yield {**specs, name: _with(spec, 0, FIRST.batch * int(rows[1]))}
    yield from _separate_joined(specs, text)
    yield from _ranks(specs, text)
    yield from _channels_first(specs, text)
    yield from _sizes(specs, text)
    yield from _axes(specs, text)
    yield from _kinds(specs, text)
    if refusal.is_of_index:
        yield from _smaller_integers(specs)


def _arguments(subject: ModelContext, specs: Specs, refusal: _Refusal, documented: Specs) -> Iterator[Specs]:
    """Add parameters that the message names or that are None on the failing lines; leave out those that it names."""
    names = forward_names(subject.model)
    words = re.findall(r"\w+", refusal.text)
    missing = [name for name in (*words, *refusal.names_of_none) if name in names and name not in specs]
    passed_on = [name for name in refusal.names_of_none if name in _names_passed_on(subject)]
    for name in dict.fromkeys((*missing, *passed_on)):
        if name not in specs:
            yield {**specs, name: documented.get(name) or guessed_input(subject, name)}
    named = [name for name in dict.fromkeys(words) if name in specs and len(specs) > 1]
    for name in named:
        yield {other: spec for other, spec in specs.items() if other != name}


def _names_passed_on(subject: ModelContext) -> set[str]:
    """The keywords that submodules take beside their first input, where the model's forward passes any on."""
    parameters = inspect.signature(subject.model.forward).parameters
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return set()
    classes = {type(module): module for module in subject.model.modules()}
    below = {name for module in classes.values() for name in forward_names(module)[1:]}
    first = {name for module in classes.values() for name in forward_names(module)[:1]}
    return below - first - set(parameters)


def _names_of_none(error: Exception) -> list[str]:
    """Local variables that are None and stand in the statement where a frame failed, innermost frame first."""
    found = []
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame, place in reversed(list(zip(frames, traceback.extract_tb(error.__traceback__), strict=True))):
        lines = range(place.lineno or 0, (place.end_lineno or place.lineno or 0) + 1)
        source = "".join(linecache.getline(place.filename, line) for line in lines)
        found += [
            name for name in re.findall(r"\w+", source) if name in frame.f_locals and frame.f_locals[name] is None
        ]
    return found


def _ranks(specs: Specs, text: str) -> Iterator[Specs]:
    """Inputs with the number of dimensions that the message asks for."""
    if "too many indices" in text:  # a batch of one was left out of what is a row
        rows = {name: replace(spec, dims=(1, *spec.dims)) for name, spec in specs.items() if len(spec.dims) == 1}
        yield {**specs, **rows}
    match = _EXPECTED_DIMS.search(text)
    if match is None:
        return
    wanted = int(next(group for group in (match["to"], match["unpack"], match["dim"], match["or"]) if group))
    for name, spec in _floats_first(specs):
        if len(spec.dims) == wanted - 1:
            yield {**specs, name: replace(spec, dims=(spec.dims[0], 1, *spec.dims[1:]))}
            yield {**specs, name: replace(spec, dims=(*spec.dims, 1))}
        elif len(spec.dims) == wanted + 1:
            yield {**specs, name: replace(spec, dims=(spec.dims[0], *spec.dims[2:]))}
            yield {**specs, name: replace(spec, dims=spec.dims[:-1])}


def _channels_first(specs: Specs, text: str) -> Iterator[Specs]:
    """Sequences of features as features of a sequence, where the message says that sizes do not fit."""
    if not (_PRODUCT.search(text) or _MULTIPLE.search(text)):
        return
    for name, spec in specs.items():
        match spec.dims:
            case (batch, str(axis), int(features)) if spec.kind == "float":
                turned = {**specs, name: replace(spec, dims=(batch, features, axis))}
                yield turned
                if "multiple of" in text:
                    yield from _axes(turned, text)


def _sizes(specs: Specs, text: str) -> Iterator[Specs]:
    """Inputs in which a size that the message names has become another that it names."""
    numbers = list(dict.fromkeys(int(number) for number in _NUMBER.findall(text) if len(number) < 7))
    channels = _CHANNELS.search(text)
    for name, spec in _floats_first(specs):
        if channels and len(spec.dims) > 2 and spec.dims[1] in ("sequence", "frames"):  # it is no axis there
            yield {**specs, name: _with(spec, 1, int(channels[1]))}
        for place, size in reversed(list(enumerate(spec.dims))):
            if isinstance(size, int) and size in numbers:
                for other in numbers:
                    if other not in (size, 0) and other <= _most(spec):
                        yield {**specs, name: _with(spec, place, other)}
                        if spec.dims.count(size) > 1:  # a square image
                            same = tuple(other if dim == size else dim for dim in spec.dims)
                            yield {**specs, name: replace(spec, dims=same)}
    yield from _shares(specs, text, numbers)
    for name, spec in _floats_first(specs):  # no size is named: the last dimension, then the one behind the batch
        for place in (len(spec.dims) - 1, 1):
            if 0 < place < len(spec.dims) and spec.dims[place] not in numbers:
                yield from ({**specs, name: _with(spec, place, other)} for other in numbers if 1 < other <= _most(spec))


def _shares(specs: Specs, text: str, numbers: list[int]) -> Iterator[Specs]:
    """Inputs in which a size grows or shrinks as one that the message names has to: the model has multiplied it."""
    if not _PRODUCT.search(text):
        return
    for name, spec in _floats_first(specs):
        for place, size in reversed(list(enumerate(spec.dims))[1:]):
            if not isinstance(size, int):
                continue
            for got, wanted in itertools.permutations(numbers, 2):
                new, rest = divmod(size * wanted, got) if got > size else (0, 1)
                if not rest and size and got % size == 0 and size != new and 1 < new <= _most(spec):
                    yield {**specs, name: _with(spec, place, new)}


def _separate_joined(specs: Specs, text: str) -> Iterator[Specs]:
    """Inputs of one shape with a share of a size, where the model has joined them to a larger one than it wants."""
    numbers = dict.fromkeys(int(number) for number in _NUMBER.findall(text))
    for dims, count in Counter(spec.dims for spec in specs.values()).items():
        for place, size in enumerate(dims):
            if count > 1 and isinstance(size, int) and size in numbers:
                for many in range(2, count + 1):
                    if many * size in numbers and size % many == 0:
                        yield {
                            name: _with(spec, place, size // many) if spec.dims == dims else spec
                            for name, spec in specs.items()
                        }


def _most(spec: TensorSpec) -> int:
    """The largest size that is tried: a mask of pairs of tokens grows with the square."""
    return _LARGEST_AXIS if spec.kind == "float" else _LARGEST_SIDE


def _axes(specs: Specs, text: str) -> Iterator[Specs]:
    """All inputs with a named axis at a size that the message asks for: the other of two sizes, or a multiple."""
    numbers = [int(number) for number in dict.fromkeys(_NUMBER.findall(text)) if len(number) < 7]
    axes = dict.fromkeys(dim for spec in specs.values() for dim in spec.dims if isinstance(dim, str) and dim != "batch")
    for axis in axes:
        size = getattr(FIRST, axis.replace(" ", "_"))
        wanted = [number for number in numbers if number > 1] if size in numbers or _MULTIPLE.search(text) else []
        if size * FIRST.batch in numbers:  # counted over the rows of the batch
            wanted += [number // FIRST.batch for number in numbers if number % FIRST.batch == 0]
        most = {"samples": _LARGEST_AXIS, "frames": 4 * _LARGEST_SIDE}.get(axis, _LARGEST_SIDE)
        for number in dict.fromkeys((*wanted, *(2 * number for number in wanted))):
            if number != size and number <= most:
                yield {
                    name: replace(spec, dims=tuple(number if dim == axis else dim for dim in spec.dims))
                    for name, spec in specs.items()
                }


def _with(spec: TensorSpec, place: int, size: int) -> TensorSpec:
    return replace(spec, dims=(*spec.dims[:place], size, *spec.dims[place + 1 :]))


def _kinds(specs: Specs, text: str) -> Iterator[Specs]:
    """Integers in place of floats, or the other way round, where the message is about dtypes."""
    for name, spec in specs.items():
        if spec.kind == "mask" and "bool" in text:
            yield {**specs, name: replace(spec, kind="bool")}
    if re.search(r"Long|Int\b|indices|integer", text):
        for name, spec in specs.items():
            if spec.kind == "float":
                yield {**specs, name: replace(spec, kind="integer", below=2)}
    if re.search(r"Float|floating|dtype|for 'Long'", text):
        for name, spec in specs.items():
            if spec.kind == "integer":
                yield {**specs, name: replace(spec, kind="float")}


def _smaller_integers(specs: Specs) -> Iterator[Specs]:
    for name, spec in specs.items():
        if spec.kind == "integer" and spec.below > 1:
            yield {**specs, name: replace(spec, below=max(1, spec.below // 8))}


def _larger_images(specs: Specs) -> Iterator[Specs]:
    for name, spec in specs.items():
        if len(spec.dims) >= 3 and all(isinstance(side, int) for side in spec.dims[-2:]):
            sides = [2 * side for side in spec.dims[-2:] if isinstance(side, int)]
            if max(sides) <= _LARGEST_SIDE:
                yield {**specs, name: replace(spec, dims=(*spec.dims[:-2], *sides))}


def _images_that_halve(subject: ModelContext, specs: Specs) -> Iterator[Specs]:
    """Images of fewer patches, a power of two along each side: what merges neighbours can merge them."""
    stated = (getattr(one, "patch_size", None) for one in nested_configurations(subject.vision_config))
    patch = next((size for size in stated if size), None)
    for name, spec in specs.items():
        height, width = spec.dims[-2:] if len(spec.dims) >= 4 else (None, None)
        if isinstance(patch, int) and patch and isinstance(height, int) and isinstance(width, int):
            counts = [max(1, side // patch) for side in (height, width)]
            sides = [patch << (count.bit_length() - 1) for count in counts]
            yield {**specs, name: replace(spec, dims=(*spec.dims[:-2], *sides))}


def _floats_first(specs: Specs) -> list[tuple[str, TensorSpec]]:
    changing = ((name, spec) for name, spec in specs.items() if spec.kind != "grid")
    return sorted(changing, key=lambda item: item[1].kind != "float")
