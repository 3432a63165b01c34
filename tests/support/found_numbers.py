"""Modules that loop over the numbers that a tensor has, as mixtures of experts do, in the ways that code in the wild
writes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPERTS, WIDTH = 4, 8


class Experts(nn.Module):
    """A gate and experts; some tokens choose, and some experts stay without one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH)) for _ in range(EXPERTS)
        )

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of two experts for each token, and their numbers."""
        weights, best = self.gate(x).softmax(-1).topk(2, -1)
        return weights, best


class UniqueList(Experts):
    def forward(self, x: Tensor) -> Tensor:
        best = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for e in best.unique().tolist():
            sel = best == e
            out[sel] = self.experts[e](x[sel])
        return out


class UniqueTensor(Experts):
    def forward(self, x: Tensor) -> Tensor:
        weights, best = self.choose(x)
        out = torch.zeros_like(x)
        for e in torch.unique(best):
            rows, slot = torch.where(best == e)
            out.index_add_(0, rows, self.experts[e](x[rows]) * weights[rows, slot].unsqueeze(-1))
        return out


class UniqueBefore(Experts):
    """The list is made before the loop, and what it is made of changes in it."""

    def forward(self, x: Tensor) -> Tensor:
        best = self.gate(x).argmax(-1)
        present = best.unique(sorted=True).cpu().tolist()
        out: Tensor = x.clone()
        for e in present:
            rows = (best == e).nonzero().squeeze(-1)
            out[rows] += self.experts[int(e)](x[rows])
            best[rows] = EXPERTS + 1
        out += best.unsqueeze(-1)
        return out


class HitPlaces(Experts):
    """As transformers does it."""

    def forward(self, x: Tensor) -> Tensor:
        weights, best = self.choose(x)
        mask = nn.functional.one_hot(best, EXPERTS).permute(2, 1, 0)
        out = torch.zeros_like(x)
        hit = (mask.sum(dim=(-1, -2)) > 0).nonzero()
        for e in hit:
            slot, rows = torch.where(mask[e].squeeze(0))
            now = x[None, rows].reshape(-1, WIDTH)
            out.index_add_(0, rows, self.experts[e](now) * weights[rows, slot, None])
        return out


class HitNumbers(nn.Module):
    """As transformers' modules for experts in one parameter, with a number that none has."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, 12, WIDTH) * 0.3)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 6) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        weights, best = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        with torch.no_grad():
            mask = nn.functional.one_hot(best, num_classes=EXPERTS + 1).permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for number in hit:
            number = number[0]
            if number == EXPERTS:
                continue
            slot, rows = torch.where(mask[number])
            gate, up = nn.functional.linear(x[rows], self.up[number]).chunk(2, dim=-1)
            now = nn.functional.linear(nn.functional.silu(gate) * up, self.down[number])
            out.index_add_(0, rows, (now * weights[rows, slot, None]).to(out.dtype))
        return out


class Counted(Experts):
    """Places in counts, as numbers."""

    def forward(self, x: Tensor) -> Tensor:
        best = self.gate(x).argmax(-1)
        counts = torch.stack([(best == e).sum() for e in range(EXPERTS)])
        parts = torch.zeros(x.shape[0], WIDTH, dtype=x.dtype)
        for e in torch.nonzero(counts > 1).flatten().tolist():
            rows = torch.nonzero(best == e, as_tuple=True)[0]
            parts = parts.index_copy(0, rows, self.experts[e](x.index_select(0, rows)))
        return parts


class SortedSet(Experts):
    def forward(self, x: Tensor) -> Tensor:
        weights, best = self.choose(x)
        flat, out = best.view(-1), torch.zeros_like(x)
        for e in sorted(set(best.flatten().tolist())):
            places = torch.where(flat == e)[0]
            out = out.index_add(0, places // 2, self.experts[e](x[places // 2]) * weights.reshape(-1, 1)[places])
        return out


class PlainSet(Experts):
    def forward(self, x: Tensor) -> Tensor:
        best, total = self.gate(x).argmax(-1), x.sum() * 0
        for e in set(best.view(-1).tolist()):
            expert = self.experts[e]
            picked = x[best == e]
            total = total * 0.5 + expert(picked).sum()
        return total


class Skipping(Experts):
    """Experts with few tokens are left out."""

    def forward(self, x: Tensor) -> Tensor:
        best, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        for e in torch.unique(best).tolist():
            mask = best == e
            if mask.sum() < 2:
                continue
            out[mask] = out[mask] + self.experts[e](x[mask])
        return out


class Guarded(Experts):
    """With a shortcut that is never taken."""

    def forward(self, x: Tensor) -> Tensor:
        weights, best = self.choose(x)
        out = torch.zeros_like(x)
        for e in best.unique().tolist():  # type: ignore[no-untyped-call]
            expert = self.experts[e]
            rows, slot = torch.where(best == e)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return out


class Batched(Experts):
    """Of a batch of sequences, by a method of its own."""

    def mix(self, x: Tensor, best: Tensor) -> Tensor:
        out = torch.empty_like(x).fill_(0.5)
        for e in best.unique().tolist():  # type: ignore[no-untyped-call]
            at = best == e
            out[at] = self.experts[e](x[at]) + e
        return out

    def forward(self, x: Tensor) -> Tensor:
        batch = x.unsqueeze(0)
        return self.mix(batch, self.gate(batch).argmax(-1)).squeeze(0)


class Scaling(nn.Module):
    """Something is done for each number, whether rows have it or not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        best = x[:, :EXPERTS].argmax(-1)
        state = x.mean(-1)
        for e in best.unique().tolist():  # type: ignore[no-untyped-call]
            state = torch.tanh(state * 2 + self.scale[e]) - e
        return state


SHIMMED = (
    UniqueList, UniqueTensor, UniqueBefore, HitPlaces, HitNumbers, Counted, SortedSet, PlainSet, Skipping, Guarded,
    Batched, Scaling,
)  # fmt: skip
