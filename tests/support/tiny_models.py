"""Factories of small random Hugging Face models, of families that have little in common."""

from __future__ import annotations

from typing import Any

import torch

from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.targets import build, resolve
from exportdoctor.targets.model.model_class import find_model_classes, load_config
from tiny_configs import FAMILIES as CONFIGS

Given = tuple[torch.nn.Module, tuple[()], dict[str, Any]]


def _model(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = load_config(CONFIGS[family])
    model: torch.nn.Module = next(find_model_classes(config))(config)
    return model.eval()


def _ids(*, batch: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randint(5, 94, (batch, length))


def llama() -> Given:
    """A decoder with rotary positions; returns a cache."""
    return _model("llama"), (), {"input_ids": _ids()}


def bert() -> Given:
    """An encoder."""
    return _model("bert"), (), {"input_ids": _ids(), "attention_mask": torch.ones(2, 7, dtype=torch.long)}


def t5() -> Given:
    """An encoder and a decoder, with relative positions."""
    return _model("t5"), (), {"input_ids": _ids(), "decoder_input_ids": _ids(length=5), "use_cache": False}


def vit() -> Given:
    """An image encoder."""
    return _model("vit"), (), {"pixel_values": torch.randn(2, 3, 30, 30)}


def clip() -> Given:
    """Two towers."""
    return _model("clip"), (), {"input_ids": _ids(), "pixel_values": torch.randn(2, 3, 30, 30)}


def whisper() -> Given:
    """A speech encoder and a text decoder."""
    return _model("whisper"), (), {"input_features": torch.randn(2, 16, 60), "decoder_input_ids": _ids(length=4)}


def mixtral() -> Given:
    """Experts that tokens are routed to."""
    return _model("mixtral"), (), {"input_ids": _ids(), "use_cache": False}


def mamba() -> Given:
    """A state-space model."""
    return _model("mamba"), (), {"input_ids": _ids(), "use_cache": False}


def wav2vec2() -> Given:
    """Convolutions over sound, then an encoder."""
    return _model("wav2vec2"), (), {"input_values": torch.randn(2, 1600)}


def qwen2_5_vl() -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A vision-language model whose windows depend on the image's size."""
    options = BuildOptions(static=True, image_size=(168, 168))
    part = build(resolve(TargetRef(ref="Qwen2.5-VL-3B-tiny", parts=("full",), options=options))).part("full")
    return part.module, part.args, part.kwargs


FAMILIES = (
    "llama", "bert", "t5", "vit", "clip", "whisper", "mixtral", "mamba", "wav2vec2",
    "qwen2_5_vl",
)  # fmt: skip
