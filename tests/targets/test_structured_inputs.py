"""Inputs that a processor always gives: boxes, cells of a table, patches with places, points, places of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from transformers import LayoutLMv2Config, PretrainedConfig
from transformers.models.layoutlmv2 import modeling_layoutlmv2

from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.targets import BuiltPart, build, resolve
from exportdoctor.targets.eager import run_once
from exportdoctor.targets.parts.default_part import default_part
from exportdoctor.targets.parts.model_context import ModelContext
from exportdoctor.worker.capture.session import capture_part
from tiny_configs import write_config

if TYPE_CHECKING:
    from pathlib import Path

TEXT = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 99}
PAGE = {**TEXT, "max_position_embeddings": 64, "max_2d_position_embeddings": 64}
V3 = {
    **PAGE,
    "hidden_size": 32,
    "coordinate_size": 4,
    "shape_size": 8,
    "input_size": 16,
    "patch_size": 4,
    "rel_pos_bins": 8,
    "max_rel_pos": 16,
    "rel_2d_pos_bins": 8,
    "max_rel_2d_pos": 16,
}
PATCHES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_embed_hidden_size": 48}
IMAGE_TEXT = {"vocab_size": 99, "embed_dim": 32, "layers": 2, "ffn_dim": 37, "attention_heads": 4}
TYPES = [3, 16, 16, 2, 2, 8, 8]

CONFIGS: dict[str, dict[str, Any]] = {
    "tapas": {
        "architectures": ["TapasForQuestionAnswering"],
        **TEXT,
        "hidden_size": 32,
        "max_position_embeddings": 64,
        "type_vocab_sizes": TYPES,
        "max_num_rows": 16,
        "max_num_columns": 16,
        "average_logits_per_cell": False,
    },
    "layoutlm": {"architectures": ["LayoutLMForTokenClassification"], **PAGE, "hidden_size": 32},
    "layoutlmv3": {"architectures": ["LayoutLMv3ForTokenClassification"], **V3},
    "lilt": {"architectures": ["LiltForTokenClassification"], **PAGE, "hidden_size": 48},
    "bros": {"architectures": ["BrosForTokenClassification"], **TEXT, "hidden_size": 64},
    "pix2struct": {
        "architectures": ["Pix2StructForConditionalGeneration"],
        "text_config": {"hidden_size": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4, "vocab_size": 99},
        "vision_config": {**PATCHES, "d_ff": 37, "d_kv": 8, "seq_len": 64, "patch_size": 4},
    },
    "kosmos-2": {
        "architectures": ["Kosmos2ForConditionalGeneration"],
        "text_config": {**IMAGE_TEXT, "max_position_embeddings": 64},
        "vision_config": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 37,
            "image_size": 24,
            "patch_size": 6,
        },
        "latent_query_num": 4,
    },
    "sam": {
        "architectures": ["SamModel"],
        "vision_config": {
            "hidden_size": 32,
            "output_channels": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 4,
            "window_size": 2,
            "global_attn_indexes": [1],
            "mlp_dim": 32,
            "num_pos_feats": 8,
        },
        "prompt_encoder_config": {"hidden_size": 16, "image_size": 32, "patch_size": 4, "mask_input_channels": 4},
        "mask_decoder_config": {
            "hidden_size": 16,
            "mlp_dim": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "attention_downsample_rate": 2,
            "iou_head_hidden_dim": 16,
            "iou_head_depth": 2,
        },
    },
}


def context(model: nn.Module) -> ModelContext:
    return ModelContext(model=model, options=BuildOptions(), device=torch.device("cpu"))


def made_part(folder: Path, model_type: str, **settings: Any) -> BuiltPart:
    write_config(folder, {"model_type": model_type, **CONFIGS[model_type], **settings})
    target = build(resolve(TargetRef(ref=str(folder), options=BuildOptions(weights="random"))))
    return target.part("default")


def at_two_sizes(part: BuiltPart) -> list[dict[str, Any]]:
    """The keyword arguments of the part, at both sizes; eager takes each."""
    found = [part.kwargs, *(kwargs for _, kwargs in part.more_inputs)]
    for kwargs in found:
        run_once(part.module, ((), kwargs))
    assert len(found) == 2
    return found


def check_boxes(boxes: torch.Tensor, *, most: float) -> None:
    left, top, right, bottom = boxes.unbind(-1)
    assert (boxes[:, 0] == 0).all()
    assert ((left[:, 1:] < right[:, 1:]) & (top[:, 1:] < bottom[:, 1:])).all()
    assert boxes.min() >= 0
    assert most / 2 < boxes.max() <= most


def test_a_table_model_gets_cells_and_tells_them_apart(tmp_path: Path) -> None:
    part = made_part(tmp_path, "tapas")
    for kwargs in at_two_sizes(part):
        types = kwargs["token_type_ids"]
        assert types.shape == (*kwargs["input_ids"].shape, len(TYPES))
        assert (types.amax((0, 1)) < torch.tensor(TYPES)).all()
        segment, column, row = types[..., :3].unbind(-1)
        assert segment.unique().tolist() == [0, 1]
        assert ((column > 0) == (segment == 1)).all()
        assert len(row.unique()) > 2
        logits = run_once(part.module, ((), kwargs)).logits
        assert (logits[segment == 1].abs() < 100).any()  # the logits of what is no cell are about -10000
    assert part.axes["sequence"] == ("input_ids[1]", "attention_mask[1]", "token_type_ids[1]")


class Typed(nn.Module):
    """A model with these numbers of types of tokens."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        settings: dict[str, Any] = {"vocab_size": 99, "type_vocab_sizes": sizes}
        self.config = PretrainedConfig(**settings)
        self.embed = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None) -> torch.Tensor:
        assert token_type_ids is not None
        embedded = [embed(token_type_ids[..., place]) for place, embed in enumerate(self.embed)]
        return torch.stack(embedded).sum(0) + input_ids[..., None]


