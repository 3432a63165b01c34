"""Drawn module trees: whatever a scan says of a submodule is what a plain export of it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exportdoctor.targets.built import BuiltPart
from exportdoctor.worker.capture.session import capture_part
from module_trees import MOMENTS, STATES, Node, draw_curable, write_forest
from tree_verdicts import broken_cure, built_forest, disagreements, draw, installed, shrunk

BY_DAY, BY_NIGHT = {0: 40, 1: 7, 2: 30, 3: 15}, tuple(range(4, 80))
"""By day so many trees of one to three modules for each seed: plain, with dynamic sizes, plain, and edited; all but
the second in `make long`. By night 26 larger ones for each seed: 2,068 in all.
"""
_SEEDS = [
    *(pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.long]) for seed in BY_DAY),
    *(pytest.param(seed, marks=pytest.mark.night) for seed in BY_NIGHT),
]


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_scan_says_nothing_false_of_drawn_trees(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts, lines, equalities, and answers kept from before an edit."""
    torch.set_num_threads(1)
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    drawn = draw(seed, trees=BY_DAY.get(seed, 26), depth=1 if seed in BY_DAY else 2)
    found = disagreements(drawn, tmp_path / "forest")
    if found:
        least = shrunk(drawn, tmp_path)
        text = write_forest(least.trees, dynamic=least.dynamic).files["forest.py"]
        pytest.fail(f"seed {seed}: {found}\nat its smallest {least}\n{text.partition('KEPT = {}')[2]}")


HELD = [state for state, (_, init, _) in STATES.items() if "flag" in init]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_modules_that_differ_in_what_they_hold_are_never_equal(moment: str, tmp_path: Path) -> None:
    """Also where the forward does not ask for it, and only an export does."""
    trees = tuple(
        Node(state=state, moment=moment, fault="branch", flag=flag) for state in HELD for flag in (False, True)
    )
    with installed(write_forest(trees), tmp_path) as file:
        forest, args = built_forest(file)
    built = BuiltPart(name="p", title="p", module=forest, prefix="", args=args, kwargs={}, dynamic_shapes=None)
    asked = capture_part(built, exporter="export").questions
    pairs = {
        state: (asked[f"trees.{2 * i}"][0].full, asked[f"trees.{2 * i + 1}"][0].full) for i, state in enumerate(HELD)
    }
    assert [state for state, (one, other) in pairs.items() if one == other] == []


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1, marks=pytest.mark.slow),
        *(pytest.param(seed, marks=pytest.mark.night) for seed in (0, *range(2, 80))),
    ],
)
def test_a_cure_holds_on_inputs_that_the_scan_did_not_try(seed: int, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    shims, trouble = broken_cure(draw_curable(seed), tmp_path, dynamic=seed % 2 == 0, seed=seed)
    assert not trouble, f"seed {seed}, {draw_curable(seed)}, {shims}"
