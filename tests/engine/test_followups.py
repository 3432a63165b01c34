"""What a scan learns of each failure once it has every verdict: guards, own code, slices, dimensions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.run.events import ModuleJudged, ProbeFinished
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.core.versions import is_in_range
from exportdoctor.report import render
from exportdoctor.report.wording.findings import culprit_line, dimensions, next_step
from scanning import events_of, scan_file

pytestmark = [pytest.mark.slow, pytest.mark.long]

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODELS = Path(__file__).parents[1] / "support" / "followup_models.py"
MENDED = pytest.mark.skipif(
    bool(is_in_range(torch.__version__, ">=2.14")), reason="torch 2.14 exports what is indexed inside torch.vmap"
)


def only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


@pytest.mark.parametrize("exporter", ["export", pytest.param("export-strict", marks=pytest.mark.night)])
@pytest.mark.parametrize(
    ("fixture", "line", "sizes"),
    [
        ("specialised_dynamic_dim", "for step in range(hidden.shape[1]):", ("length",)),
        ("constraint_between_inputs", "return sound + picture", ("samples", "pictures")),
    ],
)
def test_the_line_that_made_a_violated_guard_is_found(
    fixture: str, line: str, sizes: tuple[str, ...], exporter: str
) -> None:
    finding = only(scan_file(FIXTURES / f"{fixture}.py", exporter=exporter))
    assert finding.guard is not None
    assert finding.guard.source == line
    assert (finding.dimensions, finding.dimensions_passing) == (sizes, ())


def test_a_guard_that_fixes_a_size_is_named_before_one_that_bounds_it() -> None:
    finding = only(scan_file(MODELS, factory="sampled"))
    assert finding.guard is not None
    assert finding.guard.source == "count = int(x.shape[1] * 0.5)"
    assert "with whole numbers" in next_step(finding)


def test_the_dimension_that_matters_is_told_by_its_name() -> None:
    finding = only(scan_file(MODELS, factory="window"))
    assert dimensions(finding) == "Fails when `sequence` is dynamic; exports when only `batch` is."


def test_a_failure_behind_a_childs_is_found() -> None:
    report = scan_file(FIXTURES / "child_hides_parent.py")
    told = {(f.module, f.source): f for f in report.findings}
    assert len(told) == 2
    assert told["encoder", "longest = int(lengths.max())"].behind == "F1"


def test_a_failure_of_a_module_by_itself_is_not_behind_itself() -> None:
    """Story: "F2: Masked by F2": the own code of `inner` failed as the module does."""
    report = scan_file(MODELS, factory="boxed")
    assert [(finding.module, finding.modules) for finding in report.findings] == [
        ("", ("",)),
        ("inner", ("inner", "inner.inner")),
    ]
    assert not any(finding.behind for finding in report.findings)


def test_dynamo_traces_through_replaced_children() -> None:
    """In strict mode the encoder's `int()` exports, so that nothing fails once the gate is replaced."""
    events = events_of(f"{FIXTURES / 'child_hides_parent.py'}:build", exporter="export-strict")
    opaque = [event.outcome for event in events if isinstance(event, ProbeFinished) and event.probe.opaque]
    assert [outcome.status for outcome in opaque] == ["passed", "passed"]


def test_children_that_return_nests_views_and_sizes_are_replaced() -> None:
    report = scan_file(MODELS)
    root = report.parts[0].modules[0]
    own = next(finding for finding in report.findings if finding.id == root.finding)
    assert (root.status, root.note, own.source) == ("fails_own", "", "return hidden * int(lengths.max())")
    assert [finding.module for finding in report.findings] == ["nest", ""]
    assert report.findings[0].modules == ("nest", "same", "flat")


def test_a_child_that_writes_into_what_it_is_given_is_kept_and_said() -> None:
    root = scan_file(MODELS, factory="keeper").parts[0].modules[0]
    assert root.status == "fails_child"
    assert "writer: it is given a Store, which it may change" in root.note


def test_sizes_that_depend_on_data_pass_through_a_replaced_child() -> None:
    report = scan_file(MODELS, factory="chooser")
    assert only(report).module == "rows"
    assert report.parts[0].modules[0].status == "fails_child"


