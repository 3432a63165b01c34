"""Rewrites of a finding's own line, tried for real: what works is said to, what computes otherwise is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exportdoctor.core.failure.finding import Finding, TriedRewrite
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.report import Report, TargetRecord
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.cure.try_rewrites import try_rewrites
from exportdoctor.report.canvas import Style
from exportdoctor.report.explanation_page import as_markdown, as_text, finding_blocks
from scanning import scan_file

pytestmark = pytest.mark.slow

HEAD = "import torch\nfrom torch import nn\n\n\n"
GATE = """class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            return self.lin(x)
        return x * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        y = self.gate(x)
        return y[: int(y.sum())] if LATER else y + 1


def build():
    return Model().eval(), (torch.ones(3, 4),)
"""
COUNTER = """class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3, 4))

    def forward(self, x):
        y = x * 3 if self.last is None else x + self.last
        self.last = None
        return y


def build():
    return Counter().eval(), (torch.ones(3, 4),)
"""


def tried_on(path: Path) -> tuple[Finding, tuple[TriedRewrite, ...]]:
    report = scan_file(path)
    finding = report.findings[0]
    target = TargetRef(ref=f"{path}:build", options=BuildOptions())
    return finding, tuple(try_rewrites(finding, target, ScanOptions()))  # in fresh processes, as `explain` does


@pytest.mark.long
@pytest.mark.parametrize("later", [pytest.param(False, marks=pytest.mark.night), True])
def test_a_rewrite_of_the_users_line_exports_and_computes_the_same(tmp_path: Path, later: bool) -> None:
    file = tmp_path / "gate.py"
    file.write_text(f"{HEAD}LATER = {later}\n\n\n{GATE}")
    before = file.read_text()
    finding, (select, cond) = tried_on(file)
    assert (select.result, cond.result) == ("exports", "exports"), (select.note, cond.note)
    assert select.input_sets > 3
    assert select.module == ("gate" if later else ""), "where the part fails elsewhere, the module alone is told of"
    assert "+        return torch.where(x.sum() > 0, self.lin(x), x * 2)\n" in select.diff
    assert file.read_text() == before, "no file of the user's is changed"
    finding = msgspec.structs.replace(finding, rewrites=(select, cond))
    report = Report(target=TargetRecord(ref="x"), findings=(finding,))
    for text in (as_text(finding_blocks(finding, report), Style()), as_markdown(finding_blocks(finding, report))):
        assert "computes the same on" in text
        assert text.index("torch.where(x.sum") < text.index("Compute the condition outside")


@pytest.mark.long
def test_a_rewrite_that_computes_otherwise_is_not_said_to_work(tmp_path: Path) -> None:
    file = tmp_path / "counter.py"
    file.write_text(HEAD + COUNTER)
    finding, tried = tried_on(file)
    assert finding.kind == "attribute_mutation"
    assert [one.title for one in tried] == ["Use a local variable"]
    assert not any(one.works for one in tried), tried


TWO_LINES = """class Step(nn.Module):
    def forward(self, x, before=None):
        if before is None:
            return x * 2
        if before.sum() > 0:
            return before
        return x + before


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = Step()

    def forward(self, x):
        y = self.step(self.step(x), x)
        k = int(y.sum(1).argmax())
        return y[k]


def build():
    return Model().eval(), (torch.ones(3, 4),)
"""


@pytest.mark.long
def test_a_rewrite_that_gets_past_its_line_or_is_never_reached_is_not_called_in_vain(tmp_path: Path) -> None:
    """Story: "Tried in vain: Compute both branches and select: exports"; the module alone exports without it, too."""
    file = tmp_path / "two_lines.py"
    file.write_text(HEAD + TWO_LINES)
    report = scan_file(file)
    target = TargetRef(ref=f"{file}:build", options=BuildOptions())
    said = []
    for finding in report.findings:
        tried = tuple(try_rewrites(finding, target, ScanOptions()))
        said.append([(one.result, one.ended) for one in tried])
        text = as_text(finding_blocks(msgspec.structs.replace(finding, rewrites=tried), report), Style(width=1000))
        assert "in vain" not in text
        assert "None of the rewrites" not in text
        if finding.id == "F1":
            assert "gets past this line. It then fails at two_lines.py:" in text
        else:
            assert "F1 ends the export of the model before this line. It fails at two_lines.py:" in text
    assert said[0][0] == ("fails", "further")
    assert set(said[1]) == {("fails", "before")}


HELD = """class Box:
    def __init__(self, held):
        self.held = held


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.box = Box(lambda x: x * 2 if x.sum() > 0 else x)

    def forward(self, x):
        return self.box.held(x)


def build():
    return Model().eval(), (torch.ones(3, 4),)
"""


@pytest.mark.long
def test_a_rewrite_of_what_the_export_does_not_run_is_not_called_in_vain(tmp_path: Path) -> None:
    """Story: `__init__` was replaced after the module was made, and its old lambda ran."""
    file = tmp_path / "held.py"
    file.write_text(HEAD + HELD)
    finding, tried = tried_on(file)
    assert {one.result for one in tried} == {"not_tried"}
    report = Report(target=TargetRecord(ref="x"))
    text = as_text(finding_blocks(msgspec.structs.replace(finding, rewrites=tried), report), Style(width=1000))
    assert "Could not be tried: the export does not run Model.__init__, which it changes." in text
    assert "in vain" not in text


LATE = """import math


class Rooted(nn.Module):
    def forward(self, x):
        y = x / math.sqrt(x.shape[0])
        return y


class Written(nn.Module):
    def forward(self, x):
        y = x * 2
        y.data.add_(1)
        return y


def rooted():
    return Rooted(), (torch.ones(3, 4),), {}, ({0: torch.export.Dim.DYNAMIC},)


def written():
    return Written(), (torch.ones(3, 4),)


build = CHOSEN
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("factory", "added"), [("rooted", "y = x / (x.shape[0] ** 0.5)"), ("written", "y.detach().add_(1)")]
)
def test_the_line_of_a_failure_that_is_found_after_tracing_is_rewritten(
    tmp_path: Path, factory: str, added: str
) -> None:
    file = tmp_path / "late.py"
    file.write_text(HEAD + LATE.replace("CHOSEN", factory))
    finding, tried = tried_on(file)
    assert finding.file is None
    assert [one.result for one in tried][:1] == ["exports"]
    assert f"+        {added}\n" in tried[0].diff
