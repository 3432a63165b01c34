"""The verdicts on the nodes of an exported program, as Model Explorer's own package reads both."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from model_explorer.builtin_pytorch_exportedprogram_adapter import BuiltinPytorchExportedProgramAdapter
from model_explorer.config import ModelExplorerConfig
from model_explorer.node_data_builder import GraphNodeData, ModelNodeData, NodeDataResult
from torch import Tensor, nn

from exportdoctor.cli.main import run
from exportdoctor.core.errors import UsageError
from exportdoctor.core.run.report import ModuleRecord, PartRecord, Report, TargetRecord
from exportdoctor.report.model_explorer import render_overlay
from exportdoctor.report.wording import STATUS_WORDS

STATUSES = {"tower": "fails_child", "tower.a": "pass", "tower.b": "fails_own", "tower.b.0": "pass", "tower.b.1": "pass"}


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.a(self.a(x))
        best, places = torch.topk(self.b(x), 2)
        left, _right = torch.split(x, 2, 1)
        return best + left, places


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "tower.pt2"
    torch.export.save(torch.export.export(Tower(), (torch.randn(3, 4),)), path)
    return path


def report(*names: str) -> Report:
    modules = tuple(ModuleRecord(fqn=fqn, class_name="X", status=one) for fqn, one in STATUSES.items())  # type: ignore[arg-type]
    parts = tuple(PartRecord(name=one, verdict="fails", exporter="export", seconds=1, modules=modules) for one in names)
    return Report(run="r", target=TargetRecord(ref="x"), parts=parts)


def test_every_operator_of_the_graph_has_the_verdict_of_its_submodule(program: Path, tmp_path: Path) -> None:
    text = render_overlay(report("default"), program)
    graphs = BuiltinPytorchExportedProgramAdapter().convert(str(program), {"const_element_count_limit": 4})["graphs"]
    nodes = {node.id: node.namespace for node in graphs[0].nodes}
    data = {
        name: GraphNodeData(
            **{**given, "results": {key: NodeDataResult(**one) for key, one in given["results"].items()}}
        )
        for name, given in json.loads(text).items()
    }
    assert [graph.id for graph in graphs] == list(data)
    assert list(json.loads(ModelNodeData(data).to_json_string())) == ["graph"]
    results = data["graph"].results
    operators = {name for name, space in nodes.items() if space and space != "inputs"}
    assert operators <= set(results)
    assert set(results) <= set(nodes)
    assert results["linear"].value == results["linear_1"].value == STATUS_WORDS["pass"]
    assert results["relu"].value == STATUS_WORDS["pass"]
    assert results["topk"].value == STATUS_WORDS["fails_child"]
    file = tmp_path / "verdicts.json"
    file.write_text(text)
    config = ModelExplorerConfig()
    config.add_model_from_path(str(program))
    config.add_node_data_from_path(str(file))
    assert config.has_data_to_encode_in_url()


def test_what_cannot_be_laid_on_is_one_line(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="2 parts"):
        render_overlay(report("text", "vision"), program)
    with pytest.raises(UsageError, match="no part 'x'"):
        render_overlay(report("text", "vision"), program, part="x")
    assert "results" in render_overlay(report("text", "vision"), program, part="text")
    bad = tmp_path / "bad.pt2"
    for content in (b"", b"PK", b"x" * 100):
        bad.write_bytes(content)
        with pytest.raises(UsageError, match="is no program"):
            render_overlay(report("text"), bad)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("models/model.json", '{"graph_module": []}')
    with pytest.raises(UsageError, match="is no program"):
        render_overlay(report("text"), bad)
    with pytest.raises(UsageError, match="cannot be read"):
        render_overlay(report("text"), tmp_path / "absent.pt2")
    assert run(["report", "--format", "model-explorer"]) == 2
    assert "go together" in capsys.readouterr().err


def test_the_program_of_another_model_is_refused(tmp_path: Path) -> None:
    """Its nodes had the verdict of the nearest module, that of the whole model."""
    torch.export.save(
        torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(3, 4),)), tmp_path / "other.pt2"
    )
    with pytest.raises(
        UsageError, match=r"other\.pt2 is no program of part default of r: it has the submodules tower\.0"
    ):
        render_overlay(report("default"), tmp_path / "other.pt2")


def test_a_run_without_parts_says_why_it_has_none(program: Path) -> None:
    report = Report(run="r", target=TargetRecord(ref="m"), complete=False, error="the model is not there")
    with pytest.raises(UsageError, match="r has no parts") as raised:
        render_overlay(report, program)
    assert "the model is not there" in raised.value.hint
