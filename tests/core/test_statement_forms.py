"""The examples of a finding are those for the form of its statement, which its syntax shows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.statement_forms import statement_form
from exportdoctor.report.explanation_page import explanation_of
from synthetic import ATTENTION

FORMS = {
    "while order.numel() > 0:": "while",
    "if not self.ready:": "reads_state",
    "elif self.count.item() > 3:": "reads_state",
    "if bool(self.seen[0]):": "reads_state",
    "if self.head(self.table) > 3:": "",
    "if self.ready and x.sum() > 0:": "",
    "if x.sum() > 0:": "",
    "n = int(x.sum())": "",
    "assert self.ready": "",
    "": "",
    "if (": "",
}


@pytest.mark.parametrize("source", FORMS)
def test_a_line_shows_its_form(source: str) -> None:
    finding = msgspec.structs.replace(ATTENTION, source=source, file="/nowhere/model.py", line=1)
    assert statement_form(finding) == FORMS[source]


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ("self.seen.add_(1)", "writes_state"),
        ("self.seen[0] = 1", "writes_state"),
        ("self.seen += 1", "writes_state"),
        ("self.table.rows = x", "writes_state"),
        ("x.add_(1)", ""),
        ("x = self.seen.add(1)", ""),
        ("self.seen.__len__()", ""),
    ],
)
def test_a_body_that_writes_the_module_is_seen_in_its_file(body: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(f"def forward(self, x):\n    if x.sum() > 0:\n        {body}\n    return x\n")
    finding = msgspec.structs.replace(ATTENTION, source="if x.sum() > 0:", file=str(path), line=2)
    assert statement_form(finding) == form
    path.write_text("\n" + path.read_text())  # edited since
    assert statement_form(finding) == ""


def test_examples_are_no_rewrites_that_were_tried_and_fit_the_statement() -> None:
    guard = msgspec.structs.replace(ATTENTION, kind=FailureKind.DATA_DEPENDENT_GUARD, rewrites=(), file=None)
    told = {
        source: [block.text for block in explanation_of(msgspec.structs.replace(guard, source=source))]
        for source in ("while x.sum() > 0:", "if x.sum() > 0:", "if not self.ready:")
    }
    for texts in told.values():
        assert "Examples (data_dependent_guard)" in texts
        assert not any("Rewrites that work" in text for text in texts)
    loop, branch, flag = told.values()
    assert any(text.startswith("Run the loop as torch.while_loop") for text in loop)
    assert any(text.startswith("Keep what the condition reads") for text in flag)
    assert "Keep the loop in the graph with torch.while_loop" in loop
    assert "Compute both branches and select" in branch
    assert not set(loop) & {"Compute both branches and select", "Keep both branches in the graph with torch.cond"}
    assert [text for text in flag if text.startswith("Keep the flag")]
    assert not [text for text in branch if "while_loop" in text or text.startswith("Keep the flag")]
