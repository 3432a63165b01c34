"""The variant that exports and is shown beside a script differs from it in what matters alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.repro.candidates.closest_variant import draw_near

FAILING = """\
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        x.detach().numpy()
        return x
torch.export.export(Model(), (torch.ones(1),))"""


def test_changes_that_are_not_needed_are_taken_back() -> None:
    passing = FAILING.replace(".numpy()", ".sin()").replace("ones(1)", "ones(1, 1, 1)")
    assert draw_near(FAILING, passing, lambda one: ".numpy" not in one) == FAILING.replace(".numpy()", ".sin()")


@pytest.mark.parametrize("line", ["pass", "int()"])
def test_a_variant_that_reads_no_input_is_none(line: str) -> None:
    failing = FAILING.replace("        return x\n", "")
    assert draw_near(failing, failing.replace("x.detach().numpy()", line), lambda one: ".numpy" not in one) is None


@given(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5), min_size=1))
def test_what_is_needed_stays(needed: set[int], changed: set[int]) -> None:
    """The law: it passes, and each change that is left is needed, where each is needed or not by itself."""
    needed &= changed
    before = [f"x = {number}" for number in range(6)]
    after = [f"y = {number}" if number in changed else line for number, line in enumerate(before)]
    spaced, others = ("\n# -\n".join(lines) for lines in (before, after))
    found = draw_near(spaced, others, lambda one: all(f"y = {number}" in one for number in needed))
    assert found is not None
    left = {number for number in range(6) if f"y = {number}" in found}
    assert left == needed or (not needed and len(left) == 1)
