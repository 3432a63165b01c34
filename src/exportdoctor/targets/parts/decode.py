"""The part `decode`: one new token for each sequence, and a filled cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import NoPartError
from exportdoctor.targets.eager import blame_target, run_once, runs_in_eager
from exportdoctor.targets.parts.dynamic_cache import cache_from, registered_cache, tensors_of
from exportdoctor.targets.parts.model_context import ModelContext, assemble, forward_names, takes_input

if TYPE_CHECKING:
    import torch

    from exportdoctor.targets.built import BuiltPart

_BATCH, _LENGTH = (2, 3), (19, 27)
"""Sizes of the two input sets. A batch of one would be taken for a constant."""

_AXES = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "cache length + 1"}}


def decode_part(subject: ModelContext) -> BuiltPart:
    """`input_ids` (batch, 1), `attention_mask` (batch, length + 1), and the cache of `length` positions."""
    _refuse_without_cache(subject, "decode")
    cached = _fill(subject, "decode")
    inputs = _inputs(subject, cached, batch=_BATCH[0], length=_LENGTH[0])
    positions = _positions_needed(subject, inputs)
    other = _inputs(subject, cached, batch=_BATCH[1], length=_LENGTH[1])
    axes: dict[str, Any] = {
        **_AXES,
        "past_key_values": [{0: "batch", 2: "cache length"} for _ in cached],
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
    _refuse_without_cache(subject, "prefill")
    _fill(subject, "prefill")
    first, second = (
        {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape), "use_cache": True}
        for ids in (subject.token_ids(batch, length) for batch, length in zip(_BATCH, _LENGTH, strict=True))
    )
    axes = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask")}
    return assemble("prefill", subject, inputs=first, other_inputs=second, axes=axes, prepare=registered_cache)


def _refuse_without_cache(subject: ModelContext, part: str) -> None:
    if not all(takes_input(subject.model, name) for name in ("past_key_values", "use_cache")):
        what = type(subject.model).__name__
        raise NoPartError(f"{what} takes no past_key_values, so it has no part {part}", hint="Scan another part")


def _fill(subject: ModelContext, part: str) -> list[torch.Tensor]:
    """Runs a prompt through the model and returns each layer's key and value, to get their true shapes."""
    ids = subject.token_ids(_BATCH[0], _LENGTH[0])
    cache = cache_from(())
    kwargs = {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape), "use_cache": True}
    try:
        output = run_once(subject.model, ((), {**kwargs, "past_key_values": cache}))
    except Exception:  # it may need a cache that knows its configuration
        with blame_target("The forward that fills the cache failed"):
            run_once(subject.model, ((), kwargs))
        raise NoPartError(
            f"The model fills a cache of its own and no plain DynamicCache, so it has no part {part}",
            hint="Scan another part",
        ) from None
    filled = getattr(output, "past_key_values", None)
    if type(filled) is not type(cache):
        found = type(filled).__name__
        raise NoPartError(
            f"The model uses a {found} instead of a DynamicCache, so it has no part {part}", hint="Scan another part"
        )
    return tensors_of(filled)


def _inputs(subject: ModelContext, cached: list[torch.Tensor], *, batch: int, length: int) -> dict[str, Any]:
    ids = subject.token_ids(batch, 1)
    return {
        "input_ids": ids,
        "attention_mask": ids.new_ones(batch, length + 1),
        "past_key_values": cache_from([_resize(tensor, batch=batch, length=length) for tensor in cached]),
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
