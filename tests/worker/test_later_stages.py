"""A failure after the export names its stage, its operator, and the submodule and line that it came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.report.wording.cures import export_command
from exportdoctor.report.wording.findings import next_step, why
from exportdoctor.report.wording.scan import verdict
from exportdoctor.worker.translate.onnx_program import translate, warm_up_translation
from exportdoctor.worker.translate.onnx_session import refuse_other_provider
from scanning import scan_file

pytestmark = pytest.mark.slow

TIED = Path(__file__).parents[1] / "support" / "tied_targets.py"

MODEL = """
import torch
from torch import nn

class Spectrum(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x @ x.transpose(-1, -2)).real

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.spectrum = nn.Linear(4, 4), Spectrum()

    def forward(self, x):
        return self.spectrum(self.proj(x))

def build():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(2, 4, 4),)

class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 4))
        self.register_buffer("flat", self.kept.view(-1))

    def forward(self, x):
        self.kept.add_(x)
        return self.flat * 2

def aliased():
    return nn.Sequential(nn.Linear(4, 4), Cache()).eval(), (torch.randn(4, 4),)

class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen.add_(x.mean(0))
        return self.norm(x) + self.seen

def counts():
    return Counts().eval(), (torch.randn(2, 4),)

class Chooses(Counts):
    def forward(self, x):
        y = super().forward(x)
        if y.sum() > 0:
            y = y + 1
        return y

def chooses():
    return Chooses().eval(), (torch.randn(2, 4),)

class Trains(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.norm(x)
        if y.amax() > 0:
            y = y + 1
        return y

def trains():
    return Trains().train(), (torch.arange(12.0).reshape(3, 4),)

def forgets_eval():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.0)), (torch.arange(12.0).reshape(3, 4),)

def drops():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (torch.ones(3, 4),)

class Packs(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 3, batch_first=True)

    def forward(self, x, n):
        packed = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        output, _ = self.rnn(packed)
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])[0]

def packs():
    return Packs().eval(), (torch.randn(2, 4, 4), torch.tensor([4, 2]))

class Routes(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.names = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]), ["a", "b", "c"]

    def forward(self, x, task):
        place = task.item()
        y = self.heads[place](x)
        return y * 2 if self.names[place] == "b" else y

def routes():
    return Routes().eval(), (torch.randn(2, 4), torch.tensor(1))

class Names(nn.Module):
    def forward(self, x):
        return {"hidden": x * 2, "length": x.shape[1], "mode": "mean"}

def names():
    return Names().eval(), (torch.randn(2, 4),), {}, {"x": {1: torch.export.Dim.DYNAMIC}}

def plain():
    return nn.Sequential(nn.Linear(4, 4), nn.GELU()).eval(), (torch.randn(2, 4),)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "spectrum.py"
    path.write_text(MODEL)
    return path


@pytest.mark.long
def test_an_operator_without_translation_is_blamed_on_its_submodule_and_line(model: Path) -> None:
    report = scan_file(model, to="onnx")
    status = {module.fqn: module.status for module in report.parts[0].modules}
    assert status == {"": "fails_child", "proj": "pass", "spectrum": "fails_own"}
    assert report.parts[0].modules[0].stages == {"export": "pass", "translate": "fail"}
    (finding,) = report.findings
    assert (finding.kind, finding.stage, finding.module) == ("translate", "translate", "spectrum")
    assert finding.op == "aten.linalg_eig.default"
    assert "linalg.eigvals" in (finding.source or "")


@pytest.mark.long
def test_a_program_that_does_not_decompose_fails_at_that_stage_in_its_submodule(model: Path) -> None:
    report = scan_file(model, factory="aliased", to="decomposed")
    status = {module.fqn: (module.status, module.stages) for module in report.parts[0].modules}
    fails = {"export": "pass", "decompose": "fail"}
    passes = {"export": "pass", "decompose": "pass"}
    assert status == {"": ("fails_child", fails), "0": ("pass", passes), "1": ("fails_own", fails)}
    (finding,) = report.findings
    assert (finding.stage, finding.module) == ("decompose", "1")
    assert "run_decompositions() fails" in why(finding)


@pytest.mark.long
def test_a_model_that_translates_is_loaded_run_and_compared(model: Path) -> None:
    report = scan_file(model, factory="plain", to="ort", exhaustive=True)
    stages = ("export", "translate", "load", "run", "numbers")
    assert report.parts[0].verdict == "passes"
    assert {module.fqn: tuple(module.stages) for module in report.parts[0].modules} == {
        "": stages,
        "0": stages,
        "1": stages,
    }


