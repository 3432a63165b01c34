"""A configuration made small: what stays of it, and that transformers takes it."""

from __future__ import annotations

from typing import Any

import pytest

from exportdoctor.core.errors import TargetError
from exportdoctor.targets.model.model_class import load_config
from exportdoctor.targets.small_config import changed_settings, counts_changed, keep_settings, shrink_config
from exportdoctor.targets.small_model import make_small


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


def test_a_head_that_takes_several_stages_gets_as_many_of_few_layers() -> None:
    taken = {"out_features": ["stage6", "stage12", "stage18", "stage24"], "out_indices": [6, 12, 18, 24]}
    small = shrink_config({"backbone_config": {"num_hidden_layers": 24, **taken}})["backbone_config"]
    assert small == {
        "num_hidden_layers": 4,
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
        "out_indices": [1, 2, 3, 4],
    }


@pytest.mark.parametrize(
    ("settings", "few"),
    [
        ({"depths": [2, 2, 18, 1]}, {"depths": [2, 2, 2, 1]}),
        (
            {"block_sizes": [4, 4, 4], "block_repeats": [1, 1, 1]},
            {"block_sizes": [2, 2, 2], "block_repeats": [1, 1, 1]},
        ),
        ({"stage_numb_of_layers": [6, 6], "strides": [4, 8]}, {"stage_numb_of_layers": [2, 2], "strides": [4, 8]}),
        ({"depths": None}, {"depths": None}),
    ],
)
def test_each_stage_keeps_few_layers_and_no_stage_goes(settings: dict[str, Any], few: dict[str, Any]) -> None:
    config = {"backbone_config": {"model_type": "swin", "out_features": ["stage1", "stage2"], **settings}}
    small = shrink_config(config)["backbone_config"]
    assert {key: small[key] for key in settings} == few
    assert small["out_features"] == ["stage1", "stage2"]
    told = list(counts_changed(config, shrink_config(config)))
    assert told == [
        f"backbone_config.{key} {few[key]} for {settings[key]}" for key in settings if few[key] != settings[key]
    ]


def test_widths_and_heads_stay_where_they_may_belong_together() -> None:
    config = {"num_hidden_layers": 9, "num_attention_heads": 8, "hidden_size": 64, "num_kv_shared_layers": 4}
    assert shrink_config(config) | {"hidden_size": 64} == {
        "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64, "num_kv_shared_layers": 0
    }  # fmt: skip
    assert shrink_config(config, narrow=False) == config | {"num_hidden_layers": 2, "num_kv_shared_layers": 0}


def test_a_small_model_has_few_experts_and_numbers_of_layers_are_no_kinds() -> None:
    experts = {"n_routed_experts": 256, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "n_shared_experts": 1}
    config = {"num_hidden_layers": 12, "kv_source_layers": list(range(12)), "insert_layer_id": 2, **experts}
    assert shrink_config(config) == {
        **config, "num_hidden_layers": 4, "kv_source_layers": [0, 1, 2, 3], "n_routed_experts": 32
    }  # fmt: skip
    stages = {"num_layers": 4, "num_heads": [3, 6, 12, 24]}
    assert shrink_config({"num_attention_heads": 1, **stages})["num_layers"] == 4
    assert shrink_config({"num_experts": 64})["num_experts"] == 64
    hooks = {"model_config": {"num_hidden_layers": 12}, "intermediate_hook_ids": [11, 5]}
    assert shrink_config(hooks)["intermediate_hook_ids"] == [1, 1]


@pytest.mark.parametrize(
    ("setting", "kept"),
    [
        ({"attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1}, 5),
        ({"attn_layer_period": 6}, 6),
        ({"block_types": ["recurrent", "recurrent", "attention"]}, 3),
        ({"layers_block_type": ["mamba", "moe", "attention", "mlp"]}, 4),
        ({"layer_types": ["mamba"] * 11 + ["attention"]}, 8),
    ],
)
def test_a_small_model_has_a_layer_of_each_kind(setting: dict[str, Any], kept: int) -> None:
    assert shrink_config({"num_hidden_layers": 12, **setting})["num_hidden_layers"] == kept


def test_groups_of_heads_are_as_few_as_heads_and_every_name_of_a_width_is_narrow() -> None:
    heads = {"num_heads": 128, "head_dim": 64, "n_groups": 8, "hidden_size": 4096}
    assert shrink_config(heads) == {"num_heads": 2, "head_dim": 64, "n_groups": 2, "hidden_size": 64}
    assert shrink_config({"n_embd": 768, "n_head": 12}) == {"n_embd": 128, "n_head": 2}
    bart = {"d_model": 1024, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "num_layers": 2}
    assert shrink_config(bart) == bart | {"d_model": 128, "encoder_attention_heads": 2, "encoder_ffn_dim": 256}
    assert shrink_config({"hidden_size": 64, "num_encoder_attention_heads": 16})["hidden_size"] == 8
    each = {"hidden_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 4, "intermediate_size": [16384] * 4}
    assert shrink_config(each)["intermediate_size"] == [1024, 1024]
    tables = {"vocab_size_per_layer_input": 262144, "decoder_vocab_size": 58101, "type_vocab_size": 2}
    assert [*shrink_config(tables).values()] == [512, 512, 2]
    stated = {"hidden_size": 4096, "num_attention_heads": 96, "head_dim": 128}
    assert shrink_config(stated) == {"hidden_size": 256, "num_attention_heads": 2, "head_dim": 128}


def test_the_output_of_an_encoder_that_stands_alone_is_no_wider_than_its_layers() -> None:
    """As the width of a language model it is narrowed as that is."""
    encoder = {"num_hidden_layers": 24, "num_heads": 12, "hidden_size": 1536, "out_hidden_size": 4096}
    small = shrink_config(encoder)
    assert (small["hidden_size"], small["out_hidden_size"]) == (256, 256)
    text = {"num_hidden_layers": 2, "num_attention_heads": 64, "hidden_size": 4096}
    both = shrink_config({"vision_config": encoder, "text_config": text})
    assert both["vision_config"]["out_hidden_size"] == both["text_config"]["hidden_size"] == 128


@pytest.mark.parametrize("model_type", ["xlnet", "falcon_h1", "fun_asr_nano", "bart"])
def test_what_transformers_would_reject_stays_and_no_more(model_type: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = {**CONFIG_MAPPING[model_type]().to_dict(), "model_type": model_type}
    small = make_small(config)
    load_config(small)
    kept = set(changed_settings(config, shrink_config(config))) - set(changed_settings(config, small))
    assert bool(kept) == (model_type not in ("bart", "xlnet"))
    for one in kept:
        with pytest.raises(TargetError, match="rejects"):
            load_config(keep_settings(config, shrink_config(config), kept - {one}))


def test_settings_are_kept_at_any_depth() -> None:
    config = {"a": 1, "b": {"c": 2, "d": [3]}, "e": {"f": 4}}
    small = {"a": 0, "b": {"c": 0, "d": []}, "e": {}}
    paths = list(changed_settings(config, small))
    assert paths == [("a",), ("b", "c"), ("b", "d"), ("e",)]
    assert keep_settings(config, small, paths) == config
    assert keep_settings(config, small, ()) == small
    assert keep_settings(config, small, [("b", "d")]) == {"a": 0, "b": {"c": 0, "d": [3]}, "e": {}}