@pytest.mark.parametrize(
    ("fixture", "exporter", "culprit", "leads"),
    [
        ("data_dependent_int", "export", "python", ("aten.max.default", "aten.item.default")),
        ("nonzero", "export", "op", ("aten.nonzero.default", "aten.unbind.int")),
        ("nonzero", "export-strict", "python", ("nonzero",)),
        ("boolean_mask", "export", "op", ("aten.index.Tensor", "aten.chunk.default")),
        pytest.param("vmap_over_mask", "export", "op", ("aten.arange.default",), marks=MENDED),
        ("if_tensor", "export", "python", ("aten.gt.Scalar", "aten.item.default")),
    ],
)
def test_the_slice_leads_to_the_culprit(fixture: str, exporter: str, culprit: str, leads: tuple[str, ...]) -> None:
    finding = only(scan_file(FIXTURES / f"{fixture}.py", exporter=exporter))
    assert finding.culprit == culprit
    assert finding.slice is not None
    assert set(leads) <= {node.op for node in finding.slice.nodes}
    assert {finding.slice.nodes[index].op for index in finding.slice.targets} <= set(leads)


@pytest.mark.parametrize("fixture", ["nonzero", pytest.param("boolean_mask", marks=pytest.mark.night)])
@pytest.mark.parametrize("exporter", ["export", "export-strict"])
def test_the_birth_of_a_size_that_depends_on_data_is_known(fixture: str, exporter: str) -> None:
    born = only(scan_file(FIXTURES / f"{fixture}.py", exporter=exporter)).origins
    assert {birth.op for birth in born} == {"aten.nonzero.default"}
    assert all(birth.frame is not None for birth in born)


@pytest.mark.parametrize(
    ("fixture", "culprit"),
    [
        ("higher_order_op", "higher_order_op"),
        ("unregistered_pytree_out", "pytree"),
        ("unsupported_python_strict", "dynamo"),
        ("torchscript_only", "python"),
    ],
)
def test_where_there_is_no_slice_it_is_said(fixture: str, culprit: str) -> None:
    exporter = {"unsupported_python_strict": "export-strict", "torchscript_only": "torchscript"}.get(fixture, "export")
    finding = only(scan_file(FIXTURES / f"{fixture}.py", exporter=exporter))
    assert (finding.culprit, finding.slice) == (culprit, None)
    assert finding.slice_note


def test_a_healthy_model_is_only_compared_with_eager() -> None:
    events = events_of(f"{FIXTURES / 'passing.py'}:build")
    probes = [event.probe for event in events if isinstance(event, ProbeFinished)]
    assert [probe.to for probe in probes] == ["export", "compare"]
    assert not any(probe.variant for probe in probes)


def test_what_passes_at_fixed_sizes_only_says_so_and_why(tmp_path: Path) -> None:
    """Eager refuses every other size, so nothing is known of what is dynamic in the child."""
    path = tmp_path / "table.py"
    path.write_text("""
import torch
from torch import nn

class Kid(nn.Module):
    def forward(self, x):
        return x.reshape(4, -1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.kid = Kid()
        self.table = nn.Parameter(torch.ones(4, 6))

    def forward(self, x):
        return self.kid(x) + self.table

def build():
    return Model().eval(), (torch.randn(4, 6),), {}, {"x": {0: torch.export.Dim("rows", min=2)}}
""")
    report = scan_file(path)
    root, kid = report.parts[0].modules
    assert root.status == "fails_own"
    assert (kid.status, kid.at_fixed_sizes) == ("pass", "there are no inputs of other sizes")
    assert [(one.module, one.only_inside) for one in report.findings] == [("kid", None), ("", None)]
    assert "at fixed sizes" in render(report, "text")


def test_a_run_that_is_cut_off_once_the_root_has_failed_tells_the_line() -> None:
    events = events_of(f"{FIXTURES}/specialised_dynamic_dim.py:build")
    child = next(place for place, one in enumerate(events) if isinstance(one, ModuleJudged) and one.fqns != ("",))
    cut, whole = only(fold(events[:child]).report()), only(fold(events).report())
    assert cut.guard == whole.guard
    assert (cut.id, cut.module, whole.module) == (whole.id, "encoder.recurrence", "encoder.recurrence")


@pytest.mark.parametrize(("caller", "said"), [("parent", "a method of body"), ("forward", "called by body")])
def test_a_method_that_the_parent_calls_is_not_called_by_its_own_module(caller: str, said: str, tmp_path: Path) -> None:
    """Story: a property that only the parent's forward reads was told as called by the submodule."""
    path = tmp_path / f"scale_of_{caller}.py"
    inner, outer = ("x", "self.body(x) * self.body.scale") if caller == "parent" else ("x * self.scale", "self.body(x)")
    path.write_text(f"""
import torch
from torch import nn

class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(3.0))

    @property
    def scale(self):
        return 1.0 / float(self.count)

    def forward(self, x):
        return {inner}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Body()

    def forward(self, x):
        return {outer}

def build():
    return Model().eval(), (torch.randn(3, 4),)
""")
    report = scan_file(path, cure=False)
    told = culprit_line(only(report))
    assert told.startswith("Body.scale (")
    assert told.endswith(f", {said}")
