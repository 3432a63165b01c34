"""Inputs that a domain's search is going to try, and what eager gives for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.records.size_domain import SizeCondition
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import run_calls
from exportdoctor.worker.prove.compare_outputs import compare_outputs, tensors_in
from exportdoctor.worker.prove.input_set import InputSet, says_nothing

_FILLINGS = (1e3, -3.0, 0.25)
_SIZES, _BLOCKS = tuple(2**power for power in range(2, 17)), 16


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

    def is_unsteady(self, eager: torch.nn.Module) -> bool:
        """Whether eager's answer depends on what other memory holds: an operator reads beyond its inputs, say.

        It is called again with freed memory full of one number and of another one, so that its first answer is not
        needed: shims may be applied.
        """
        answers = []
        for number in _FILLINGS:
            held = _fill_freed_memory(number)
            try:
                answers.append(tensors_in(run_calls(eager, [self.inputs])[0].output))
            except Exception:
                return False
            finally:
                del held
        return not all(compare_outputs("", one, answers[0]).holds for one in answers[1:])

    def size_of_answer(self) -> int:
        """Bytes of what eager gave."""
        results = self.known.results if self.known is not None else ()
        return sum(one.numel() * one.element_size() for each in results for one in tensors_in(each.output))


def _fill_freed_memory(number: float) -> list[torch.Tensor]:
    """Blocks of many sizes with this number, of which every second one has been freed again; they are to be held."""
    blocks = [torch.full((size,), number) for size in _SIZES for _ in range(_BLOCKS)]
    return blocks[::2]