@pytest.mark.long
@pytest.mark.parametrize(("factory", "cure", "to"), [("counts", False, "ort"), ("chooses", True, "onnx")])
def test_writes_that_an_onnx_file_loses_are_told(model: Path, factory: str, cure: bool, to: str) -> None:
    """It translated and ran, and export rejected the file."""
    report = scan_file(model, factory=factory, to=to, cure=cure)
    (part,) = report.parts
    assert part.verdict == ("cured" if cure else "passes")
    assert part.lost_writes == ("seen",)
    assert any("it writes into seen, and its ONNX file does not" in note for note in report.notes)
    assert export_command(report.parts[0], report).endswith("--to pt2 -o model.pt2")


@pytest.mark.long
def test_a_file_as_the_scan_asked_for_comes_next(model: Path) -> None:
    report = scan_file(model, factory="plain", to="onnx")
    assert report.parts[0].lost_writes == ()
    assert export_command(report.parts[0], report).endswith("--to onnx -o model.onnx")


@pytest.mark.long
def test_a_submodules_failure_may_be_the_parts_where_that_does_not_get_further(model: Path) -> None:
    """torch.onnx leaves training mode out of a batch norm: the part fails in the same stage, on another message."""
    report = scan_file(model, factory="trains", to="ort", cure=True)
    (finding,) = [one for one in report.findings if one.module == "norm"]
    assert (finding.kind, finding.stage, finding.only_alone) == ("numbers", "numbers", False)
    assert export_command(report.parts[0], report).endswith("--to pt2 -o model.pt2")


@pytest.mark.long
def test_layers_in_training_mode_are_told(model: Path) -> None:
    """Nothing said so where a model's eval() was forgotten, and it exported with batch norm as in training."""
    report = scan_file(model, factory="forgets_eval", to="ort")
    assert any("1 layer is in training mode" in note and "1 (BatchNorm1d)" in note for note in report.notes)
    (finding,) = report.findings
    assert (finding.modules, finding.in_training) == (("1",), ("(BatchNorm1d)",))
    assert next_step(finding).startswith("Call eval() on the model before it is exported")
    assert report.parts[0].modules[0].status == "fails_child"


@pytest.mark.long
def test_numbers_of_a_model_that_draws_are_not_compared_in_onnx_runtime(model: Path) -> None:
    """Each of its two draws was said to differ from the other, as a failure of the dropout."""
    report = scan_file(model, factory="drops", to="ort")
    assert (report.parts[0].verdict, report.findings) == ("passes", ())
    assert any("ONNX Runtime's numbers were not compared: eager draws random numbers" in note for note in report.notes)
    assert "draws other random numbers" in verdict(report.parts[0], 0)
    assert export_command(report.parts[0], report).endswith("--to pt2 -o model.pt2")


@pytest.mark.long
def test_a_cured_model_is_compared_with_eager_outside_of_shims(model: Path) -> None:
    """Under the shim for packed sequences eager raised, which was told as a failure of the exporter."""
    report = scan_file(model, factory="packs", to="ort", cure=True)
    assert report.parts[0].verdict == "cured"
    assert report.parts[0].prescription is not None
    assert report.parts[0].prescription.stages["numbers"] == "pass"


@pytest.mark.long
def test_a_file_is_run_on_what_shims_make_of_the_inputs_and_has_no_guards(model: Path) -> None:
    """`Ran into a kwarg keyword mismatch` was a finding; then a file came next that export rejects, for other tasks."""
    report = scan_file(model, factory="routes", to="ort", cure=True)
    (part,) = report.parts
    assert part.verdict == "cured"
    assert part.prescription is not None
    assert part.prescription.proof is not None
    assert part.prescription.proof.refuses_values
    assert export_command(part, report).endswith("--to pt2 -o model.pt2")


@pytest.mark.long
def test_constants_among_the_outputs_are_no_operators(model: Path) -> None:
    """torch.onnx names an int where sizes are fixed and a str where they are not: it failed when dynamic only."""
    (finding,) = scan_file(model, factory="names", to="onnx").findings
    assert (finding.kind, finding.dimensions) == ("translate", ())
    assert "takes no constants among its outputs" in why(finding)
    assert next_step(finding).startswith("Return tensors alone")


STATES = """
import torch
from torch import nn

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        self.seen += 1
        return x * self.seen

class Exporting(nn.Module):
    def forward(self, x):
        return x * 2 if torch.compiler.is_exporting() else x * 3

def of(module):
    return module, (torch.rand(4, 3),), {}, {"x": {0: torch.export.Dim.DYNAMIC}}

def counting():
    return of(Counting())

def exporting():
    return of(Exporting())
"""


@pytest.mark.long
def test_to_ask_the_program_at_other_sizes_changes_no_buffer_of_the_file(tmp_path: Path) -> None:
    """The file was made of the buffers that these runs had left, and called wrong."""
    (tmp_path / "states.py").write_text(STATES)
    report = scan_file(tmp_path / "states.py", factory="counting", to="ort")
    assert report.findings == ()
    assert report.parts[0].modules[0].stages["numbers"] == "pass"


