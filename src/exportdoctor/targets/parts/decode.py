"""The part `decode`: one new token for each sequence, and a filled cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import NoPartError
from exportdoctor.targets.eager import blame_target, run_once, runs_in_eager
from exportdoctor.targets.parts.dynamic_cache import cache_from, registered_cache, tensors_of
from exportdoctor.targets.parts.model_context import ModelContext, assemble, forward_names, takes_input
from exportdoctor.targets.parts.model_state import ModelState, fill_state, prompt_inputs

if TYPE_CHECKING:
    import torch

    from exportdoctor.targets.built import BuiltPart

_BATCH, _LENGTH = (2, 3), (19, 27)
"""Sizes of the two input sets. A batch of one would be taken for a constant."""

CACHE_INPUTS = ("past_key_values", "cache")
"""What transformers has called the input of the cache before 5.24 and since."""

_AXES = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "cache length + 1"}}


def decode_part(subject: ModelContext) -> BuiltPart:
    """`input_ids` (batch, 1), `attention_mask` (batch, length + 1), and the cache of `length` positions.

    A model that fills no plain DynamicCache gets what it returns of its own, see `model_state`.
    """
    try:
        name, cached = _fill(subject, "decode")
    except NoPartError as error:
        return _own_decode_part(subject, error)
    inputs, other = (
        _inputs(subject, name, cached, batch=batch, length=length)
        for batch, length in zip(_BATCH, _LENGTH, strict=True)
    )
    positions = _positions_needed(subject, inputs)
    axes: dict[str, Any] = {
        **_AXES,
        name: [{0: "batch", 2: "cache length"} for _ in cached],
        "position_ids": {len(positions) - 2: "batch"},
    }
    return assemble(
        "decode",
        subject,
        inputs=_with_positions(subject, inputs, positions),
        other_inputs=_with_positions(subject, other, positions),
        axes=axes,
        prepare=registered_cache,
    )


def prefill_part(subject: ModelContext) -> BuiltPart:
    """`input_ids` and `attention_mask` (batch, sequence) to logits and the cache that decoding goes on with."""
    prepare: Callable[[], AbstractContextManager[None]] = registered_cache
    try:
        _fill(subject, "prefill")
    except NoPartError as error:
        prepare = _own_states(subject, error)[1].as_node
    first, second = (
        prompt_inputs(subject, batch=batch, length=length) for batch, length in zip(_BATCH, _LENGTH, strict=True)
    )
    axes = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask")}
    return assemble("prefill", subject, inputs=first, other_inputs=second, axes=axes, prepare=prepare)


def _own_states(subject: ModelContext, refusal: NoPartError) -> tuple[str, ModelState, tuple[Any, Any]]:
    """The input by which forward takes the state, its kind, and the states of both sizes. Raises the refusal."""
    with suppress(Exception):
        first, second = (fill_state(subject, batch=_BATCH[place], length=_LENGTH[place]) for place in (0, 1))
        if first is not None and second is not None:
            kind = ModelState(type(first[1]), subject.config)
            kind.context(first[1])
            return first[0], kind, (first[1], second[1])
    raise refusal


def _own_decode_part(subject: ModelContext, refusal: NoPartError) -> BuiltPart:
    """One new token for each sequence, and the state that the model returned for a prompt. Raises the refusal."""
    name, kind, states = _own_states(subject, refusal)
    sizes = list(zip(_BATCH, _LENGTH, strict=True))
    masks = ("all", "one", "none") if takes_input(subject.model, "attention_mask") else ("none",)
    for mask in masks:
        sets = [
            {**_own_inputs(subject, batch, {"all": length + 1, "one": 1, "none": 0}[mask]), name: state}
            for (batch, length), state in zip(sizes, states, strict=True)
        ]
        if runs_in_eager(subject.model, ((), sets[0])):
            break
    else:
        raise refusal
    same = kind.context(states[0]) == kind.context(states[1]) and runs_in_eager(subject.model, ((), sets[1]))
    pairs = zip(kind.tensors(states[0]), kind.tensors(states[1]), strict=True) if same else ()
    named = {0: "batch", 1: "cache length + 1"} if mask == "all" else {0: "batch"}
    children = [_axes_between(*pair) for pair in pairs]
    axes = {"input_ids": {0: "batch"}, "attention_mask": named, name: children} if same else {}
    return assemble("decode", subject, inputs=sets[0], other_inputs=sets[1], axes=axes, prepare=kind.as_node)


def _own_inputs(subject: ModelContext, batch: int, positions: int) -> dict[str, Any]:
    """A token for each sequence, with a mask of so many positions if any."""
    ids = subject.token_ids(batch, 1)
    mask = {"attention_mask": ids.new_ones(batch, positions)} if positions else {}
    return {"input_ids": ids, **mask, "use_cache": True}


def _axes_between(one: torch.Tensor, other: torch.Tensor) -> dict[int, str]:
    """The dimensions in which two tensors of the state differ, named where they are the batch or the length."""
    names = {_BATCH: "batch", _LENGTH: "cache length"}
    sizes = enumerate(zip(one.shape, other.shape, strict=True))
    return {place: names.get(pair, f"dimension {place} of the state") for place, pair in sizes if pair[0] != pair[1]}


def cache_input(model: torch.nn.Module) -> str | None:
    """The input by which forward takes the cache, and the field of its output that has it; None where it takes none."""
    return next((name for name in CACHE_INPUTS if takes_input(model, name)), None)


def _fill(subject: ModelContext, part: str) -> tuple[str, list[torch.Tensor]]:
    """Runs a prompt through the model, to get the true shapes of each layer's key and value, which it returns behind
    the name of the input that takes the cache."""
    name = cache_input(subject.model)
    if name is None or not takes_input(subject.model, "use_cache"):
        what, names = type(subject.model).__name__, " or ".join(CACHE_INPUTS)
        raise NoPartError(f"{what} takes no {names}, so it has no part {part}", hint="Scan another part")
    ids = subject.token_ids(_BATCH[0], _LENGTH[0])
    cache = cache_from(())
    kwargs = {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape), "use_cache": True}
    try:
        output = run_once(subject.model, ((), {**kwargs, name: cache}))
    except Exception:  # it may need a cache that knows its configuration
        with blame_target("The forward that fills the cache failed"):
            run_once(subject.model, ((), kwargs))
        raise NoPartError(
            f"The model fills a cache of its own and no plain DynamicCache, so it has no part {part}",
            hint="Scan another part",
        ) from None
    filled = getattr(output, name, None)
    if type(filled) is not type(cache):
        found = type(filled).__name__
        raise NoPartError(
            f"The model uses a {found} instead of a DynamicCache, so it has no part {part}", hint="Scan another part"
        )
    return name, tensors_of(filled)


def _inputs(subject: ModelContext, name: str, cached: list[torch.Tensor], *, batch: int, length: int) -> dict[str, Any]:
    ids = subject.token_ids(batch, 1)
    return {
        "input_ids": ids,
        "attention_mask": ids.new_ones(batch, length + 1),
        name: cache_from([_resize(tensor, batch=batch, length=length) for tensor in cached]),
        "use_cache": True,
    }


def _resize(tensor: torch.Tensor, *, batch: int, length: int) -> torch.Tensor:
    """The tensor with its sequences and its positions cut or repeated from their start."""
    import torch

    rows = torch.arange(batch, device=tensor.device) % tensor.shape[0]
    columns = torch.arange(length, device=tensor.device) % tensor.shape[2]
    return tensor.index_select(0, rows).index_select(2, columns)


def _positions_needed(subject: ModelContext, inputs: dict[str, Any]) -> tuple[int, ...]:
    """The shape of the `position_ids` without which eager fails; `()` where the model makes its own.

    transformers 4.5x, known by its `cache_position`, computes the three-axis positions of whole prompts only,
    and expects those of one token from `generate`. Later ones need no second run to find out.
    """
    if "cache_position" not in forward_names(subject.model) or runs_in_eager(subject.model, ((), inputs)):
        return ()
    return (3, _BATCH[0], 1)


def _with_positions(subject: ModelContext, inputs: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    if not shape:
        return inputs
    mask = inputs["attention_mask"]
    positions = mask.new_full((*shape[:-2], mask.shape[0], 1), mask.shape[1] - 1)
    return {**inputs, "position_ids": positions}
