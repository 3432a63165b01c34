"""The part `decode` of models that keep what they saw in classes of their own: its program gives eager's numbers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from transformers import AutoConfig, LlamaForCausalLM
from transformers.utils.generic import ModelOutput

from exportdoctor.core.errors import NoPartError
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.targets import build, resolve
from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.parts.decode import decode_part, prefill_part
from exportdoctor.targets.parts.model_context import ModelContext
from exportdoctor.targets.parts.model_state import ModelState
from exportdoctor.torch_internals.pytree_registry import registered_classes
from tiny_configs import FAMILIES, write_config

_SIZES = {"hidden_size": 32, "vocab_size": 99}
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": FAMILIES["mamba"],
    "rwkv": {
        **_SIZES,
        "architectures": ["RwkvForCausalLM"],
        "attention_hidden_size": 32,
        "num_hidden_layers": 2,
        "context_length": 64,
    },
    "xlstm": {
        "architectures": ["xLSTMForCausalLM"],
        "hidden_size": 256,
        "vocab_size": 99,
        "num_heads": 2,
        "num_blocks": 2,
    },
    "minimax": {
        **_SIZES,
        "architectures": ["MiniMaxForCausalLM"],
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "block_size": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
}
FIXED = {"rwkv"}  # the batch's size is read as a number


def _part(folder: Path, name: str, part: str) -> BuiltPart:
    config = write_config(folder, {"model_type": name, **CONFIGS[name]})
    return build(resolve(TargetRef(ref=str(config), options=BuildOptions(weights="random")))).part(part)


def _tensors(output: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in output.values():
        found += [value] if isinstance(value, torch.Tensor) else ModelState(type(value), None).tensors(value)
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_program_takes_and_returns_the_state_of_a_model(name: str, tmp_path: Path) -> None:
    part = _part(tmp_path / name, name, "decode")
    assert part.axes["batch"][0] == "input_ids[0]"
    calls = [(part.args, part.kwargs), *part.more_inputs]
    if name in FIXED:
        part, calls = part.at_fixed_sizes(), calls[:1]
    before = registered_classes()
    with part.prepare(), torch.no_grad():
        program = torch.export.export(
            part.module, part.args, part.kwargs, dynamic_shapes=part.dynamic_shapes, strict=False
        )
        for args, kwargs in calls:
            found = program.module()(*args, **copy.deepcopy(kwargs))
            expected = part.module(*args, **copy.deepcopy(kwargs))
            pairs = list(zip(_tensors(found), _tensors(expected), strict=True))
            assert len(pairs) > 1
            assert all(torch.allclose(one, other, atol=1e-5) for one, other in pairs)
    assert registered_classes() == before


@dataclass
class _Output(ModelOutput):
    """Of a model that calls its cache `cache`, as transformers does since 5.24."""

    logits: torch.Tensor | None = None
    cache: Any = None


class _Renamed(LlamaForCausalLM):
    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
    ) -> _Output:
        found = super().forward(input_ids, attention_mask, None, cache, use_cache=use_cache)
        return _Output(logits=found.logits, cache=found.past_key_values)


@pytest.mark.long
@pytest.mark.slow
def test_an_input_of_the_cache_by_another_name(tmp_path: Path) -> None:
    config = write_config(tmp_path / "llama", FAMILIES["llama"])
    model = _Renamed(AutoConfig.from_pretrained(config)).eval()
    subject = ModelContext(model=model, options=BuildOptions(weights="random"), device=torch.device("cpu"))
    part, prompt = decode_part(subject), prefill_part(subject)
    assert part.axes["cache length"] == ("cache[0][2]", "cache[1][2]", "cache[2][2]", "cache[3][2]")
    with part.prepare(), torch.no_grad():
        program = torch.export.export(model, (), part.kwargs, dynamic_shapes=part.dynamic_shapes, strict=False)
        kwargs = part.more_inputs[0][1]
        found = program.module()(**copy.deepcopy(kwargs))
        assert torch.allclose(found.logits, model(**copy.deepcopy(kwargs)).logits, atol=1e-5)
    with prompt.prepare():
        assert len(_tensors(prompt.module(**prompt.kwargs))) == len(pytree.tree_leaves(part.kwargs["cache"])) + 1


def test_a_prefill_returns_the_state(tmp_path: Path) -> None:
    part = _part(tmp_path / "mamba", "mamba", "prefill")
    assert len(_tensors(part.module(**part.kwargs))) > 1


class _Holder:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def test_a_state_is_put_together_as_it_was_taken_apart() -> None:
    rows = torch.ones(2, 3)
    state = _Holder(
        layers=[_Holder(keys=rows, seen=3, on=torch.device("cpu"))], by_layer={0: (rows * 2, None)}, kind=torch.float32
    )
    kind = ModelState(_Holder, None)
    with kind.as_node():
        leaves, structure = pytree.tree_flatten(state)
        again = pytree.tree_unflatten(leaves, structure)
        assert structure == pytree.tree_structure(again)
    assert [leaf is value for leaf, value in zip(leaves, (rows, state.by_layer[0][0]), strict=True)] == [True, True]
    assert vars(again.layers[0]) == vars(state.layers[0])
    assert again.by_layer == {0: (state.by_layer[0][0], None)}
    assert (again.kind, kind.context(again)) == (torch.float32, kind.context(state))


@pytest.mark.parametrize("held", [{1, 2}, print, iter(())], ids=lambda value: type(value).__name__)
def test_a_state_with_more_than_tensors_and_plain_values_has_no_part(held: Any) -> None:
    with pytest.raises(NoPartError, match=type(held).__name__):
        ModelState(_Holder, None).context(_Holder(held=held))
