"""Inputs that a domain's search is going to try, and what eager gives for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.records.size_domain import SizeCondition
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import run_calls
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

    def ask(self, eager: torch.nn.Module, first: InputSet) -> bool:
        """Run eager; False where it gives nothing but NaN, to which nothing can be compared."""
        try:
            results = run_calls(eager, [self.inputs])
        except Exception as error:
            self.said = f"{type(error).__name__}: {first_line(error, 160)}"
            return True
        self.known = replace(first, title=self.title, kind="sizes", calls=(self.inputs,), results=results, same=False)
        return not any(says_nothing(result.output) for result in results)

    def size_of_answer(self) -> int:
        """Bytes of what eager gave."""
        results = self.known.results if self.known is not None else ()
        return sum(one.numel() * one.element_size() for each in results for one in tensors_in(each.output))