@pytest.mark.long
def test_where_the_program_itself_is_wrong_no_decomposition_of_torch_onnx_is_blamed(tmp_path: Path) -> None:
    (tmp_path / "states.py").write_text(STATES)
    (finding,) = scan_file(tmp_path / "states.py", factory="exporting", to="ort").findings
    assert finding.stage == "numbers"
    assert "decomposes" not in finding.exception.message


@pytest.mark.long
def test_a_number_that_a_submodule_returns_is_no_failure_of_the_part(tmp_path: Path) -> None:
    """It was a second finding, whose advice would have broken the caller; the part's own cure did not need it."""
    path = tmp_path / "patches.py"
    path.write_text("""
import torch
from torch import nn

class Patches(nn.Module):
    def forward(self, x):
        return x.unfold(1, 2, 2).relu(), 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = Patches()
    def forward(self, x):
        rows, width = self.patches(x)
        return rows.cummax(1).values * width

def build():
    return Net(), (torch.rand(3, 4),)
""")
    report = scan_file(path, to="onnx", cure=True)
    alone = {one.module: (one.only_alone, next_step(one)[:21]) for one in report.findings}
    assert alone["patches"] == (True, "Nothing, for the part")
    assert not alone[""][0]
    assert report.parts[0].verdict == "cured"


@pytest.mark.long
def test_a_dynamic_number_among_the_inputs_is_given_to_onnx_runtime_as_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "repeat.py"
    path.write_text("""
import torch
from torch import nn

class Repeat(nn.Module):
    def forward(self, x, times):
        return x.repeat(times, 1)

def build():
    dynamic = torch.export.Dim.DYNAMIC
    return Repeat(), (torch.rand(3, 4), 3), {}, ({0: dynamic}, dynamic)
""")
    report = scan_file(path, to="ort")
    assert report.findings == ()
    assert report.parts[0].modules[0].stages["numbers"] == "pass"


@pytest.mark.long
def test_a_dynamic_number_among_the_outputs_is_compared_as_the_tensor_that_onnx_makes_of_it(tmp_path: Path) -> None:
    path = tmp_path / "count.py"
    path.write_text("""
import torch
from torch import nn

class Count(nn.Module):
    def forward(self, x, more):
        return x * 2, more + 1, x.shape[0]

def build():
    dynamic = torch.export.Dim.DYNAMIC
    return Count(), (torch.rand(3, 4), 5), {}, ({0: dynamic}, dynamic)
""")
    report = scan_file(path, to="ort")
    assert report.findings == ()
    assert report.parts[0].modules[0].stages["numbers"] == "pass"


def test_a_provider_that_did_not_load_is_no_proof_on_its_device() -> None:
    refuse_other_provider("cpu", ("CPUExecutionProvider",))
    refuse_other_provider("cuda", ("CUDAExecutionProvider", "CPUExecutionProvider"))
    with pytest.raises(
        UsageError, match=r"CUDAExecutionProvider of onnxruntime\S* .*did not load; CPUExecutionProvider did"
    ):
        refuse_other_provider("cuda", ("CPUExecutionProvider",))


@pytest.mark.long
def test_torchs_onnx_library_is_read_once_and_a_function_that_takes_anothers_place_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("onnxscript")
    from onnxscript import FLOAT, opset18
    from onnxscript._internal import ast_utils, values
    from onnxscript.function_libs.torch_lib.registration import default_registry

    def translated() -> list[str]:
        program = torch.export.export(torch.nn.ReLU(), (torch.zeros(2),))
        return [node.op_type for node in translate(program, optimise=False).made.model.graph]

    def fails(*_: object) -> None:
        raise AssertionError("the library is read again")

    def absolute(self):  # type: ignore[no-untyped-def]
        return opset18.Abs(self)

    absolute.__annotations__ = {"self": FLOAT, "return": FLOAT}
    warm_up_translation()
    monkeypatch.setattr(ast_utils, "get_src_and_ast", fails)
    assert translated() == ["Relu"]
    monkeypatch.undo()
    other = values.TracedOnnxFunction(opset18, absolute)
    monkeypatch.setattr(default_registry["aten::relu"], "overloads", [other])
    assert translated() == ["Abs"]


@pytest.mark.long
def test_another_choice_among_equal_values_is_no_difference_of_a_file() -> None:
    report = scan_file(TIED, factory="retrieve", to="ort")
    assert report.findings == ()
    assert report.parts[0].modules[0].stages["numbers"] == "pass"
    assert any("equal in eager" in note for note in report.notes)
    (finding,) = scan_file(TIED, factory="spoilt", to="ort").findings
    assert "aten.amax.default" in why(finding)
