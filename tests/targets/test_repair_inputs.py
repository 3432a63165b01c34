"""Inputs that a forward refuses are changed until it takes them, or given up within bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import PretrainedConfig

from exportdoctor.core.errors import TargetError
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.targets.parts.default_part import default_part
from exportdoctor.targets.parts.documented_inputs import TensorSpec, documented_inputs
from exportdoctor.targets.parts.input_layouts import FIRST, GRID
from exportdoctor.targets.parts.model_context import InputSearch, ModelContext
from exportdoctor.targets.parts.repair_inputs import repair_inputs


class Picky(nn.Module):
    """A model with a configuration. `forward` is a function of the model and its inputs."""

    main_input_name = "features"

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.config = PretrainedConfig(**settings)


def context(model: nn.Module) -> ModelContext:
    return ModelContext(model=model, options=BuildOptions(), device=torch.device("cpu"))


class Linear(Picky):
    def __init__(self, rank: int, width: int) -> None:
        super().__init__()
        self.rank, self.layer = rank, nn.Linear(width, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Args: features (`torch.FloatTensor` of shape `(batch_size, sequence_length, unknown_size)`): ..."""
        if features.dim() != self.rank:
            raise ValueError(f"features: expected {self.rank}D input (got {features.dim()}D input)")
        return self.layer(features)


class Pyramid(Picky):
    """A tensor in place of the list would be taken for its rows, and its batch would be fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        """Args: features (`torch.FloatTensor` of shape `(batch_size, sequence_length, 5)`): ..."""
        return self.layer(torch.cat([feature * 2 for feature in features]))


def test_a_list_of_tensors_is_given_where_forward_asks_for_one() -> None:
    part = default_part(context(Pyramid()))
    assert isinstance(part.kwargs["features"], list)
    torch.export.export(part.module, (), part.kwargs, dynamic_shapes=part.dynamic_shapes)


@settings(max_examples=30, deadline=None)
@given(rank=st.integers(2, 4), width=st.integers(3, 600))
def test_rank_and_width_are_found_from_the_messages(rank: int, width: int) -> None:
    model = Linear(rank, width)
    start = {"features": TensorSpec(dims=("batch", "sequence", 2), kind="float")}

    def run(specs: Any) -> Any:
        made = {name: torch.zeros([3 if isinstance(d, str) else d for d in spec.dims]) for name, spec in specs.items()}
        return model(**made)

    found = repair_inputs(context(model), [start], run, seconds=40)
    assert found is not None
    run(found)


@pytest.mark.slow
def test_time_in_which_others_use_the_processor_does_not_count() -> None:
    """Else a busy machine would find other inputs than an idle one."""
    model = Linear(2, 300)

    def run(specs: Any) -> Any:
        time.sleep(0.25)
        made = {name: torch.zeros([3 if isinstance(d, str) else d for d in spec.dims]) for name, spec in specs.items()}
        return model(**made)

    start = {"features": TensorSpec(dims=("batch", "sequence", 2), kind="float")}
    assert repair_inputs(context(model), [start], run, seconds=1.0) is not None


class Convolution(Picky):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(80, 8, 3)

    def forward(self, features: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """
        Args:
            features (`torch.FloatTensor` of shape `(batch_size, channels, 40)`): sound
            lengths (`torch.LongTensor` of shape `(batch_size, 3)`, *optional*): how long
        """
        if features.shape[-1] != 3000:
            raise ValueError(f"Expected the input length to be 3000, but found {features.shape[-1]}")
        return self.layer(features) * lengths.sum()  # type: ignore[union-attr]


def test_channels_a_stated_length_and_a_missing_argument() -> None:
    part = default_part(context(Convolution()))
    assert part.kwargs["features"].shape == (2, 80, 3000)
    assert part.kwargs["lengths"].dtype == torch.int64


class Stubborn(Picky):
    calls = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """features (`torch.FloatTensor` of shape `(batch_size, 4)`): sizes 5, 6, 7, 8"""
        self.__class__.calls += 1
        raise ValueError(f"expected {self.calls} or {self.calls + 1}D tensor, {features.shape}, index out of range")


def test_what_is_never_accepted_is_given_up() -> None:
    with pytest.raises(Exception, match=r"fails on the inputs made for it|No inputs are known"):
        default_part(context(Stubborn(vocab_size=9)))
    assert Stubborn.calls <= 80


class Documented(Picky):
    def forward(self, boxes: Any = None, other: Any = None, mask: Any = None) -> Any:
        """
        Args:
            boxes (`torch.FloatTensor` of shape `(batch_size, num_boxes, 4)`, *optional*): boxes
            mask (`torch.LongTensor` of shape `(batch_size, sequence_length)`): mask
            absent (`torch.LongTensor` of shape `(batch_size,)`): no parameter
        """


def test_shapes_are_read_from_the_documentation() -> None:
    found = documented_inputs(context(Documented(num_boxes=5)))
    assert found == {
        "boxes": TensorSpec(dims=("batch", 5, 4), kind="float"),
        "mask": TensorSpec(dims=("batch", "sequence"), kind="mask"),
    }


class Placer(Picky):
    """Needs a mask that the forward hands on in a call of several lines, with places for sixteen values."""

    main_input_name = "input_ids"

    def forward(self, input_ids: torch.Tensor, position_mask: torch.Tensor | None = None) -> torch.Tensor:
        """
        Args:
            position_mask (`torch.LongTensor` of shape `(batch_size, sequence_length)`): where values are put
        """
        return self.place(
            input_ids,
            where=position_mask,
        )

    def place(self, ids: torch.Tensor, where: Any) -> torch.Tensor:
        spread = torch.zeros(*ids.shape, 3)
        spread[where.nonzero(as_tuple=True)] = torch.ones(16, 3)
        return spread


def test_an_input_that_is_missing_is_found_in_a_statement_of_several_lines() -> None:
    part = default_part(context(Placer(vocab_size=9)))
    assert part.kwargs["position_mask"].shape == part.kwargs["input_ids"].shape == (2, 8)


class Insatiable(Picky):
    """It complains of sizes that no machine holds pairs of."""

    main_input_name = "input_ids"

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Args: input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`): tokens"""
        seen.add(input_ids.shape[1])
        raise ValueError(f"{input_ids.shape[1]} is no multiple of 90000 or of 1024")


