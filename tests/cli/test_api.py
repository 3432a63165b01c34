"""`exportdoctor.scan` in Python: a module in memory, its report, and what it leaves behind."""

from __future__ import annotations

import inspect
import io
import json
import linecache
import logging
import math
import os
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import exportdoctor
from exportdoctor.cli.main import run
from exportdoctor.core.errors import StoreError, TargetError, UsageError
from exportdoctor.core.run.report import PartRecord, Report, TargetRecord
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report.live.progress import LineProgress, Progress
from exportdoctor.scan_report import ScanReport, progress_here


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.counter = 0

    def forward(self, rows: Tensor, length: Tensor) -> Tensor:
        return self.encoder(rows)[: int(length)]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))


@pytest.mark.slow
def test_a_module_in_memory_is_diagnosed_and_left_as_it_was(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    module = Tower().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    attributes = dict(vars(module))
    report = exportdoctor.scan(module, (torch.randn(5, 4), torch.tensor([3])), cure=False, out=tmp_path / "run")
    assert [finding.function for finding in report.findings] == ["Tower.forward"]
    assert report.findings[0].kind == "data_dependent_value"
    assert report.parts[0].verdict == "fails"
    assert json.loads((tmp_path / "run" / "report.json").read_text())["schema"] == "exportdoctor.report/1"
    assert vars(module) == attributes
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())


@pytest.mark.slow
def test_a_command_that_would_build_a_module_in_memory_says_that_none_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: `'Tower' is not a preset, a folder or a file`, though a run was named."""
    torch.set_num_threads(1)
    inputs = torch.randn(5, 4), torch.tensor([3])
    exportdoctor.scan(Tower().eval(), inputs, cure=False, search=False, out=tmp_path / "run")
    for words in (["repro", str(tmp_path / "run"), "F1"], ["matrix", str(tmp_path / "run")]):
        capsys.readouterr()
        assert run(words) == 2
        said = capsys.readouterr().err
        assert "is of a module in memory (Tower), which cannot be built again" in said
        assert said.count("\n") == 1


@pytest.mark.slow
def test_what_is_logged_in_an_attempt_is_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: lines of torch's loggers came out in the cells of notebooks, whose stderr is no descriptor."""
    cell = io.StringIO()
    monkeypatch.setattr(sys, "stderr", cell)
    handler = logging.StreamHandler(cell)
    logging.getLogger("of_the_model").addHandler(handler)

    class Talking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.compiler.is_exporting():
                logging.getLogger("of_the_model").warning("in the attempt")
            return x[: int(x.sum())]

    try:
        exportdoctor.scan(Talking().eval(), (torch.ones(3),), cure=False, out=tmp_path / "run", progress=False)
    finally:
        logging.getLogger("of_the_model").removeHandler(handler)
    assert "in the attempt" not in cell.getvalue()
    assert any("in the attempt" in log.read_text() for log in (tmp_path / "run" / "logs").iterdir())


@pytest.mark.slow
def test_a_store_that_cannot_be_made_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"The run is kept in .*cannot be created"):
        report = exportdoctor.scan(nn.ReLU(), (torch.ones(2),))
    assert report.parts[0].verdict == "passes"
    with pytest.raises(StoreError, match="cannot be created"):
        exportdoctor.scan(nn.ReLU(), (torch.ones(2),), out=tmp_path / "file" / "run")


