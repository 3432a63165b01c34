"""A text part as a pair of programs, prefill and decode, and the tokens that they generate together."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.targets import BuiltPart, BuiltTarget
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.parts.dynamic_cache import cache_from, registered_cache
from exportdoctor.worker.prove.compare_outputs import tensors_in

Step = Callable[[dict[str, Any]], list[torch.Tensor]]
"""Keyword arguments of the untouched model -> logits, then key and value of each layer."""


def prefill_decode_pair(part: BuiltPart, built: BuiltTarget) -> tuple[BuiltPart, BuiltPart]:
    """The part with its cache returned, and the part `decode`. Raises UsageError where there is no such pair."""
    if "use_cache" not in part.kwargs or "decode" not in built.makers:
        raise UsageError(f"Part {part.name} returns no cache", hint="Leave out --with-cache")
    prefill = dataclasses.replace(
        part,
        name="prefill",
        kwargs=_with_cache((part.args, part.kwargs))[1],
        more_inputs=tuple(_with_cache(one) for one in part.more_inputs),
        prepare=registered_cache,
    )
    return prefill, built.part("decode")


def _with_cache(inputs: Inputs) -> Inputs:
    return inputs[0], {**inputs[1], "use_cache": True}


def compare_generation(parts: Sequence[BuiltPart], steps: Sequence[Step], count: int) -> Agreement:
    """Greedy generation through the pair beside greedy generation in eager, from the example's prompts."""
    prefill, decode = parts

    def eager(kwargs: dict[str, Any]) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors_in(prefill.module(**copy.deepcopy(kwargs)))

    with registered_cache(), torch.no_grad():
        wanted = _generate(prefill, decode, (eager, eager), count)
        title = f"{count} tokens generated greedily for {wanted.shape[0]} prompts"
        try:
            found = _generate(prefill, decode, (steps[0], steps[1]), count)
        except Exception as error:
            return Agreement(inputs=title, trouble=f"{type(error).__name__}: {first_line(error, 300)}")
    return Agreement(inputs=title, max_abs=float((found != wanted).sum()), tolerance=0.0)


def _generate(prefill: BuiltPart, decode: BuiltPart, steps: tuple[Step, Step], count: int) -> torch.Tensor:
    """int64 (batch, count)."""
    prompt = prefill.kwargs
    mask = prompt["attention_mask"]
    logits, *cache = steps[0](prompt)
    tokens = [logits[:, -1:].argmax(-1)]
    while len(tokens) < count:
        mask = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=1)
        logits, *cache = steps[1](_next(decode, tokens[-1].to(mask.device), mask, cache))
        tokens.append(logits[:, -1:].argmax(-1))
    return torch.cat([one.cpu() for one in tokens], dim=1)


def _next(decode: BuiltPart, token: torch.Tensor, mask: torch.Tensor, cache: list[torch.Tensor]) -> dict[str, Any]:
    made = {
        **decode.kwargs,
        "input_ids": token,
        "attention_mask": mask,
        "past_key_values": cache_from([one.to(mask.device) for one in cache]),
    }
    if "position_ids" in decode.kwargs:
        shape = (*decode.kwargs["position_ids"].shape[:-2], mask.shape[0], 1)
        made["position_ids"] = mask.new_full(shape, mask.shape[1] - 1)
    return made
