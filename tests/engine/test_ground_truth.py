"""The real 3B at its real size says what was measured of it by hand, row by row. No weights are needed."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from filelock import FileLock

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.core.run.report import FAILING, PartRecord, Report
from scanning import scan_ref

pytestmark = [pytest.mark.slow, pytest.mark.long]

WHOLE_ATTENTION = {7, 15, 23, 31}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Every distinct submodule of the whole model, static, one image of 672 x 672; all processes share one scan."""
    folder = tmp_path_factory.getbasetemp()
    file = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "full.json"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            report = scan_ref("Qwen2.5-VL-3B", parts=("full",), build=BuildOptions(static=True), exhaustive=True)
            file.write_bytes(encode(report))
    return decode(file.read_bytes(), Report)


def statuses(part: PartRecord) -> dict[str, str]:
    return {module.fqn: module.status for module in part.modules if module.status != "not_called"}


def test_the_whole_model_is_there(full: Report) -> None:
    assert full.target.parameters == 3_754_622_976
    assert full.target.weights == "fake"
    assert len(statuses(full.parts[0])) == 837


def test_the_geometry_fails_in_the_towers_own_code(full: Report) -> None:
    found = statuses(full.parts[0])
    assert {name: found[name] for name in ("", "model", "model.visual")} == {
        "": "fails_child",
        "model": "fails_own",  # also: get_rope_index, behind the tower
        "model.visual": "fails_own",
    }


def test_windowed_blocks_fail_through_their_attention_and_the_others_pass(full: Report) -> None:
    found = statuses(full.parts[0])
    for index in range(32):
        block = f"model.visual.blocks.{index}"
        whole = index in WHOLE_ATTENTION
        assert found[block] == ("pass" if whole else "fails_child")
        assert found[f"{block}.attn"] == ("pass" if whole else "fails_own")


def test_nothing_else_fails(full: Report) -> None:
    counted = Counter(status in FAILING for status in statuses(full.parts[0]).values())
    assert counted == {False: 837 - 59, True: 59}


def test_the_findings_name_function_line_and_expression(full: Report) -> None:
    found = {finding.function: finding for finding in full.findings}
    geometry, attention = found["get_vision_window_index"], found["sdpa_attention_forward"]
    assert geometry.module == "model.visual"
    assert geometry.function == "get_vision_window_index"
    assert geometry.file is not None
    assert geometry.file.endswith("transformers/vision_utils.py")
    assert geometry.line == 162
    assert geometry.expression == "int(grid_t)"
    assert geometry.kind == "data_dependent_value"
    assert geometry.exception.type.endswith("GuardOnDataDependentSymNode")
    assert [birth.frame.line for birth in geometry.origins if birth.frame] == [161]
    assert attention.module == "model.visual.blocks.0.attn"
    assert len(attention.modules) == 28
    assert (attention.function, attention.line) == ("sdpa_attention_forward", 159)
    assert "q_length > 1" in (attention.expression or "")
    assert attention.kind == "data_dependent_guard"
    assert attention.op is None
    assert [(b.op, b.frame.source) for b in attention.origins if b.frame] == [
        (
            "aten._local_scalar_dense.default",
            "torch.split(tensor, lengths.tolist(), dim=2) for tensor in (query_states, key_states, value_states)",
        )
    ]


def test_equal_modules_are_asked_once(full: Report) -> None:
    asked = [module for module in full.parts[0].modules if module.evidence == "asked"]
    assert len(asked) <= 45
    assert full.stats.answered_by_equality >= 790


@pytest.mark.parametrize(
    ("ref", "part"),
    [
        pytest.param("Qwen2.5-VL-3B", "text", marks=pytest.mark.night),
        ("Qwen2.5-VL-3B-tiny", "text"),
        ("Qwen2.5-VL-3B-tiny", "decode"),
    ],
)
def test_language_parts_export_with_dynamic_shapes(ref: str, part: str) -> None:
    """Decoding at its full size is part of `make bench`."""
    report = scan_ref(ref, parts=(part,))
    assert report.parts[0].verdict == "passes"
    assert report.parts[0].asked == 1


@pytest.mark.night
def test_the_vision_tower_fails_with_dynamic_shapes_in_the_same_two_places_and_is_cured() -> None:
    """Cured on its small model, with numbers, and confirmed at its full size."""
    report = scan_ref("Qwen2.5-VL-3B", parts=("vision",), cure=True)
    places = {(finding.line, finding.kind) for finding in report.findings}
    assert places >= {(159, "data_dependent_guard"), (162, "data_dependent_value")}
    part = report.parts[0]
    assert part.verdict == "cured"
    assert part.prescription is not None
    assert part.prescription.shims == ("precompute-grid", "block-diagonal-attention")
    assert part.prescription.proof is not None
    assert part.prescription.proof.on == "a small model with random weights"
    moved = [tried for tried in report.findings[0].shims_tried if tried.result == "moved"]
    assert "precompute-grid" in {tried.shim for tried in moved}
    assert {tried.next for tried in moved} == {report.findings[1].id}
    assert "cured" in {tried.result for tried in report.findings[1].shims_tried}
