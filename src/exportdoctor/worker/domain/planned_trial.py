"""Inputs that a domain's search is going to try, and what eager gives for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.records.size_domain import SizeCondition
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import run_calls
from exportdoctor.worker.domain.sized_inputs import Place
from exportdoctor.worker.prove.compare_outputs import tensors_in
from exportdoctor.worker.prove.input_set import InputSet, says_nothing


@dataclass(kw_only=True)
class PlannedTrial:
    """A trial to come. `known` is what eager gave, `said` what it raised."""

    title: str
    inputs: Inputs
    refused: SizeCondition | None = None
    known: InputSet | None = None
    said: str = ""
    sizes: Mapping[Place, int] = field(default_factory=dict)

    def ask(self, eager: torch.nn.Module, first: InputSet, others: Iterable[tuple[str, Inputs]] = ()) -> bool:
        """Run eager; False where it gives nothing but NaN, to which nothing can be compared.

        Where eager refuses the inputs, the first of `others` that it takes stand for them: titles with inputs of the
        same sizes.
        """
        for title, inputs in itertools.chain([(self.title, self.inputs)], others):
            try:
                results = run_calls(eager, [inputs])
            except Exception as error:
                self.said = self.said or f"{type(error).__name__}: {first_line(error, 160)}"
                continue
            self.title, self.inputs, self.said = title, inputs, ""
            self.known = replace(first, title=title, kind="sizes", calls=(inputs,), results=results, same=False)
            return not any(says_nothing(result.output) for result in results)
        return True

    def size_of_answer(self) -> int:
        """Bytes of what eager gave."""
        results = self.known.results if self.known is not None else ()
        return sum(one.numel() * one.element_size() for each in results for one in tensors_in(each.output))