@pytest.mark.parametrize("sizes", [[3, 1], [9] * 9])
def test_there_may_be_fewer_and_more_types_of_tokens_than_a_table_has(sizes: list[int]) -> None:
    part = default_part(context(Typed(sizes)))
    assert part.kwargs["token_type_ids"].shape == (2, 13, len(sizes))


@pytest.mark.parametrize("model_type", ["layoutlm", "layoutlmv3", "lilt"])
def test_boxes_lie_where_the_model_has_embeddings(tmp_path: Path, model_type: str) -> None:
    part = made_part(tmp_path, model_type)
    for kwargs in at_two_sizes(part):
        assert kwargs["bbox"].shape == (*kwargs["input_ids"].shape, 4)
        assert kwargs["bbox"].dtype is torch.int64
        check_boxes(kwargs["bbox"], most=63)
    assert part.kwargs.keys() >= {"bbox", "input_ids"}
    assert ("pixel_values" in part.kwargs) == (model_type == "layoutlmv3")


def test_an_image_beside_boxes_has_the_size_that_the_configuration_states(tmp_path: Path) -> None:
    assert made_part(tmp_path, "layoutlmv3").kwargs["pixel_values"].shape == (2, 3, 16, 16)


def test_a_model_without_an_image_encoder_keeps_its_boxes(tmp_path: Path) -> None:
    part = made_part(tmp_path, "layoutlmv3", visual_embed=False)
    assert list(part.kwargs) == ["input_ids", "bbox", "attention_mask"]
    assert part.left_out == ("pixel_values",)


def test_boxes_are_fractions_of_the_page_where_they_have_no_embeddings(tmp_path: Path) -> None:
    for kwargs in at_two_sizes(made_part(tmp_path, "bros")):
        assert kwargs["bbox"].is_floating_point()
        check_boxes(kwargs["bbox"], most=1.0)


