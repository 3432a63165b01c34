"""Each implementation that transformers' registries offer is a shim, which cures where the model's own fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.shims import (
    ExportCall,
    FailureView,
    NotApplicable,
    apply_shims,
    candidates,
    export_program,
    find,
    installed_versions,
)
from exportdoctor.shims.rules import switches


def mixture(implementation: str = "eager") -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        num_key_value_heads=2, num_local_experts=4,
    )  # fmt: skip
    config._experts_implementation = implementation
    return MixtralForCausalLM(config).eval()


def call_of(module: torch.nn.Module) -> ExportCall:
    ids = torch.arange(14).reshape(2, 7)
    shapes = {"input_ids": {1: Dim.DYNAMIC}, "use_cache": None}
    return ExportCall(module=module, kwargs={"input_ids": ids, "use_cache": False}, dynamic_shapes=shapes)


def test_what_the_registries_hold_at_run_time_is_a_shim() -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ids = {shim.id for shim in switches.shims()}
    assert {f"experts:{key}" for key in type(ALL_EXPERTS_FUNCTIONS)._global_mapping} <= ids
    assert {f"attn:{key.replace('|', '-')}" for key in type(ALL_ATTENTION_FUNCTIONS)._global_mapping} <= ids
    assert {f"attention-mask:{key}" for key in type(ALL_MASK_ATTENTION_FUNCTIONS)._global_mapping} <= ids


def test_a_failure_in_an_experts_forward_proposes_the_other_implementations() -> None:
    seen = FailureView(kind=FailureKind.DATA_DEPENDENT_GUARD, lines=("modeling.py:SomeExperts.forward: for i in hit:",))
    found = [shim.id for shim in candidates(seen, installed_versions(), shims=switches.shims())]
    assert {"experts:batched_mm", "experts:grouped_mm", "experts:eager"} <= set(found)
    assert not any(name.startswith("attn") for name in found)


def test_an_implementation_that_does_not_run_here_does_not_apply() -> None:
    module = mixture()
    before = module.config._experts_implementation
    with (
        pytest.raises(NotApplicable, match="does not run in eager"),
        apply_shims([find("experts:sonicmoe")], call_of(module)),
    ):
        pass
    assert module.config._experts_implementation == before


def test_the_one_that_is_used_already_does_not_apply() -> None:
    with pytest.raises(NotApplicable), apply_shims([find("experts:eager")], call_of(mixture())):
        pass


@pytest.mark.long
@pytest.mark.slow
def test_another_implementation_exports_with_the_numbers_of_the_models_own() -> None:
    module = mixture()
    with pytest.raises(Exception, match="data-dependent"):
        export_program(call_of(module))
    with apply_shims([find("experts:grouped_mm")], call_of(module)) as call:
        program = export_program(call).module()
    other = {"input_ids": torch.randint(0, 99, (2, 11)), "use_cache": False}
    with torch.no_grad():
        torch.testing.assert_close(program(**other).logits, module(**other).logits)
    assert module.config._experts_implementation == "eager"
