"""A text part as a pair of programs, prefill and decode, and the tokens that they generate together."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.shims.own.position_ids import INPUT, makes_positions, next_positions
from exportdoctor.targets import BuiltPart, BuiltTarget
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import restore_afterwards
from exportdoctor.targets.parts.decode import CACHE_INPUTS
from exportdoctor.targets.parts.dynamic_cache import cache_from, holds_other_state, registered_cache
from exportdoctor.worker.prove.compare_outputs import compare_outputs, failed_run, tensors_in

Step = Callable[[dict[str, Any]], list[torch.Tensor]]
"""Keyword arguments of the untouched model -> logits, then key and value of each layer."""

Generated = tuple[torch.Tensor, list[torch.Tensor]]
"""Tokens, int64 (batch, count), and the logits (batch, vocabulary) that each was taken from."""


def prefill_decode_pair(part: BuiltPart, built: BuiltTarget) -> tuple[BuiltPart, BuiltPart]:
    """The part with its cache returned, and the part `decode`. Raises UsageError where there is no such pair."""
    if "use_cache" not in part.kwargs or "decode" not in built.makers:
        raise UsageError(f"Part {part.name} returns no cache", hint="Leave out --with-cache")
    prefill = dataclasses.replace(
        part,
        name="prefill",
        kwargs=_with_cache((part.args, part.kwargs))[1],
        more_inputs=tuple(_with_cache(one) for one in part.more_inputs),
        prepare=lambda: _both(part.prepare(), registered_cache()),
    )
    decode = built.part("decode")
    if any(map(holds_other_state, decode.kwargs.values())):
        raise UsageError(
            f"{type(part.module).__name__} carries other state from call to call than keys and values",
            hint="Export --part prefill and --part decode, each by itself",
        )
    return prefill, _taking_positions(decode) if has_pictures(part, decode) else decode


@contextmanager
def _both(one: AbstractContextManager[Any], other: AbstractContextManager[Any]) -> Iterator[None]:
    with one, other:
        yield


def has_pictures(part: BuiltPart, decode: BuiltPart) -> bool:
    """Whether the positions of what follows the prompt depend on inputs that only the prompt has."""
    return bool(part.kwargs.keys() - decode.kwargs.keys()) and makes_positions(part.module)


def _taking_positions(decode: BuiltPart) -> BuiltPart:
    """The part with `position_ids` (3, batch, 1): what the prompt left in the model in eager, the caller carries on."""
    if INPUT in decode.kwargs:
        return decode
    shapes, places = decode.dynamic_shapes, [f"{INPUT}[1]"]
    batch = shapes["input_ids"] if isinstance(shapes, dict) else None
    return dataclasses.replace(
        decode,
        kwargs=_with_positions(decode.kwargs),
        more_inputs=tuple((args, _with_positions(kwargs)) for args, kwargs in decode.more_inputs),
        dynamic_shapes={**shapes, INPUT: {1: batch[0]}} if isinstance(shapes, dict) and batch else shapes,
        axes={axis: (*found, *(places if axis == "batch" else ())) for axis, found in decode.axes.items()},
    )


def _with_positions(kwargs: dict[str, Any]) -> dict[str, Any]:
    mask = kwargs["attention_mask"]
    return {**kwargs, INPUT: mask.new_full((3, mask.shape[0], 1), mask.shape[1] - 1)}


def _with_cache(inputs: Inputs) -> Inputs:
    return inputs[0], {**inputs[1], "use_cache": True}


def compare_generation(parts: Sequence[BuiltPart], steps: Sequence[Step], count: int) -> tuple[Agreement, ...]:
    """Greedy generation through the pair beside eager's, from the example's prompts: the logits, and the tokens.

    Where positions are the caller's, eager is the model's own `generate`, which carries them from call to call.
    """
    prefill, decode = parts
    with registered_cache(), torch.no_grad(), restore_afterwards(prefill.module):
        wanted, expected = _generate_eager(prefill, decode, count)
    title = f"{count} tokens generated greedily for {wanted.shape[0]} prompts"
    with registered_cache(), torch.no_grad():
        try:
            found, logits = _generate(prefill, decode, (steps[0], steps[1]), count)
        except Exception as error:
            return (failed_run(title, error),)
    tokens = Agreement(inputs=title, max_abs=float((found != wanted).sum()), tolerance=0.0)
    if not tokens.holds:
        return (tokens,)
    expected = [one.to(logits[0].dtype) for one in expected]
    return compare_outputs(f"logits of the {title}", logits, expected), tokens


def _generate_eager(prefill: BuiltPart, decode: BuiltPart, count: int) -> Generated:
    if not has_pictures(prefill, decode):

        def eager(kwargs: dict[str, Any]) -> list[torch.Tensor]:
            return tensors_in(prefill.module(**copy.deepcopy(kwargs)))

        return _generate(prefill, decode, (eager, eager), count)
    from transformers import GenerationConfig

    model: Any = prefill.module
    given = {name: value for name, value in copy.deepcopy(prefill.kwargs).items() if name != "use_cache"}
    with patch_attribute(model, "generation_config", GenerationConfig()):  # nothing but greedy, and no end
        made = model.generate(
            **given, max_new_tokens=count, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    return made.sequences[:, -count:].cpu(), [one.cpu() for one in made.logits]


def _generate(prefill: BuiltPart, decode: BuiltPart, steps: tuple[Step, Step], count: int) -> Generated:
    prompt = prefill.kwargs
    mask, place = prompt["attention_mask"], None
    if INPUT in decode.kwargs and has_pictures(prefill, decode):
        place = next_positions(prefill.module, prompt)
    logits, *cache = steps[0](prompt)
    said = [logits[:, -1].cpu()]
    while len(said) < count:
        mask = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=1)
        token = said[-1].argmax(-1, keepdim=True).to(mask.device)
        given = _next(decode, token, mask, cache)
        if place is not None:
            given[INPUT] = place + len(said) - 1
        logits, *cache = steps[1](given)
        said.append(logits[:, -1].cpu())
    return torch.stack([one.argmax(-1) for one in said], dim=1), said


def _next(decode: BuiltPart, token: torch.Tensor, mask: torch.Tensor, cache: list[torch.Tensor]) -> dict[str, Any]:
    place = next(name for name in CACHE_INPUTS if name in decode.kwargs)
    made = {
        **decode.kwargs,
        "input_ids": token,
        "attention_mask": mask,
        place: cache_from([one.to(mask.device) for one in cache]),
    }
    if "position_ids" in decode.kwargs:
        shape = (*decode.kwargs["position_ids"].shape[:-2], mask.shape[0], 1)
        made["position_ids"] = mask.new_full(shape, mask.shape[1] - 1)
    return made
