"""Factories of small random Hugging Face models, of families that have little in common."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tr


def _made(model: Any, **inputs: Any) -> tuple[torch.nn.Module, tuple[()], dict[str, Any]]:
    return model.eval(), (), inputs


def _ids(vocabulary: int = 99, *, batch: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randint(5, vocabulary - 5, (batch, length))


def llama() -> Any:
    """A decoder with rotary positions; returns a cache."""
    torch.manual_seed(0)
    config = tr.LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return _made(tr.LlamaForCausalLM(config), input_ids=_ids())


def bert() -> Any:
    """An encoder."""
    torch.manual_seed(0)
    config = tr.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37
    )
    return _made(tr.BertForMaskedLM(config), input_ids=_ids(), attention_mask=torch.ones(2, 7, dtype=torch.long))


def t5() -> Any:
    """An encoder and a decoder, with relative positions."""
    torch.manual_seed(0)
    config = tr.T5Config(
        vocab_size=99, d_model=32, d_ff=37, d_kv=8, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = tr.T5ForConditionalGeneration(config)
    return _made(model, input_ids=_ids(), decoder_input_ids=_ids(length=5), use_cache=False)


def vit() -> Any:
    """An image encoder."""
    torch.manual_seed(0)
    config = tr.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, image_size=32, patch_size=8
    )
    return _made(tr.ViTForImageClassification(config), pixel_values=torch.randn(2, 3, 32, 32))


def clip() -> Any:
    """Two towers."""
    torch.manual_seed(0)
    common = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = tr.CLIPConfig(
        text_config={**common, "vocab_size": 99, "max_position_embeddings": 16, "eos_token_id": 98},
        vision_config={**common, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    return _made(tr.CLIPModel(config), input_ids=_ids(), pixel_values=torch.randn(2, 3, 32, 32))


def whisper() -> Any:
    """A speech encoder and a text decoder."""
    torch.manual_seed(0)
    config = tr.WhisperConfig(
        vocab_size=99, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=20, decoder_ffn_dim=20, num_mel_bins=8, max_source_positions=20,
        max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = tr.WhisperForConditionalGeneration(config)
    return _made(model, input_features=torch.randn(2, 8, 40), decoder_input_ids=_ids(length=4))


def mixtral() -> Any:
    """Experts that tokens are routed to."""
    torch.manual_seed(0)
    config = tr.MixtralConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    return _made(tr.MixtralForCausalLM(config), input_ids=_ids(), use_cache=False)


def mamba() -> Any:
    """A state-space model."""
    torch.manual_seed(0)
    config = tr.MambaConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2, state_size=8)
    return _made(tr.MambaForCausalLM(config), input_ids=_ids(), use_cache=False)


def wav2vec2() -> Any:
    """Convolutions over sound, then an encoder."""
    torch.manual_seed(0)
    config = tr.Wav2Vec2Config(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
        conv_dim=(16, 16), conv_stride=(4, 4), conv_kernel=(8, 8), num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    return _made(tr.Wav2Vec2ForCTC(config), input_values=torch.randn(2, 512))


def qwen2_5_vl() -> Any:
    """A vision-language model whose windows depend on the image's size."""
    from exportdoctor.core.target import BuildOptions, TargetRef
    from exportdoctor.targets import build, resolve

    options = BuildOptions(static=True, image_size=(168, 168))
    part = build(resolve(TargetRef(ref="Qwen2.5-VL-3B-tiny", parts=("full",), options=options))).part("full")
    return part.module, part.args, part.kwargs


FAMILIES = (
    "llama", "bert", "t5", "vit", "clip", "whisper", "mixtral", "mamba", "wav2vec2",
    "qwen2_5_vl",
)  # fmt: skip
