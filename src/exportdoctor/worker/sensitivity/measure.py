"""What layers cost: each lowered alone and kept alone, the smallest set to keep, and pairs that do not add up."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy

from exportdoctor.core.protocol.sensitivity import LayerCost, PairCost
from exportdoctor.reduce import SearchLimits, ddmin, drive
from exportdoctor.reduce.verdict import Verdict
from exportdoctor.worker.sensitivity.layers import GraphLayer
from exportdoctor.worker.sensitivity.quantisers import Feed

LARGEST = sys.float_info.max
"""In place of infinity, which JSON does not have."""
_MARGIN = 0.8
"""The share of the budget that the search may use, so that other inputs stay within all of it."""
_MOST_PAIRED, _TOLD_RATIO = 6, 1.5
_SMALLEST = 1e-30
_AT_ONCE = 20
"""Layers whose exact values are held together."""


class LowerableModel(Protocol):
    """A model whose layers can each be lowered or not. `outputs` are the names of its floating-point outputs, `local`
    those of the values of each layer, by its name."""

    layers: list[GraphLayer]
    outputs: list[str]

    @property
    def local(self) -> Mapping[str, list[str]]: ...

    def run(self, feed: Feed, lowered: Collection[str], names: Sequence[str] = ()) -> list[Any]:
        """The outputs, or the values `names`, as arrays, with these layers lowered."""


@dataclass(kw_only=True)
class Sensitivity:
    """Measures a model on some input sets."""

    model: LowerableModel
    feeds: Sequence[Feed]
    doing: Callable[[str], None]
    _exact: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._exact = [self.model.run(feed, ()) for feed in self.feeds]
        self.names = [layer.name for layer in self.model.layers]
        self._known: dict[frozenset[str], float] = {}

    def error(self, lowered: Collection[str]) -> float:
        """The outputs' error with these layers lowered: the worst of the outputs and of the sets."""
        key = frozenset(lowered)
        if key not in self._known:
            pairs = zip(self.feeds, self._exact, strict=True)
            self._known[key] = max(
                (relative_error(one, other) for feed, exact in pairs for one, other in
                 zip(self.model.run(feed, lowered), exact, strict=True)), default=0.0,
            )  # fmt: skip
        return self._known[key]

    def costs(self) -> list[LayerCost]:
        """Every layer, most sensitive first."""
        found: list[LayerCost] = []
        own: list[dict[str, Any]] = []
        for number, layer in enumerate(self.model.layers):
            if number % _AT_ONCE == 0:
                self.doing(f"lowering layer {number + 1} of {len(self.names)}")
                own = self._exact_values(self.model.layers[number : number + _AT_ONCE])
            found.append(
                LayerCost(
                    name=layer.name,
                    nodes=tuple(node.name for node in layer.nodes),
                    ops=tuple(dict.fromkeys(node.op_type for node in layer.nodes)),
                    depth=layer.depth,
                    kept=self.error([name for name in self.names if name != layer.name]),
                    **self._lower_alone(layer.name, own),
                    file=layer.file,
                    line=layer.line,
                    folded=tuple(layer.folded),
                )
            )
        return sorted(found, key=lambda one: (-one.alone, -one.local, one.depth))

    def _exact_values(self, layers: Sequence[GraphLayer]) -> list[dict[str, Any]]:
        """What these layers give where nothing is lowered, by name, for each set."""
        names = list(dict.fromkeys(value for layer in layers for value in self.model.local[layer.name]))
        return [dict(zip(names, self.model.run(feed, (), names), strict=True)) for feed in self.feeds]

    def _lower_alone(self, name: str, own: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """What one layer costs alone: of its own values and of the outputs, the worst of the sets."""
        local, alone, cosine, kl, top1 = 0.0, 0.0, 1.0, -1.0, -1.0
        values = self.model.local[name]
        wanted = list(dict.fromkeys((*self.model.outputs, *values)))
        for feed, exact, known in zip(self.feeds, self._exact, own, strict=True):
            found = dict(zip(wanted, self.model.run(feed, [name], wanted), strict=True))
            local = max((local, *(relative_error(found[value], known[value]) for value in values)))
            for output, other in zip(self.model.outputs, exact, strict=True):
                one = found[output]
                alone = max(alone, relative_error(one, other))
                cosine = min(cosine, _cosine(one, other))
                if "logit" in output and other.ndim > 1:
                    kl = max(kl, _divergence(one, other))
                    agree = float((one.argmax(-1) == other.argmax(-1)).mean())
                    top1 = agree if top1 < 0 else min(top1, agree)
        self._known[frozenset([name])] = alone
        return {"local": local, "alone": alone, "cosine": cosine, "kl": kl, "top1": top1}

    def smallest_set(self, ranking: Sequence[LayerCost], budget: float, candidates: int) -> tuple[tuple[str, ...], int]:
        """The layers to keep so that the outputs stay within the budget, and how many sets were asked.

        The first so many of the ranking that suffice are found by halving, and then reduced by ddmin, after which no
        single one can be left out; where `candidates` end that search, these are the fewest that it found.
        """
        names = [one.name for one in ranking]
        asked = 0

        def suffices(kept: Collection[str]) -> bool:
            nonlocal asked
            asked += 1
            return self.error([name for name in self.names if name not in kept]) <= _MARGIN * budget

        low, high = -1, len(names)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if suffices(names[:middle]) else (middle, high)
        if not high:
            return (), asked
        start = tuple(names[:high])
        self.doing(f"reducing a set of {high}")
        found = drive(
            ddmin(start),
            lambda kept: Verdict.YES if suffices(kept) else Verdict.NO,
            start=start,
            limits=SearchLimits(candidates=candidates),
        )
        return found.smallest, asked

    def count_by_sum(self, ranking: Sequence[LayerCost], budget: float) -> int:
        """How many layers one would keep, if errors of single layers added up as independent noise does."""
        rest = [one.alone for one in ranking]
        kept = 0
        while rest and math.hypot(*rest) > _MARGIN * budget:
            rest.pop(0)
            kept += 1
        return kept

    def pairs(self, ranking: Sequence[LayerCost]) -> list[PairCost]:
        """Pairs of the most sensitive layers whose joint error is not the sum of theirs, as of independent noise."""
        found = []
        for first, second in itertools.combinations(ranking[:_MOST_PAIRED], 2):
            together, expected = self.error([first.name, second.name]), math.hypot(first.alone, second.alone)
            ratio = together / max(expected, _SMALLEST)
            if _SMALLEST < expected < LARGEST and not 1 / _TOLD_RATIO < ratio < _TOLD_RATIO:
                found.append(PairCost(first=first.name, second=second.name, together=together, expected=expected))
        return found


def relative_error(found: Any, exact: Any) -> float:
    """The root mean square of the difference over that of the exact values; LARGEST where it is not finite."""
    if found.shape != exact.shape:
        return LARGEST
    wide, other = found.astype(numpy.float64), exact.astype(numpy.float64)
    seen = numpy.isfinite(other)
    if not numpy.isfinite(wide[seen]).all():
        return LARGEST
    noise = float(numpy.sqrt(numpy.square(wide[seen] - other[seen]).sum()))
    signal = float(numpy.sqrt(numpy.square(other[seen]).sum()))
    return noise / signal if signal else (0.0 if not noise else LARGEST)


def _cosine(found: Any, exact: Any) -> float:
    one, other = found.astype(numpy.float64).ravel(), exact.astype(numpy.float64).ravel()
    seen = numpy.isfinite(one) & numpy.isfinite(other)
    size = float(numpy.linalg.norm(one[seen]) * numpy.linalg.norm(other[seen]))
    return float(one[seen] @ other[seen]) / size if size else 1.0


def _divergence(found: Any, exact: Any) -> float:
    """The mean of KL(exact || found) over positions, in nats."""
    one, other = _log_shares(found), _log_shares(exact)
    value = float((numpy.exp(other) * (other - one)).sum(-1).mean())
    return min(max(value, 0.0), LARGEST) if math.isfinite(value) else LARGEST


def _log_shares(logits: Any) -> Any:
    wide = logits.astype(numpy.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - numpy.log(numpy.exp(wide).sum(-1, keepdims=True))
