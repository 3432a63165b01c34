"""What the source of onnx-diagnostic's patches does not contain: how sound they are, their targets, where they fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.record import Soundness

_SHAPES = ("data_dependent_guard", "dynamic_dim_specialised")


@dataclass(frozen=True, kw_only=True)
class TransformersPatch:
    """A patch of transformers. `transformers` is the range of versions that it fits, empty = any."""

    title: str = ""
    soundness: Soundness = "precondition"
    precondition: str = "the patched code is that of the transformers release that the patch was written for"
    transformers: str = ""
    retire: str = "transformers has the change itself"
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TorchPatch:
    """A patch of torch. `value` makes the replacement where it is no function of the patch file; `wraps`: it takes the
    original first."""

    id: str
    title: str
    name: str
    targets: tuple[str, ...]
    soundness: Soundness = "precondition"
    precondition: str = "sizes that broadcast are equal or one"
    cures: tuple[Cure, ...] = ()
    value: Callable[[], Any] | None = None
    wraps: bool = False


TRANSFORMERS_PATCHES: dict[str, TransformersPatch] = {
    "Qwen2_5_VLVisionAttention": TransformersPatch(
        title="The loop over segments of Qwen2.5-VL's vision attention becomes a custom op",
        soundness="opaque",
        precondition="whoever loads the program has onnx-diagnostic",
        conflicts=("block-diagonal-attention", "hf.chunked-vision-attention"),
    ),
    "Qwen2_5_VisionTransformerPretrainedModel": TransformersPatch(
        title="Qwen2.5-VL's vision tower without unbind and tolist", transformers="<5.10"
    ),
    "Qwen2_5_VLForConditionalGeneration": TransformersPatch(transformers="<5"),
    "Qwen2_5_VLModel": TransformersPatch(
        title="No check that pictures and their placeholders are equally many",
        soundness="unsound",
        precondition="as many placeholders as picture features",
    ),
    "sdpa_attention_forward": TransformersPatch(
        title="SDPA with torch.cond in place of the comparison of the row's length",
        transformers="<5.20",
        conflicts=("sdpa-without-size-check",),
    ),
    "eager_mask": TransformersPatch(transformers="<5.10", conflicts=("mask-without-vmap",)),
    "sdpa_mask": TransformersPatch(transformers="<5.10", conflicts=("mask-without-vmap",)),
    "sdpa_mask_recent_torch": TransformersPatch(transformers="<5", conflicts=("mask-without-vmap",)),
    "_vmap_for_bhqkv": TransformersPatch(
        title="Masks by broadcasting instead of vmap", transformers="<5", conflicts=("mask-without-vmap",)
    ),
    "DynamicLayer": TransformersPatch(
        title="An empty cache layer starts from a tensor instead of a list", soundness="exact"
    ),
    "CompileableContextVar": TransformersPatch(
        title="Captured outputs write no global while exporting", soundness="exact", precondition=""
    ),
    "VisionAttention": TransformersPatch(conflicts=("block-diagonal-attention", "hf.chunked-vision-attention")),
}

FUNCTIONS: dict[str, tuple[str, ...]] = {
    "patched__vmap_for_bhqkv": ("transformers.masking_utils._vmap_for_bhqkv",),
    "patched_eager_mask": ("transformers.masking_utils.eager_mask",),
    "patched_sdpa_mask": ("transformers.masking_utils.sdpa_mask",),
    "patched_sdpa_mask_recent_torch": ("transformers.masking_utils.sdpa_mask_recent_torch",),
    "patched_sdpa_attention_forward": ("transformers.integrations.sdpa_attention.sdpa_attention_forward",),
}
"""Functions whose docstring does not name what they replace."""


def _plain_isinstance() -> Any:
    return isinstance


def _marks_nothing() -> Any:
    return _ignore


def _ignore(*_: Any, **__: Any) -> None:
    """Any call, without effect."""


_UNSOUND = "the guard or constraint that is passed over would have held"

TORCH: tuple[TorchPatch, ...] = (
    TorchPatch(
        id="infer_size",
        title="Broadcasting of unknown sizes in fake kernels takes their maximum",
        name="patched_infer_size",
        targets=("torch._subclasses.fake_impls.infer_size",),
        cures=(Cure(kinds=_SHAPES),),
    ),
    TorchPatch(
        id="broadcast_shapes",
        title="Broadcasting of unknown sizes in references takes their maximum",
        name="patched__broadcast_shapes",
        targets=("torch._refs._broadcast_shapes", "torch._meta_registrations._broadcast_shapes"),
        cures=(Cure(kinds=_SHAPES),),
    ),
    TorchPatch(
        id="maybe_broadcast",
        title="References expand unknown sizes without asking whether they are equal",
        name="patched__maybe_broadcast",
        targets=("torch._refs._maybe_broadcast",),
        cures=(Cure(kinds=_SHAPES),),
    ),
    TorchPatch(
        id="broadcast_in_dim",
        title="The primitive that broadcasts does not check unknown sizes",
        name="patched__broadcast_in_dim_meta",
        targets=("torch._prims._broadcast_in_dim_meta", "torch._prims.broadcast_in_dim"),
        cures=(Cure(kinds=_SHAPES),),
    ),
    TorchPatch(
        id="evaluate_expr",
        title="A guard on an unknown value takes the hint instead of failing",
        name="patched_ShapeEnv._evaluate_expr",
        targets=("torch.fx.experimental.symbolic_shapes.ShapeEnv._evaluate_expr",),
        soundness="unsound",
        precondition=_UNSOUND,
        cures=(Cure(kinds=("data_dependent_guard", "data_dependent_value")),),
    ),
    TorchPatch(
        id="constraints",
        title="Violated constraints on dynamic shapes are passed over",
        name="_catch_produce_guards_and_solve_constraints",
        targets=("torch._export.non_strict_utils.produce_guards_and_solve_constraints",),
        soundness="unsound",
        precondition=_UNSOUND,
        cures=(Cure(kinds=("dynamic_dim_specialised", "dims_related")),),
        wraps=True,
    ),
    TorchPatch(
        id="input_constraints",
        title="A program's inputs are not checked against its dynamic shapes",
        name="patched__check_input_constraints_for_graph",
        targets=("torch._export.utils._check_input_constraints_for_graph",),
        soundness="unsound",
        precondition=_UNSOUND,
        cures=(Cure(kinds=("run",)),),
        wraps=True,
    ),
    TorchPatch(
        id="range_constraints",
        title="Ranges of dimensions are matched with keywords in their order",
        name="patched__get_range_constraints",
        targets=("torch.export._trace._get_range_constraints",),
        precondition="dynamic shapes are given in the order of the inputs",
        cures=(Cure(kinds=("python_error",), message="AssertionError"),),
    ),
    TorchPatch(
        id="dimhint",
        title="Hints of dimensions accept what torch refuses",
        name="patched__constrain_user_specified_dimhint_range",
        targets=("torch._export.non_strict_utils._constrain_user_specified_dimhint_range",),
        soundness="unsound",
        precondition=_UNSOUND,
        cures=(Cure(kinds=("dynamic_dim_specialised",)),),
    ),
    TorchPatch(
        id="vmap",
        title="torch.vmap as a loop or a scan",
        name="patched_vmap",
        targets=("torch.vmap",),
        precondition="the mapped function treats each element alike",
        cures=(Cure(kinds=("vmap",)),),
    ),
    TorchPatch(
        id="jit_isinstance",
        title="torch.jit.isinstance is Python's isinstance",
        name="isinstance",
        targets=("torch.jit.isinstance",),
        precondition="no container type with parameters is asked for",
        cures=(Cure(message=r"jit\.isinstance|_isinstance"),),
        value=_plain_isinstance,
    ),
    TorchPatch(
        id="mark_static_address",
        title="Addresses of tensors are not marked as static",
        name="mark_static_address",
        targets=("torch._dynamo.mark_static_address",),
        soundness="exact",
        precondition="",
        cures=(Cure(message="mark_static_address", where=""),),
        value=_marks_nothing,
    ),
)
