"""Plain attention, a product, a softmax and a product, where a model would call a fused operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim

_SETTING = "_attn_implementation_internal"


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    configs = {id(config): config for module in call.module.modules() if (config := getattr(module, "config", None))}
    others = [one for one in configs.values() if getattr(one, _SETTING, None) not in (None, "eager")]
    if not others:
        raise NotApplicable("no submodule uses an attention other than eager")
    with patch_attributes((config, _SETTING, "eager") for config in others):
        yield call


SHIM = Shim(
    id="attn-eager",
    title="Uses transformers' eager attention instead of a fused one",
    soundness="precondition",
    enter=_enter,
    does=(
        "All submodules are configured to use eager attention during the export. The values are the same "
        "except for rounding, and the graph contains no fused attention operator with its own rules for "
        "shapes, masks and causality. A position that may attend to nothing, such as padding on the left, gets other "
        "values than from a fused operator, and no other position sees them."
    ),
    precondition="outputs are read only at positions that attend to at least one other",
    cures=(
        Cure(where=r"sdpa_attention|flash_attention|flex_attention|scaled_dot_product"),
        Cure(message=r"scaled_dot_product|flash_attn|is_causal"),
        Cure(kinds=("translate",), where=r"[Aa]ttention|attn"),
    ),
    needs={"torch": ">=2.8", "transformers": ">=4.53"},
    link="https://huggingface.co/docs/transformers/attention_interface",
    retire="torch's fused attention supports all shapes that export needs",
    rank=40,
    replaces=(
        Replacement(
            target="the configuration of the model",
            before='config._attn_implementation = "sdpa"\n',
            after='config._attn_implementation = "eager"\n',
        ),
    ),
)
