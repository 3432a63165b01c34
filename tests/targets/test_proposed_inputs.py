"""Inputs of whatever a model takes: by its own processors, with placeholders counted, at sizes that its code wants."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2Model, PretrainedConfig, ViTConfig, WhisperConfig

from exportdoctor.core.errors import TargetError
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.report.wording.capture import inputs_left_out
from exportdoctor.targets.eager import install_command
from exportdoctor.targets.model.experts import experts_implementation, set_experts_implementation
from exportdoctor.targets.model.model_class import find_model_classes, load_config
from exportdoctor.targets.parts.default_part import default_part
from exportdoctor.targets.parts.dummy_inputs import with_placeholders_counted
from exportdoctor.targets.parts.model_context import ModelContext
from exportdoctor.targets.parts.processed_inputs import packages_for_processors, processed_layouts
from exportdoctor.targets.recipes import check_size
from exportdoctor.targets.sizes.image_sizes import image_unit


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


class Seer(nn.Module):
    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__()
        self.config = ViTConfig(image_size=32)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        raise ValueError("this is no picture")


class Prompted(nn.Module):
    """Half of its picture is another one; the configuration states the size of both together."""

    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__()
        self.config = ViTConfig(image_size=[32, 16])
        self.layer = nn.Conv2d(3, 4, 4)

    def forward(self, pixel_values: torch.Tensor, prompt: torch.Tensor, prompt_masks: torch.Tensor) -> torch.Tensor:
        """Two pictures beside each other.

        Args:
            pixel_values (`torch.Tensor` of shape `(batch_size, num_channels, image_size, image_size)`):
                The lower half.
            prompt (`torch.Tensor` of shape `(batch_size, num_channels, height, width)`):
                The upper half.
            prompt_masks (`torch.Tensor` of shape `(batch_size, num_channels, height, width)`):
                A picture, too.
        """
        whole = torch.cat((prompt, pixel_values), dim=2)
        if (shape := tuple(whole.shape[2:])) != (32, 16):
            raise ValueError(f"Input image size ({shape[0]}*{shape[1]}) doesn't match model (32*16).")
        masks: torch.Tensor = self.layer(torch.cat((prompt_masks, prompt_masks), dim=2))
        return self.layer(whole) + masks


def test_a_picture_with_a_prompt_has_its_half_of_the_size() -> None:
    part = default_part(context(Prompted()))
    assert {name: tuple(value.shape) for name, value in part.kwargs.items()} == dict.fromkeys(
        ("pixel_values", "prompt", "prompt_masks"), (2, 3, 16, 16)
    )
    assert all(value.is_floating_point() for value in part.kwargs.values())


def test_missing_packages_of_the_models_own_processors_are_told() -> None:
    missing = "pip install pillow" if find_spec("PIL") is None else ""
    assert packages_for_processors(context(Seer())) == missing
    with pytest.raises(TargetError) as refused:
        default_part(context(Seer()))
    assert "this is no picture" in refused.value.message
    assert (missing in refused.value.hint) if missing else ("processors" not in refused.value.hint)


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


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ("X requires the PIL library but it was not found. You can install it with pip: `pip install pillow`. "
         "X requires the Torchvision library but it was not found. X requires the timm library: pip install timm.",
         f"pip install pillow torchvision timm torch=={torch.__version__.partition('+')[0]}"),
        ("X requires the einops library but it was not found", "pip install einops"),
        ("cannot import name 'x'", ""),
    ],
)  # fmt: skip
def test_every_missing_package_is_in_the_command(message: str, command: str) -> None:
    assert install_command(ImportError(message)).partition(" (from")[0] == command


class Merger(nn.Module):
    """It takes text alone, and pictures of one width only, which no setting says."""

    input_modalities = ("image", "text")

    def __init__(self) -> None:
        super().__init__()
        settings: dict[str, Any] = {"vocab_size": 50, "image_size": 8}
        self.config = PretrainedConfig(**settings)
        self.embed, self.vision = nn.Embedding(50, 4), nn.Linear(12, 4)

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None) -> torch.Tensor:
        """
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_channels, height, width)`): pictures
        """
        text = self.embed(input_ids)
        return text if pixel_values is None else text + self.vision(pixel_values).mean((1, 2))[:, None]


def test_a_model_that_takes_text_alone_gets_its_picture_by_repair() -> None:
    part = default_part(context(Merger()))
    assert part.kwargs["pixel_values"].shape[-1] == 12
    assert not part.left_out


class Unsized(nn.Module):
    """It takes text and pictures, whose size no setting says."""

    input_modalities = ("image", "text")

    def __init__(self) -> None:
        super().__init__()
        settings: dict[str, Any] = {"vocab_size": 50, "image_size": [8, [8]]}
        self.config = PretrainedConfig(**settings)
        self.embed = nn.Embedding(50, 4)

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None) -> torch.Tensor:
        assert pixel_values is None
        return self.embed(input_ids)  # type: ignore[no-any-return]


def test_inputs_that_were_not_tried_are_not_told_as_refused() -> None:
    part = default_part(context(Unsized()))
    assert (part.left_out, part.because) == (("pixel_values",), "")
    assert "refused" not in inputs_left_out(part.left_out, part.because)
    assert "refused what was made: no" in inputs_left_out(part.left_out, "no")


def test_numbers_that_json_does_not_know_are_read_as_transformers_writes_them() -> None:
    written = {"model_type": "mamba2", "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    assert list(load_config(written).time_step_limit) == [0.0, float("inf")]


class Switch(nn.Module):
    """A model that has the switch of transformers, and its part that can be switched."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.config = SimpleNamespace(_experts_implementation="grouped_mm")

    def _can_set_experts_implementation(self) -> bool:
        return not self.parts

    def set_experts_implementation(self, name: str) -> None:
        if self.parts:
            raise ValueError("Switch does not support setting experts implementation.")
        self.config._experts_implementation = name


def test_experts_of_a_part_are_switched_where_the_whole_cannot_be() -> None:
    model = Switch(Switch())
    set_experts_implementation(model, "eager")
    assert experts_implementation(model) == "eager"


def test_a_table_that_names_a_class_that_is_not_there_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    table: Any = AutoModelForCausalLM._model_mapping
    real = type(table).__getitem__

    def get(self: Any, key: Any) -> Any:
        if self is table:
            raise ValueError("Could not find GPT3LMHeadModel")
        return real(self, key)

    monkeypatch.setattr(type(table), "__getitem__", get)
    assert GPT2Model in find_model_classes(GPT2Config())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "told"),
    [
        ("bark", "BarkModel has no forward of its own, but models that it calls in turn"),
        ("glm_image_vqmodel", "GlmImageVQVAE has no forward of its own$"),
    ],
)
def test_a_class_without_a_forward_is_named_and_what_to_give_in_its_place(model_type: str, told: str) -> None:
    with pytest.raises(TargetError, match=told) as raised:
        list(find_model_classes(load_config({"model_type": model_type})))
    assert "semantic" in raised.value.hint if model_type == "bark" else "file.py:factory" in raised.value.hint
