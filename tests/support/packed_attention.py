"""Forwards of packed attention, each with what a shim that attends to the whole row must do with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shim_cases import PackedAttention, eager_attention_forward

Rows = tuple[list[tuple[Tensor, ...]], Any]
"""Queries, keys and values, cut into segments and whole."""


class Segmented(PackedAttention):
    """One row cut at its boundaries; `attend` gets the lists of segments, and the whole rows before they were cut."""

    def __init__(self, attend: Callable[[Any, Any, Rows, Tensor], Any]) -> None:
        super().__init__()
        self.attend = attend
        self.scales = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor) -> Any:
        rows = self.qkv(hidden_states).reshape(-1, 3, 2, 2).permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        attention = eager_attention_forward
        lengths = cu_seqlens[1:] - cu_seqlens[:-1]
        splits = [torch.split(tensor, lengths.tolist(), dim=2) for tensor in rows]
        return self.attend(self, attention, (splits, rows), lengths)


def _each(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([attention(self, q, k, v, None)[0] for q, k, v in zip(*rows[0])], dim=1)


def _sdpa(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([F.scaled_dot_product_attention(q, k, v) for q, k, v in zip(*rows[0])], dim=2)


def _causal(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in zip(*rows[0])], dim=2)


def _longest(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    longest: Tensor = lengths.max()
    return _each(self, attention, rows, lengths) * longest


def _single(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    if len(rows[0][0]) == 1:
        whole: Tensor = attention(self, *rows[1], None)[0]
        return whole
    return _each(self, attention, rows, lengths)


def _product(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([(q @ k.transpose(2, 3)).softmax(-1) @ v for q, k, v in zip(*rows[0])], dim=2)


def _centred(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([attention(self, q - q.mean(2, keepdim=True), k, v, None)[0] for q, k, v in zip(*rows[0])], dim=1)


def _numbered(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    parts = [attention(self, q, k, v, None, number=n)[0] for n, (q, k, v) in enumerate(zip(*rows[0]))]
    return torch.cat(parts, dim=1)


def _own_scales(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    parts = [attention(self, q, k, v, None)[0] * s for q, k, v, s in zip(*rows[0], self.scales)]
    return torch.cat(parts, dim=1)


def _reversed(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([attention(self, q, k, v, None)[0] for q, k, v in zip(*rows[0])][::-1], dim=1)


def _without_first(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([attention(self, q, k, v, None)[0] for q, k, v in list(zip(*rows[0]))[1:]], dim=1)


def _crossed(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    queries, keys, values = rows[0]
    return torch.cat([attention(self, q, k, v, None)[0] for q, k, v in zip(queries, keys[::-1], values[::-1])], dim=1)


def _means(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.stack([attention(self, q, k, v, None)[0].mean(1) for q, k, v in zip(*rows[0])])


def _apart(self: Any, attention: Any, rows: Any, lengths: Any) -> list[Tensor]:
    return [attention(self, q, k, v, None)[0] for q, k, v in zip(*rows[0])]


def _by_length(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([attention(self, q, k, v, None)[0] * n for q, k, v, n in zip(*rows[0], lengths.tolist())], dim=1)


def _by_size(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([attention(self, q, k, v, None)[0] * q.shape[2] for q, k, v in zip(*rows[0])], dim=1)


def _beside(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    return torch.cat([attention(self, q, k, v, None)[0] for q, k, v in zip(*rows[0])], dim=2)


def _deaf(self: Any, attention: Any, rows: Any, lengths: Any) -> Tensor:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)

    return torch.cat([attend(q.clone(), k, v) for q, k, v in zip(*rows[0])], dim=2)


KEPT = {one.__name__.strip("_"): one for one in (_each, _sdpa, _causal, _longest, _single)}
"""The same whether a row is one segment or many."""

REFUSED = {
    one.__name__.strip("_"): one
    for one in (
        _product, _centred, _numbered, _own_scales, _reversed, _without_first, _crossed, _means, _apart, _by_length,
        _by_size, _beside, _deaf,
    )
}  # fmt: skip
"""Something is done to a segment that could differ from one to the next, or that the shim does not know."""
