"""Tiny configurations of many families, in the form of a config.json, for all tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_BODY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_TEXT = {**_BODY, "vocab_size": 99}
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
_IMAGE = {**_BODY, "image_size": 30, "patch_size": 5}
_ENCODER_DECODER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
}
_RESNET = {"embedding_size": 10, "hidden_sizes": [10, 20, 30, 40], "depths": [1, 1, 2, 1]}
_ENDS = {"pad_token_id": 98, "bos_token_id": 97, "eos_token_id": 96, "decoder_start_token_id": 95}


def _config(model_type: str, architecture: str, **content: Any) -> dict[str, Any]:
    return {"model_type": model_type, "architectures": [architecture], **content}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _config("llama", "LlamaForCausalLM", **_GROUPED),
    "gpt2": _config("gpt2", "GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64),
    "bert": _config("bert", "BertForMaskedLM", **_TEXT),
    "deberta": _config("deberta-v2", "DebertaV2ForMaskedLM", **_TEXT, relative_attention=True, position_buckets=8),
    "roberta": _config("roberta", "RobertaForSequenceClassification", **_TEXT, max_position_embeddings=20),
    "xlnet": _config("xlnet", "XLNetLMHeadModel", d_model=32, n_layer=2, n_head=4, d_inner=64, vocab_size=99),
    "mamba": _config("mamba", "MambaForCausalLM", hidden_size=32, num_hidden_layers=2, vocab_size=99, state_size=8),
    "mixtral": _config("mixtral", "MixtralForCausalLM", **_GROUPED, num_local_experts=4),
    "gemma3": _config("gemma3_text", "Gemma3ForCausalLM", **_GROUPED, head_dim=8, sliding_window=8),
    "t5": _config(
        "t5", "T5ForConditionalGeneration", d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4, vocab_size=99
    ),
    "bart": _config("bart", "BartForConditionalGeneration", **_ENCODER_DECODER, max_position_embeddings=50),
    "marian": _config("marian", "MarianMTModel", **_ENCODER_DECODER, **_ENDS, max_position_embeddings=50),
    "whisper": _config(
        "whisper",
        "WhisperForConditionalGeneration",
        **_ENCODER_DECODER,
        **_ENDS,
        num_mel_bins=16,
        max_source_positions=30,
        max_target_positions=40,
    ),
    "wav2vec2": _config("wav2vec2", "Wav2Vec2ForCTC", **_TEXT, conv_dim=[32] * 7, num_conv_pos_embedding_groups=2),
    "audio_spectrogram": _config(
        "audio-spectrogram-transformer",
        "ASTForAudioClassification",
        **_BODY,
        max_length=24,
        num_mel_bins=16,
        patch_size=2,
        frequency_stride=2,
        time_stride=2,
    ),
    "vit": _config("vit", "ViTForImageClassification", **_IMAGE),
    "resnet": _config("resnet", "ResNetForImageClassification", **_RESNET),
    "detr": _config(
        "detr",
        "DetrForObjectDetection",
        **{key: value for key, value in _ENCODER_DECODER.items() if key != "vocab_size"},
        num_queries=6,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config={"model_type": "resnet", **_RESNET, "out_features": ["stage4"]},
    ),
    "clip": _config("clip", "CLIPModel", text_config=_TEXT, vision_config=_IMAGE),
    "siglip": _config(
        "siglip",
        "SiglipModel",
        text_config={**_TEXT, "max_position_embeddings": 24, "projection_size": 32},
        vision_config=_IMAGE,
    ),
    "llava": _config(
        "llava",
        "LlavaForConditionalGeneration",
        image_token_index=98,
        text_config={"model_type": "llama", **_TEXT},
        vision_config={"model_type": "clip_vision_model", **_IMAGE, "projection_dim": 32},
    ),
    "video": _config("videomae", "VideoMAEForVideoClassification", **_IMAGE, num_frames=4, tubelet_size=2),
}


def write_config(folder: Path, content: dict[str, Any]) -> Path:
    """The folder, made, with this config.json in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
