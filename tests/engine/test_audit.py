"""An equality that is false is found by asking, told as a fault of exportdoctor, and undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from exportdoctor.core.run.report import FAILING, Report
from scanning import scan_file

pytestmark = [pytest.mark.slow, pytest.mark.long]

# nothing that a forward does in eager tells these apart, and a text is not searched for a module's id
_MODEL = """
import torch
from torch import nn

BROKEN = ""

class Layer(nn.Module):
    def forward(self, x):
        if torch.compiler.is_exporting() and str(id(self)) in BROKEN.split():
            return x + 1 if x.sum() > 0 else x
        return x * 2

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(5))
        global BROKEN
        BROKEN = " ".join(str(id(self.layers[index])) for index in (%s))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def build():
    return Model(), (torch.randn(3),)
"""


def scan(folder: Path, broken: str, **how: bool) -> Report:
    (folder / "model.py").write_text(_MODEL % broken)
    return scan_file(folder / "model.py", factory="build", **how)


def statuses(report: Report) -> dict[str, bool]:
    """Whether each layer fails."""
    return {m.fqn: m.status in FAILING for m in report.parts[0].modules if m.fqn.startswith("layers.")}


@pytest.mark.parametrize(("broken", "how"), [("1, 3,", {"exhaustive": True}), ("0, 4,", {})])
def test_an_audit_of_all_members_finds_a_false_equality(tmp_path: Path, broken: str, how: dict[str, bool]) -> None:
    report = scan(tmp_path, broken, audit=True, **how)
    assert statuses(report) == {f"layers.{index}": str(index) in broken for index in range(5)}
    audit = report.parts[0].audit
    assert audit is not None
    assert audit.of == 4
    (fault,) = audit.false_equalities
    assert fault.told_as == "layers.0"
    assert fault.difference in "".join(report.notes)
    assert "A fault of exportdoctor" in fault.difference
    blamed = {fqn for finding in report.findings for fqn in finding.modules}
    assert blamed >= {fqn for fqn, fails in statuses(report).items() if fails}


def test_every_scan_asks_a_few_members(tmp_path: Path) -> None:
    report = scan(tmp_path, "", exhaustive=True)
    audit = report.parts[0].audit
    assert audit is not None
    assert 1 <= audit.asked <= 4
    assert not audit.false_equalities
    assert report.parts[0].asked == 2


def test_a_draw_that_meets_a_false_equality_corrects_all_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.randrange", lambda stop: 5)
    report = scan(tmp_path, "1, 2, 3, 4,", exhaustive=True)
    assert sum(statuses(report).values()) == 4
    audit = report.parts[0].audit
    assert audit is not None
    assert audit.seed == 5
    assert len(audit.false_equalities) == 1


_VARYING = """
def is_early():
    with open(__file__ + ".calls", "a") as file:
        print(file=file)
    return len(open(__file__ + ".calls").readlines()) <= 2
"""


def test_an_answer_that_varies_is_not_called_a_fault_of_ours(tmp_path: Path) -> None:
    text = _MODEL % "0,"  # the first two exports of the first layer fail: inside of the root, and its own
    (tmp_path / "model.py").write_text(
        text.replace("in BROKEN.split():", "in BROKEN.split() and is_early():") + _VARYING
    )
    report = scan_file(tmp_path / "model.py", audit=True, exhaustive=True)
    audit = report.parts[0].audit
    assert audit is not None
    assert not audit.false_equalities
    assert any("layers.0 does not answer alike each time" in note for note in report.notes)


def test_a_hang_is_not_waited_for_again(tmp_path: Path) -> None:
    hanging = (
        (_MODEL % "")
        .replace("str(id(self)) in BROKEN.split()", "time.sleep(999)")
        .replace("import torch", "import time, torch", 1)
    )
    (tmp_path / "model.py").write_text(hanging)
    report = scan_file(tmp_path / "model.py", audit=True, exhaustive=True, timeout=3.0)
    audit = report.parts[0].audit
    assert audit is not None
    assert (audit.asked, audit.of) == (0, 4)
