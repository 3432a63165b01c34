"""The table of `numbers`."""

from __future__ import annotations

from exportdoctor.core.protocol.numbers_ladder import LadderResult, LadderStage
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.report.wording.ladder import ladder_cells


def test_the_largest_difference_is_that_of_all_sets_that_were_compared() -> None:
    """Story: "max |Δ| 0" beside a cross, since the sets that do not agree were left out."""
    rows = (
        Agreement(inputs="the example", tolerance=1e-5),
        Agreement(inputs="three times", max_abs=0.4, tolerance=1e-5, trouble="call 2 of 3 differs by 4.0e-01"),
        Agreement(inputs="refused", made_up=True, refused=True, max_abs=9.0),
    )
    stage = LadderStage(name="exported program", before="eager", rows=rows)
    ((mark, _, largest, sets, *_),) = ladder_cells(LadderResult(verdict="differs", stages=(stage,)))
    assert (mark, largest, sets) == ("✗", "4.0e-01", "1 of 2 agree")
