"""Inputs of whatever a model takes: by its own processors, with placeholders counted, at sizes that its code wants."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig, WhisperConfig

from exportdoctor.core.errors import TargetError
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.targets.parts.default_part import default_part
from exportdoctor.targets.parts.dummy_inputs import with_placeholders_counted
from exportdoctor.targets.parts.model_context import ModelContext
from exportdoctor.targets.parts.processed_inputs import processed_layouts
from exportdoctor.targets.recipes import check_size
from exportdoctor.targets.sizes.image_sizes import image_unit
from exportdoctor.targets.small_model import shrink_config


def context(model: nn.Module) -> ModelContext:
    return ModelContext(model=model, options=BuildOptions(), device=torch.device("cpu"))


class Listener(nn.Module):
    main_input_name = "input_features"

    def __init__(self) -> None:
        super().__init__()
        self.config = WhisperConfig()
        self.layer = nn.Conv1d(80, 4, 3)

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        return self.layer(input_features)


def test_a_feature_extractor_makes_what_the_model_was_made_for() -> None:
    subject = context(Listener())
    layouts = processed_layouts(subject)
    assert list(layouts) == ["input_features"]
    assert layouts["input_features"].axes == {0: "batch"}


class Patches(nn.Module):
    main_input_name = "series"

    def __init__(self) -> None:
        super().__init__()
        self.config = PretrainedConfig()

    def forward(self, series: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """
        Args:
            series (`torch.FloatTensor` of shape `(batch_size, sequence_length)`): values
            padding (`torch.LongTensor` of shape `(batch_size, sequence_length)`): what is padded
        """
        rows = series.shape[0]
        return series.view(rows, -1, 24) * padding.view(rows, -1, 24)


def test_a_sequence_that_must_be_a_multiple_is_one_in_all_inputs() -> None:
    part = default_part(context(Patches()))
    assert part.kwargs["series"].shape == part.kwargs["padding"].shape
    assert part.kwargs["series"].shape[1] % 24 == 0


@pytest.mark.parametrize(
    "complaint",
    [
        "Image features and image tokens do not match, tokens: 4, features: 10",
        "Image features and image tokens do not match: tokens: 4, features 10",
    ],
)
def test_placeholders_are_counted_from_the_message(complaint: str) -> None:
    model: Any = SimpleNamespace(config=SimpleNamespace(image_token_id=0))
    ids = torch.tensor([[1, 0, 0], [2, 0, 0]])
    made = with_placeholders_counted(context(model), {"input_ids": ids, "attention_mask": ids * 0 + 1}, complaint)
    assert made["input_ids"].tolist() == [[1, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0]]
    assert made["attention_mask"].shape == (2, 6)
    for other in ("nothing of the kind", complaint.replace("10", "3")):
        with pytest.raises(LookupError):
            with_placeholders_counted(context(model), {"input_ids": ids}, other)


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": float("inf")},
        {"text_config": {"vocab_size": 10**15}},
        {"num_local_experts": 10**8},
        {"max_position_embeddings": 10**14},
    ],
)
def test_what_no_machine_builds_is_refused_at_once(config: dict[str, Any]) -> None:
    with pytest.raises(TargetError, match="are not built"):
        check_size(config)


@pytest.mark.parametrize("side", [[], {}, "x", [None], 0, -4, None])
def test_sides_of_no_size_say_nothing(side: object) -> None:
    assert image_unit({"vision_config": {"patch_size": side, "spatial_merge_size": 2}}) == 2


def test_layers_that_are_named_are_among_those_that_are_kept() -> None:
    small = shrink_config(
        {
            "vision_config": {"num_hidden_layers": 24, "out_features": ["stem", "stage12"], "hidden_size": 64},
            "text_config": {"num_hidden_layers": 12, "per_layer_config": {"0": 1, "6": 2, "11": 3}},
            "vision_feature_layer": [-2, 24, 18],
        }
    )
    assert small["vision_config"]["out_features"] == ["stem", "stage2"]
    assert list(small["text_config"]["per_layer_config"]) == ["0"]
    assert small["vision_feature_layer"] == [-2, 1]
