"""What the module tree must not leave out."""

from __future__ import annotations

from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import fold
from exportdoctor.report import wording
from exportdoctor.report.folded_tree import condense, group_siblings
from synthetic import START, captured, judged, started


def test_a_finding_whose_culprit_passes_alone_keeps_the_row_above_it() -> None:
    """Story: the root failed at a guard of `head`, which exports alone; the tree had only F2, of another child."""
    events = (
        started(),
        captured({"": "Model", "pyramid": "Pyramid", "head": "Linear"}),
        judged("fails_child", "", finding="F1"),
        judged("fails_own", "pyramid", finding="F2"),
        judged("pass", "head"),
    )
    (root,) = condense(group_siblings(fold(events).report().parts[0]))
    assert (wording.row_finding(root), wording.remark(root)) == ("F1", "fails in a child")
    assert [wording.row_finding(child) for child in root.children] == ["F2", ""]


def test_a_finding_that_a_row_below_names_is_not_named_twice() -> None:
    events = (
        started(),
        captured({"": "Model", "pyramid": "Pyramid", "head": "Linear"}),
        judged("fails_child", "", finding="F1"),
        judged("fails_own", "pyramid", finding="F1"),
        judged("pass", "head"),
    )
    pyramid, head = condense(group_siblings(fold(events).report().parts[0]))
    assert (pyramid.names, wording.row_finding(pyramid), head.names) == (("pyramid",), "F1", ("head",))


def test_no_more_modules_are_tried_than_there_are() -> None:
    """Story: a head that three feature maps go through made it `6 modules: 8 tried`."""
    events = (
        started(),
        captured({"": "Model", "head": "Linear"}),
        judged("fails_own", "", finding="F1"),
        judged("pass", "head"),
        ev.PartFinished(at=START, part="full", verdict="fails", exporter="export", seconds=1.0, asked=4),
    )
    assert wording.coverage(fold(events).report().parts[0]) == "2 modules: 2 tried in 4 calls"
