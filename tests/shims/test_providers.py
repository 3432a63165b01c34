"""Shims of other libraries: each is applied alone, says why where it does not apply, and leaves nothing behind."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import exportdoctor.shims as sh
from exportdoctor.engine import shim_entries
from exportdoctor.engine.shim_entries import find_unfit_shims
from exportdoctor.export.shims_module import ModuleHeader, shims_module
from exportdoctor.shims import ExportCall, NotApplicable, Shim, ShimTrouble, call_for_part
from exportdoctor.shims.installed_sources import folder_of
from exportdoctor.shims.leaks import changed_places, snapshot
from exportdoctor.shims.providers import onnx_diagnostic, onnx_diagnostic_patches, transformers_exporters
from exportdoctor.worker.enter_each_shim import find_reason
from parts import main_tensor, part_of

OTHERS = tuple(shim for shim in sh.registry() if shim.provider not in ("own", "user"))
VERSIONS = sh.installed_versions()
NEEDS_ONNX_DIAGNOSTIC = pytest.mark.skipif(
    folder_of("onnx_diagnostic") is None, reason="`make long` runs this with onnx-diagnostic"
)


@pytest.fixture(scope="module")
def call() -> ExportCall:
    return call_for_part(part_of("Qwen2.5-VL-3B-tiny", "vision", weights="random", image_size=(168, 224)))


FITTING = tuple(shim for shim in OTHERS if shim.fits(VERSIONS) is None)


def _enter(shim: Shim, call: ExportCall) -> None:
    with suppress(NotApplicable), sh.apply_shims((shim,), call) as given:
        assert isinstance(given, ExportCall)


@pytest.mark.long
@pytest.mark.slow
def test_shims_that_fit_are_entered_alone_and_leave_nothing_behind(call: ExportCall) -> None:
    fitting = [shim for shim in FITTING if "flex" not in shim.id]  # compiles, which torch counts: asked by night
    for shim in fitting:  # the first time may import modules, which is no change
        _enter(shim, call)
    before = snapshot(call)
    for shim in fitting:
        _enter(shim, call)
    assert changed_places(before, snapshot(call)) == set()


@pytest.mark.night
@pytest.mark.parametrize("shim", FITTING, ids=lambda shim: shim.id)
def test_a_shim_that_fits_is_entered_alone_and_leaves_nothing_behind(shim: Shim, call: ExportCall) -> None:
    _enter(shim, call)
    before = snapshot(call)
    _enter(shim, call)
    assert changed_places(before, snapshot(call)) == set()


@pytest.mark.parametrize("shim", [shim for shim in OTHERS if shim.fits(VERSIONS) is not None], ids=lambda s: s.id)
def test_a_shim_that_does_not_fit_has_a_reason_of_one_line(shim: Shim) -> None:
    reason = shim.fits(VERSIONS)
    assert reason
    assert "\n" not in reason


def test_a_patch_that_the_installed_versions_have_no_place_for_does_not_fit() -> None:
    """Also where the class that it names is there: only entering it shows that the method is not."""
    paths = ("DynamicLayer.update", "DynamicLayer.no_such_method")
    there, gone = (
        transformers_exporters._shim(
            transformers_exporters.TransformersEntry(
                registry="register_patch",
                backend="dynamo",
                module="transformers.exporters.exporter_dynamo",
                function="_patch_sliding_window_layer",
                path=f"transformers.cache_utils.{path}",
                summary="",
            ),
            alone=True,
        )
        for path in paths
    )
    assert there.fits(VERSIONS) is None
    assert gone.fits(VERSIONS) is None
    assert "no_such_method" in find_reason(gone)
    found = next(shim for shim in OTHERS if shim.id.startswith("hf.sliding-window-layer"))
    assert find_reason(found) == ""


@pytest.mark.night
def test_what_can_be_entered_is_asked_once_for_each_set_of_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path))
    asked = find_unfit_shims()
    assert asked.keys() <= {shim.id for shim in FITTING}
    monkeypatch.setattr(shim_entries, "run_module", None)
    assert find_unfit_shims() == asked


@pytest.mark.slow
def test_patches_of_a_release_without_a_function_that_imports_paths_are_entered_too(
    call: ExportCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("transformers.exporters.exporter_dynamo")  # this release's own imports it
    monkeypatch.delattr("transformers.exporters.utils.import_dotted_path")
    shim = sh.find("hf.chunked-vision-attention:Qwen2_5_VLVisionAttention.forward")
    assert shim.fits(VERSIONS) is None
    with sh.apply_shims((shim,), call) as given:
        assert given is call


@pytest.mark.long
@pytest.mark.slow
def test_attention_in_equal_chunks_needs_equal_segments(call: ExportCall) -> None:
    """The program that it makes refuses its own example, so an export alone is no cure."""
    name = "hf.chunked-vision-attention:Qwen2_5_VLVisionAttention.forward"
    with sh.apply_shims([sh.find("precompute-grid"), sh.find(name)], call) as given:
        program = sh.export_program(given)
    with pytest.raises(Exception, match=r"assert|Guard|uniform|expected"):
        program.module()(*given.args, **copy.deepcopy(given.kwargs))


@pytest.mark.long
@pytest.mark.slow
def test_the_preparer_of_transformers_serves_as_well_as_ours(call: ExportCall) -> None:
    shims = sh.order_shims([sh.find("hf.inputs.grid-thw-vision-inputs"), sh.find("block-diagonal-attention")])
    assert _difference(call, shims) <= 1e-6


@pytest.mark.slow
@NEEDS_ONNX_DIAGNOSTIC
def test_the_attention_of_onnx_diagnostic_agrees_and_leaves_its_op_in_the_graph(call: ExportCall) -> None:
    shims = sh.order_shims([sh.find("precompute-grid"), sh.find("od.Qwen2_5_VLVisionAttention")])
    with sh.apply_shims(shims, call) as given:
        program = sh.export_program(given)
    assert any("onnx_plug" in str(node.target) for node in program.graph.nodes)
    assert _difference(call, shims) <= 1e-6


@NEEDS_ONNX_DIAGNOSTIC
def test_one_broken_file_of_onnx_diagnostic_costs_only_itself() -> None:
    with pytest.raises(NotApplicable, match="its file can't be loaded"):
        onnx_diagnostic_patches.load("onnx_diagnostic.torch_export_patches.patches._patch_transformers_idefics")
    assert onnx_diagnostic_patches.load(
        "onnx_diagnostic.torch_export_patches.patches._patch_transformers_output_capturing"
    )


@pytest.mark.slow
@NEEDS_ONNX_DIAGNOSTIC
def test_a_branch_on_a_tensor_is_rewritten_as_cond_by_onnx_diagnostic() -> None:
    from branching import Branching

    call = ExportCall(module=Branching(), args=(torch.randn(3),))
    with pytest.raises(Exception, match="data-dependent"):
        sh.export_program(call)
    with sh.apply_shims([sh.find("od.rewrite-control-flow")], call) as given:
        program = sh.export_program(given)
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(program.module()(x), call.module(x))


@pytest.mark.slow
@NEEDS_ONNX_DIAGNOSTIC
def test_a_shim_of_onnx_diagnostic_works_where_it_was_carried_and_exportdoctor_is_not_there(tmp_path: Path) -> None:
    about = ModuleHeader(title="x", part="default", made_by="exportdoctor export x", versions={})
    (tmp_path / "cure.py").write_text(shims_module([sh.find("od.rewrite-control-flow")], about))
    (tmp_path / "branching.py").write_text((Path(__file__).parents[1] / "support" / "branching.py").read_text())
    use = (
        "import sys; sys.modules['exportdoctor'] = None; import torch, cure, branching; m = branching.Branching(); "
        "p = cure.export(m, (torch.randn(3),)).module(); "
        "assert all(torch.equal(p(x), m(x)) for x in (torch.ones(3), -torch.ones(3)))"
    )
    done = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_without_onnx_diagnostic_its_row_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_diagnostic, "folder_of", lambda _: None)
    (row,) = onnx_diagnostic.shims()
    assert "pip install" in (row.fits(VERSIONS) or "")
    with pytest.raises((NotApplicable, ShimTrouble)), sh.apply_shims([row], ExportCall(module=torch.nn.Identity())):
        pass


def _difference(call: ExportCall, shims: Any) -> float:
    sets = ((call.args, call.kwargs), *call.more_inputs)
    with torch.no_grad(), sh.apply_shims(shims, call) as given:
        program = sh.export_program(given).module()
    found = []
    for inputs in sets:
        args, kwargs = given.convert(inputs)
        with torch.no_grad():
            want = main_tensor(call.module(*inputs[0], **copy.deepcopy(inputs[1])))
            found.append(float((main_tensor(program(*args, **kwargs)) - want).abs().max()))
    return max(found)