seen: set[int] = set()


def test_a_sequence_is_never_so_long_that_its_pairs_fill_the_memory() -> None:
    with pytest.raises(TargetError):
        default_part(context(Insatiable(vocab_size=9)))
    assert 1024 in seen
    assert max(seen) <= 2048


class Stacking(Picky):
    """What it multiplies is eight times as wide as what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1024, 4)

    def forward(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """
        Args:
            features (`torch.FloatTensor` of shape `(batch_size, sequence_length, 80)`): sounds
            mask (`torch.LongTensor` of shape `(batch_size, sequence_length)`): which of it counts
        """
        return self.layer(torch.cat([features] * 8, dim=-1)) * mask.masked_fill(mask, 2.0)[..., None]


def test_a_size_that_the_model_multiplies_first_is_found_and_a_mask_becomes_one_of_truth_values() -> None:
    model = Stacking()
    start = dict(documented_inputs(context(model)))
    found = repair_inputs(context(model), [start], lambda specs: run_specs(model, specs), seconds=40)
    assert found is not None
    assert found["features"].dims[-1] == 128
    assert found["mask"].kind == "bool"


class Viewer(Picky):
    """A row of patches with the sides of the picture, which it looks at."""

    def __init__(self) -> None:
        super().__init__(patch_size=2, num_channels=3)
        self.layer = nn.Linear(12, 4)

    main_input_name = "pixel_values"

    def forward(
        self, pixel_values: torch.Tensor, pixel_attention_mask: torch.Tensor, spatial_shapes: torch.Tensor
    ) -> torch.Tensor:
        if not bool((spatial_shapes.prod(-1) == pixel_values.shape[1]).all()):
            raise ValueError("the sides do not fit the patches")
        return self.layer(pixel_values) * pixel_attention_mask[..., None]


def test_rows_of_patches_go_with_their_sides() -> None:
    part = default_part(context(Viewer()))
    assert part.kwargs["pixel_values"].shape[-1] == 12
    assert part.kwargs["spatial_shapes"].shape == (2, 2)


def test_a_grid_keeps_its_values_while_other_inputs_are_repaired() -> None:
    made = TensorSpec(dims=(2, 3), kind="grid").layout().make(context(Viewer()), FIRST)
    assert made.tolist() == [list(GRID)] * 2


def test_only_a_refusal_that_depends_on_the_form_calls_for_another() -> None:
    search = InputSearch()
    search.note(RuntimeError("mat1 and mat2 shapes cannot be multiplied (28x640 and 1024x1024)"))
    search.note(AttributeError("'FakeTensor' object has no attribute 'get'"))
    assert not search.form_matters
    assert "28x640" in str(search.first)
    search.note(RuntimeError("Expected inputs of BF16 type but got mat_a.dtype=torch.float32"))
    assert search.form_matters


class Mismatch(Picky):
    """As many features as places for them, of another width."""

    def __init__(self) -> None:
        super().__init__(vocab_size=9)

    main_input_name = "input_ids"

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        raise ValueError("Image features and image tokens do not match, tokens: 4, features: 4")


def test_equal_counts_are_told_as_widths_that_do_not_fit() -> None:
    with pytest.raises(TargetError, match="as many of both, so they differ in width"):
        default_part(context(Mismatch()))


def run_specs(model: nn.Module, specs: Any) -> Any:
    return model(**{name: spec.layout().make(context(model), FIRST) for name, spec in specs.items()})


class Rows(Picky):
    """What is a row to the documentation has a batch of one before it."""

    main_input_name = "marks"

    def forward(self, marks: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """
        Args:
            marks (`torch.LongTensor` of shape `(num_marks,)`): numbers
            counts (`torch.LongTensor` of shape `(num_marks,)`): numbers
        """
        return marks[0][:, None] + counts[0][None]


class PassedOn(Picky):
    """A submodule takes a keyword that the model only passes on."""

    class Layer(nn.Module):
        def forward(self, hidden_states: torch.Tensor, condition: torch.Tensor | None = None) -> torch.Tensor:
            return hidden_states + torch.relu(condition)  # type: ignore[arg-type]

    def __init__(self) -> None:
        super().__init__(hidden_size=6)
        self.layer = self.Layer()

    def forward(self, features: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """features (`torch.FloatTensor` of shape `(batch_size, sequence_length, hidden_size)`): a row"""
        return self.layer(features, **kwargs)


class Waves(Picky):
    """What stands for a sequence in the documentation is one channel, and the width is the sound."""

    main_input_name = "hidden_states"

    def __init__(self) -> None:
        super().__init__(hidden_size=4)
        self.layer = nn.Conv1d(1, 2, 40)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.layer(hidden_states)


class Channels(Picky):
    """The documentation says frames by features, and forward takes features by frames, in chunks of whole frames."""

    main_input_name = "input_features"

    def __init__(self) -> None:
        super().__init__(num_mel_bins=12)
        self.layer = nn.Conv1d(12, 2, 3)

    def forward(self, input_features: torch.Tensor, input_features_mask: torch.Tensor) -> torch.Tensor:
        """
        Args:
            input_features (`torch.FloatTensor` of shape `(batch_size, sequence_length, num_mel_bins)`): a sound
            input_features_mask (`torch.LongTensor` of shape `(batch_size, sequence_length)`): a mask
        """
        if input_features.shape[-1] % 50:
            raise ValueError(f"expected a multiple of `2 * window` (50), but got {input_features.shape[-1]}.")
        return self.layer(input_features * input_features_mask[:, None])


class Joined(Picky):
    """Both pictures together have the size of the configuration."""

    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__(image_size=[64, 32], num_channels=3)

    def forward(self, pixel_values: torch.Tensor, prompt_pixel_values: torch.Tensor) -> torch.Tensor:
        """
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_channels, height, width)`): a picture
            prompt_pixel_values (`torch.FloatTensor` of shape `(batch_size, num_channels, height, width)`): a picture
        """
        joined = torch.cat([pixel_values, prompt_pixel_values], dim=2)
        if joined.shape[2] != 64:
            raise ValueError(f"Input image size ({joined.shape[2]}*{joined.shape[3]}) doesn't match model (64*32).")
        return joined


class Clip(Picky):
    """A clip that has the name of a picture."""

    main_input_name = "input_ids"
    input_modalities = ("video", "text")

    def __init__(self) -> None:
        super().__init__(vocab_size=40, num_frames=3, max_img_size=8, num_channels=3)

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
        batch, *_, side, _ = pixel_values.shape
        if pixel_values.dim() != 5 or side != 8:
            raise ValueError("no clip")
        return pixel_values.reshape(batch, -1).mean(-1, keepdim=True) + input_ids


class Places(Picky):
    """Patches with their places, which are pooled three by three."""

    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__(patch_size=2, pooling_kernel_size=3, num_channels=3)
        self.layer = nn.Linear(12, 4)

    def forward(self, pixel_values: torch.Tensor, pixel_position_ids: torch.Tensor) -> torch.Tensor:
        groups = pixel_position_ids // 3
        if pixel_position_ids.shape[1] % 9 or int(groups.max()) != pixel_values.shape[1] // 18 - 1:
            raise ValueError("they are not pooled")
        return self.layer(pixel_values)


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (Rows(), {"marks": (1, 2), "counts": (1, 2)}),
        (PassedOn(), {"features": (2, 13, 6), "condition": (2, 13, 6)}),
        (Waves(), {"hidden_states": (2, 1, 4000)}),
        (Channels(), {"input_features": (2, 12, 50), "input_features_mask": (2, 50)}),
        (Joined(), {"pixel_values": (2, 3, 32, 32), "prompt_pixel_values": (2, 3, 32, 32)}),
        (Clip(), {"input_ids": (2, 13), "pixel_values": (2, 3, 3, 8, 8)}),
        (Places(), {"pixel_values": (2, 36, 12), "pixel_position_ids": (2, 36, 2)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_said_otherwise_than_it_is_taken_is_found(model: nn.Module, shapes: dict[str, Any]) -> None:
    part = default_part(context(model))
    assert {name: tuple(value.shape) for name, value in part.kwargs.items()} == shapes


def test_products_templates_and_counts_of_a_grid_are_read_from_the_documentation() -> None:
    class Written(Picky):
        def forward(self, patches: Any = None, boxes: Any = None, image_grid_thw: Any = None) -> Any:
            """
            Args:
                patches (`torch.FloatTensor` of shape `(num_image_tokens, patch_size * merge_size, 3)`): patches
                boxes (`torch.LongTensor` of shape `({0}, 4)`): boxes
            """

    found = documented_inputs(context(Written(patch_size=4, merge_size=2)))
    assert found["patches"].dims == (16, 8, 3)
    assert found["boxes"].dims == ("batch", "sequence", 4)


class Clips(Picky):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """features (`torch.FloatTensor` of shape `(batch_size, 5)`): the frames of the clips, one below the other"""
        batch, width = features.shape
        return features.reshape(batch // 8, 8, width).mean(1)


def test_a_batch_that_is_smaller_than_the_groups_it_is_split_into() -> None:
    part = default_part(context(Clips()))
    assert part.kwargs["features"].shape == (16, 5)