@pytest.mark.long
@pytest.mark.slow
def test_a_module_in_memory_is_cured_too(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    module, rows = Tower().eval(), Dim("rows", min=4)
    report = exportdoctor.scan(
        module, (torch.randn(5, 4), torch.tensor([3])), dynamic_shapes=({0: rows}, {}), out=tmp_path / "run"
    )
    part = report.parts[0]
    assert part.verdict == "cured"
    assert part.prescription is not None
    assert part.prescription.soundness == "exact"
    with part.prescription.apply() as call:
        program = call.export()
        args, kwargs = call.convert(((torch.randn(6, 4), torch.tensor([3])), {}))
    assert program.module()(*args, **kwargs).shape == (3, 4)
    assert "Summary: 1 finding" in repr(report)
    assert repr(report.findings[0]).startswith("F1  Tower.forward")
    assert "exportdoctor export" not in str(report)
    assert report.html().startswith("<!doctype html>")
    assert "<table>" in report._repr_html_()
    explained = report.findings[0].explain(rewrites=False)
    assert "#### Why: " in explained._repr_markdown_()
    lost = msgspec.structs.replace(part.prescription)
    with pytest.raises(UsageError, match="no longer knows the module"), lost.apply():
        pass


CELL = """
class Gate(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x * 3
"""


@pytest.mark.long
def test_rewrites_of_a_class_in_a_cell_of_a_notebook_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is no file; its text is where Python's own tracebacks find it."""
    name, space = "/tmp/ipykernel_1/1234.py", {"nn": nn, "__name__": "__main__"}
    monkeypatch.setitem(linecache.cache, name, (len(CELL), None, CELL.splitlines(keepends=True), name))
    exec(compile(CELL, name, "exec"), space)
    report = exportdoctor.scan(space["Gate"](), (torch.ones(3, 4),), cure=False, progress=False)  # type: ignore[operator]
    explained = report.findings[0].explain()._repr_markdown_()
    assert "torch.where(x.sum() > 0, x + 1, x * 3)" in explained
    assert explained.count("Tried: with this change the model exports, and computes the same on ") == 2


def test_names_are_text_in_a_notebook_too() -> None:
    name = "<img src=x onerror=alert(1)>"
    part = PartRecord(name=name, verdict="fails", exporter="export", seconds=1, title=name)
    report = Report(target=TargetRecord(ref=name, in_memory=True), parts=(part,), notes=(name,), run="r")
    shown = ScanReport.of(report, None, ScanOptions(), Path("absent"))  # type: ignore[arg-type]
    assert "<img" not in shown._repr_html_()
    assert "<img" not in shown.html()
    assert name in shown.text(width=200)


def test_progress_is_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with progress_here(shown=None) as display:
        assert type(display) is Progress
    with progress_here(shown=True) as display:
        assert isinstance(display, LineProgress)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with progress_here(shown=None) as display:
        assert isinstance(display, LineProgress)
    with progress_here(shown=False) as display:
        assert type(display) is Progress


def test_completion_offers_what_there_is() -> None:
    assert dir(exportdoctor) == ["scan"]
    assert "exhaustive" in inspect.signature(exportdoctor.scan).parameters


@pytest.mark.slow
def test_bad_input_is_told_in_one_line() -> None:
    with pytest.raises(UsageError, match="no exporter 'onnx'"):
        exportdoctor.scan(Tower(), (torch.randn(5, 4), torch.tensor([3])), exporter="onnx")  # type: ignore[arg-type]
    for limit in ("timeout", "memory_mb", "build_timeout", "build_memory_mb"):
        with pytest.raises(UsageError, match=f"{limit}=nan"):
            exportdoctor.scan(Tower(), (), **{limit: math.nan})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=f"{limit}='x' is no limit"):
            exportdoctor.scan(Tower(), (), **{limit: "x"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"'mine\.py' is no list"):
        exportdoctor.scan(Tower(), (), shims="mine.py")
    with pytest.raises(UsageError, match="The keyword arguments are a list"):
        exportdoctor.scan(Tower(), (), [1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="The arguments are a Tensor"):
        exportdoctor.scan(Tower(), torch.randn(5, 4))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Tower is a class"):
        exportdoctor.scan(Tower, (torch.randn(5, 4),))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="What is to be exported is a function"):
        exportdoctor.scan(lambda x: x, ())  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="eager forward"):
        exportdoctor.scan(Tower(), (torch.randn(5, 9), torch.tensor([3])))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's device that is always full")
def test_where_the_disk_refuses_the_report_is_returned_all_the_same(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    run = tmp_path / "run"
    run.mkdir()
    (run / "events.jsonl").symlink_to("/dev/full")
    with pytest.warns(UserWarning, match="could not be kept"):
        report = exportdoctor.scan(nn.Linear(4, 2), (torch.randn(2, 4),), out=run)
    assert report.exports
