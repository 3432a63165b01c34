"""The chain of three failures in Qwen2.5-VL: each shim moves the failure on, all of them cure it, the numbers agree."""

from __future__ import annotations

import copy

import pytest
import torch

import exportdoctor.shims as sh
from exportdoctor.shims import ExportCall, call_for_part
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.parts.decode import cache_input
from parts import main_tensor, part_of

pytestmark = pytest.mark.slow

CHAIN = ("precompute-grid", "precompute-position-ids", "block-diagonal-attention")


def shims(*names: str) -> tuple[sh.Shim, ...]:
    return sh.order_shims([sh.find(name) for name in names])


def difference_to_eager(part: BuiltPart, names: tuple[str, ...]) -> float:
    """The largest absolute difference over every input set; eager ran before, and without the shims."""
    sets = ((part.args, part.kwargs), *part.more_inputs)
    with torch.no_grad():
        wanted = [main_tensor(part.module(*args, **kwargs)) for args, kwargs in copy.deepcopy(sets)]
        with sh.apply_shims(shims(*names), call_for_part(part)) as call:
            program = sh.export_program(call).module()
        found = []
        for inputs, want in zip(sets, wanted, strict=True):
            args, kwargs = call.convert(inputs)
            found.append(float((main_tensor(program(*args, **kwargs)) - want).abs().max()))
    return max(found)


@pytest.mark.parametrize(
    ("name", "chain"),
    [
        pytest.param("vision", (CHAIN[0], CHAIN[2]), marks=pytest.mark.long),
        pytest.param("full", CHAIN, marks=pytest.mark.long),
        pytest.param("video", CHAIN, marks=pytest.mark.night),
    ],
)
def test_the_chain_cures_the_tiny_twin_and_the_numbers_agree_at_other_sizes(name: str, chain: tuple[str, ...]) -> None:
    part = part_of("Qwen2.5-VL-3B-tiny", name, weights="random", image_size=(168, 224))
    assert part.more_inputs
    assert difference_to_eager(part, chain) <= 1e-5  # of values about 4


@pytest.mark.long
def test_each_shim_of_the_chain_moves_the_failure_on() -> None:
    part = part_of("Qwen2.5-VL-3B-tiny", "full", image_size=(168, 168))
    said = []
    for names in ((), ("precompute-grid",), ("precompute-grid", "block-diagonal-attention")):
        with (
            pytest.raises(Exception, match="data-dependent") as caught,
            sh.apply_shims(shims(*names), call_for_part(part)) as call,
        ):
            sh.export_program(call)
        frames = [frame.name for frame in caught.traceback]
        said.append(next(name for name in reversed(frames) if name in PLACES))
    assert said == ["get_vision_window_index", "sdpa_attention_forward", "get_rope_index"]


PLACES = {"get_vision_window_index", "sdpa_attention_forward", "get_rope_index"}


@pytest.mark.night
def test_windows_that_differ_in_length_are_right_too() -> None:
    """16 by 12 patches: where attention that needs equal segments exports a program that refuses its own example."""
    part = part_of("Qwen2.5-VL-3B-tiny", "vision", weights="random", image_size=(224, 168))
    assert difference_to_eager(part, ("precompute-grid", "block-diagonal-attention")) <= 1e-5


@pytest.mark.night
def test_a_part_that_returns_its_cache_exports_with_the_cache_registered() -> None:
    part = part_of("Qwen2.5-VL-3B-tiny", "text", weights="random")
    call = call_for_part(part)
    call = ExportCall(**{**vars(call), "kwargs": {**call.kwargs, "use_cache": True}})
    with pytest.raises(Exception, match="DynamicCache"):
        sh.export_program(call)
    with sh.apply_shims(shims("register-cache-pytree"), call) as changed:
        program = sh.export_program(changed)
        assert program.module()(**copy.deepcopy(call.kwargs))[cache_input(call.module)] is not None
