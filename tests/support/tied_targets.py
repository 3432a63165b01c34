"""Factories whose examples have equal values, among which torch and ONNX Runtime choose others."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim


class Retrieve(torch.nn.Module):
    """The nearest documents of each query, and where they lie in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.places = torch.nn.Embedding(80, 3)

    def forward(self, queries: torch.Tensor, documents: torch.Tensor) -> dict[str, torch.Tensor]:
        """Scores are sums of few whole numbers, so that many are equal."""
        best = (queries @ documents.T).topk(3, dim=-1)
        return {"scores": best.values, "documents": best.indices, "places": self.places(best.indices)}


class Spoilt(Retrieve):
    """After the choice comes what ONNX Runtime computes otherwise than torch: a NaN in a maximum."""

    def forward(self, queries: torch.Tensor, documents: torch.Tensor) -> dict[str, torch.Tensor]:
        """Its largest numbers are NaN in eager."""
        made = super().forward(queries, documents)
        scores = queries @ documents.T
        return {**made, "largest": torch.where(scores == 1, float("nan"), scores).amax(-1)}


def _example(module: torch.nn.Module) -> Any:
    torch.manual_seed(0)
    inputs = torch.randint(2, (4, 5)).float(), torch.randint(2, (40, 5)).float()
    return (
        module.eval(),
        inputs,
        {},
        {"queries": {0: Dim("q", min=1, max=64)}, "documents": {0: Dim("d", min=8, max=80)}},
    )


def retrieve() -> Any:
    """It exports, and its file is right."""
    return _example(Retrieve())


def spoilt() -> Any:
    """Its file differs in more than a choice."""
    return _example(Spoilt())