class Backbone(nn.Module):
    """In place of that of detectron2."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, config.image_feature_pool_shape[-1])
        self.pool = nn.AdaptiveAvgPool2d(config.image_feature_pool_shape[:2])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(self.pool(images).flatten(2).transpose(1, 2))  # type: ignore[no-any-return]


def test_boxes_come_with_an_image_under_its_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_layoutlmv2, "requires_backends", lambda *_: None)
    monkeypatch.setattr(modeling_layoutlmv2, "LayoutLMv2VisualBackbone", Backbone)
    monkeypatch.setattr(modeling_layoutlmv2.LayoutLMv2PreTrainedModel, "_init_weights", lambda *_: None)
    settings: dict[str, Any] = {**V3, "max_2d_position_embeddings": 1024, "image_feature_pool_shape": [7, 7, 16]}
    model = modeling_layoutlmv2.LayoutLMv2Model(LayoutLMv2Config(**settings)).eval()
    part = default_part(context(model))
    for kwargs in at_two_sizes(part):
        check_boxes(kwargs["bbox"], most=1000)
        assert kwargs["image"].shape == (len(kwargs["bbox"]), 3, 16, 16)


def test_flattened_patches_state_their_places(tmp_path: Path) -> None:
    part = made_part(tmp_path, "pix2struct")
    for kwargs in at_two_sizes(part):
        patches = kwargs["flattened_patches"]
        assert patches.shape[2] == 2 + 3 * 4 * 4
        assert kwargs["attention_mask"].shape == patches.shape[:2]
        places = [tuple(place) for place in patches[0, :, :2].tolist()]
        assert len(set(places)) == len(places)
        assert min(min(place) for place in places) == 1
    assert part.axes["patches"] == ("flattened_patches[1]", "attention_mask[1]")


def test_places_of_patches_stay_below_what_the_model_counts(tmp_path: Path) -> None:
    vision = {**CONFIGS["pix2struct"]["vision_config"], "seq_len": 4}
    for kwargs in at_two_sizes(made_part(tmp_path, "pix2struct", vision_config=vision)):
        assert kwargs["flattened_patches"][..., :2].amax((0, 1)).tolist() == [3, 3]


def test_points_lie_in_the_picture_and_have_labels(tmp_path: Path) -> None:
    part = made_part(tmp_path, "sam")
    for kwargs in at_two_sizes(part):
        points, labels = kwargs["input_points"], kwargs["input_labels"]
        assert points.shape == (*labels.shape, 2)
        assert points.min() >= 0
        assert 1 < points.max() < 32
        assert labels.unique().tolist() == [0, 1]
    for axis, dimension in (("prompts", 1), ("points", 2)):
        assert part.axes[axis] == (f"input_points[{dimension}]", f"input_labels[{dimension}]")


def test_a_text_has_as_many_places_as_its_image_has_features(tmp_path: Path) -> None:
    part = made_part(tmp_path, "kosmos-2")
    for kwargs in at_two_sizes(part):
        mask = kwargs["image_embeds_position_mask"]
        assert mask.shape == kwargs["input_ids"].shape == kwargs["attention_mask"].shape
        assert mask.sum(1).tolist() == [4] * len(kwargs["pixel_values"])


def test_what_a_processor_can_give_and_was_not_made_is_told(tmp_path: Path) -> None:
    part = made_part(tmp_path, "sam")
    assert part.not_made == ("input_boxes",)
    assert capture_part(part, exporter="export", at_one_size=True).notes == [
        "default: captured without input_boxes, which a processor can give; where they matter, give --inputs"
    ]


class Boxless(nn.Module):
    """A model that refuses the boxes of which its forward has the name."""

    def __init__(self) -> None:
        super().__init__()
        settings: dict[str, Any] = {"vocab_size": 99}
        self.config = PretrainedConfig(**settings)

    def forward(self, input_ids: torch.Tensor, bbox: torch.Tensor | None = None) -> torch.Tensor:
        if bbox is not None:
            raise ValueError("boxes are for training")
        return input_ids * 2


def test_what_eager_refuses_is_left_out_and_told() -> None:
    part = default_part(context(Boxless()))
    assert list(part.kwargs) == ["input_ids"]
    assert part.left_out == ("bbox",)
    assert "boxes are for training" in part.because


class Documented(nn.Module):
    """A model whose documentation says where its inputs are from."""

    def __init__(self) -> None:
        super().__init__()
        settings: dict[str, Any] = {"vocab_size": 99}
        self.config = PretrainedConfig(**settings)

    def forward(
        self,
        input_ids: torch.Tensor,
        places: torch.Tensor | None = None,
        states: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`):
                Can be obtained using [`AutoTokenizer`].
            places (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Where each token stands. They can be obtained
                using [`AutoProcessor`].
            states (`torch.FloatTensor` of shape `(batch_size, sequence_length)`, *optional*):
                No processor has them.
            labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
                Can be obtained using [`AutoTokenizer`].
        """
        return input_ids * 2


def test_only_what_a_processor_gives_beside_what_was_made_is_told() -> None:
    assert default_part(context(Documented())).not_made == ("places",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type",
    [pytest.param(one, marks=pytest.mark.long if place != 12 else []) for place, one in enumerate(CONFIGS)],
)
def test_the_program_agrees_with_eager_at_both_sizes(tmp_path: Path, model_type: str) -> None:
    part = made_part(tmp_path, model_type)
    with part.prepare():
        program = torch.export.export(
            part.module, (), part.kwargs, dynamic_shapes=part.dynamic_shapes, strict=False
        ).module()
    for kwargs in at_two_sizes(part):
        expected = pytree.tree_leaves(run_once(part.module, ((), kwargs)))
        torch.testing.assert_close(pytree.tree_leaves(program(**kwargs)), expected)
