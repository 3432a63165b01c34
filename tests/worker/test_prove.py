"""What counts as the same numbers, and on which inputs a cure must give them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from exportdoctor.shims import ExportCall
from exportdoctor.worker.prove.compare_outputs import compare_outputs
from exportdoctor.worker.prove.cure_inputs import cure_inputs


@pytest.mark.parametrize(
    ("answer", "wanted", "holds"),
    [
        (torch.ones(3), torch.ones(3), True),
        (torch.ones(3) + 1e-6, torch.ones(3), True),
        (torch.full((3,), 2e-5), torch.full((3,), 1e-5), False),  # small outputs are not right because they are small
        (torch.zeros(3), torch.full((3,), 1e-7), True),
        (torch.ones(3), torch.ones(3, 1), False),
        (torch.ones(3, dtype=torch.float64), torch.ones(3), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), True),
        (torch.tensor([torch.nan]), torch.tensor([torch.nan]), False),  # nonsense agrees with nonsense
        (torch.tensor([torch.inf]), torch.tensor([torch.inf]), True),
        (torch.tensor([torch.nan]), torch.tensor([1.0]), False),
        (7, 7, True),
        (7, 8, False),
        (7, torch.tensor(7), False),
        (True, 1, False),
    ],
)
def test_leaves_agree_where_shape_dtype_and_numbers_do(answer: Any, wanted: Any, holds: bool) -> None:
    assert compare_outputs("a set", [answer], [wanted]).holds is holds


def test_another_number_of_outputs_is_no_agreement() -> None:
    assert "2 outputs" in compare_outputs("a set", [1, 2], [1]).trouble


class Reads(nn.Module):
    """Takes a padded batch, a flag for each row and a number."""

    def forward(self, input_ids: Any, attention_mask: Any, flags: Any, count: Any) -> Any:
        if int(input_ids.max()) > 9:
            raise IndexError("no such token")
        return (input_ids * attention_mask).sum(1) * flags + count


def test_a_cure_is_asked_for_a_padded_batch_and_for_other_whole_numbers_and_flags() -> None:
    kwargs = {
        "input_ids": torch.tensor([[1, 2, 3, 4, 5, 9]]),
        "attention_mask": torch.ones(1, 6, dtype=torch.int64),
        "flags": torch.tensor([True]),
        "count": torch.tensor(3),
    }
    more = ((), {**kwargs, "input_ids": torch.ones(1, 6, dtype=torch.int64)})
    example, other, padded, made_up = cure_inputs(ExportCall(module=Reads(), kwargs=kwargs, more_inputs=(more,)))
    assert len(example.outputs) == 2
    assert [one.made_up for one in (example, other, padded, made_up)] == [False, False, False, True]
    assert padded.inputs[1]["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]
    assert made_up.inputs[1]["flags"].tolist() == [False]
    assert made_up.inputs[1]["count"].item() == 4
    assert kwargs["count"].item() == 3
