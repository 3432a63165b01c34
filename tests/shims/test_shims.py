"""Records, registry, patterns and pages of the shims. Nothing here imports torch."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from exportdoctor.cli.main import run
from exportdoctor.core.errors import UsageError
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.kinds import KINDS, FailureKind
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, SymbolOrigin
from exportdoctor.engine.cure.catalogue import ShimCatalogue
from exportdoctor.shims import (
    SOUNDNESS,
    Cure,
    FailureView,
    Replacement,
    Shim,
    candidates,
    conflicts_with,
    find,
    find_conflict,
    installed_versions,
    order_shims,
    registry,
    seen_in_failure,
)
from exportdoctor.shims.own import OWN

ROOT = Path(__file__).parents[2]
VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0"}
WINDOW = Frame(
    file="transformers/vision_utils.py",
    line=162,
    function="get_vision_window_index",
    source="grid_t, grid_h, grid_w = int(grid_t), int(grid_h), int(grid_w)",
    user=True,
)
SPLIT = Frame(
    file="transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py",
    line=299,
    function="Qwen2_5_VLVisionAttention.forward",
    source="torch.split(tensor, lengths.tolist(), dim=2) for tensor in (query_states, key_states, value_states)",
    user=True,
)
SIZE = Frame(
    file="transformers/integrations/sdpa_attention.py",
    line=159,
    function="sdpa_attention_forward",
    source="is_causal = q_length > 1 and attention_mask is None and is_causal",
    user=True,
)
ROPE = Frame(file="modeling.py", line=5, function="Model.get_rope_index", source="for row in grid:", user=True)


def failure(*frames: Frame, born: Frame | None = None, message: str = "Could not guard on u0 > 1") -> Failure:
    births = (SymbolOrigin(symbol="u0", frame=born),) if born else ()
    fact = ExceptionFact(type="torch.fx.GuardOnDataDependentSymNode", message=message)
    return Failure(stage="export", exceptions=(fact,), frames=frames, origins=births)


def names(seen: FailureView) -> list[str]:
    return [shim.id for shim in candidates(seen, VERSIONS, shims=OWN)]


def test_importing_and_listing_shims_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from exportdoctor.shims import registry; "
        "[shim.diff() for shim in registry()[:5]]; "
        "sys.exit(', '.join({'torch', 'transformers', 'onnx_diagnostic'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""


def test_ids_are_unique_and_every_record_is_complete() -> None:
    ids = [shim.id for shim in OWN]
    assert len(set(ids)) == len(ids)
    for shim in OWN:
        assert shim.soundness in SOUNDNESS
        assert shim.does
        assert shim.cures
        assert shim.link.startswith("https://")
        assert (shim.soundness in {"precondition", "specialised"}) <= bool(shim.precondition), shim.id


def test_none_of_ours_is_unsound_or_leaves_a_custom_op() -> None:
    assert not {shim.soundness for shim in OWN} & {"unsound", "opaque"}


@pytest.mark.parametrize("shim", registry(), ids=lambda shim: shim.id)
def test_the_kinds_that_a_pattern_names_exist(shim: Shim) -> None:
    assert {kind for cure in shim.cures for kind in cure.kinds} <= set(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("shim", OWN, ids=lambda shim: shim.id)
def test_its_diff_is_a_unified_diff(shim: Shim) -> None:
    if shim.fits(installed_versions()) is not None:
        pytest.skip("made for other versions: what it replaces may not be installed")
    old, new, place, *lines = shim.diff().splitlines()
    assert (old[:4], new[:4], place[:2]) == ("--- ", "+++ ", "@@")
    assert any(line.startswith(("+", "-")) and not line.startswith(("+++", "---")) for line in lines)


@pytest.mark.slow
def test_a_diff_says_where_nothing_that_is_replaced_is_installed() -> None:
    gone = Replacement(target="transformers.vision_utils:get_vision_nothing", by="nowhere:nothing")
    assert replace(OWN[0], id="gone", replaces=(gone,)).diff() == "--- nothing that gone replaces is installed here\n"


_GENERAL = frozenset({"strict", "defer-asserts", "branches-as-example", "frozen-values", "static-dim"})
"""They may cure whatever code asks for a value."""


@pytest.mark.parametrize(
    ("frames", "born", "first"),
    [
        ((WINDOW,), WINDOW, "precompute-grid"),
        ((SPLIT, SIZE), SPLIT, "block-diagonal-attention"),
        ((ROPE,), ROPE, "precompute-position-ids"),
    ],
)
def test_the_cure_of_each_link_of_the_chain_is_a_candidate(frames: tuple[Frame, ...], born: Frame, first: str) -> None:
    seen = seen_in_failure(failure(*frames, born=born), kind=FailureKind.DATA_DEPENDENT_GUARD)
    found = names(seen)
    assert first in found
    specific = [name for name in found if name not in _GENERAL]
    assert len(specific) <= 7, specific


def test_candidates_come_soundest_first() -> None:
    found = candidates(seen_in_failure(failure(SPLIT), kind=FailureKind.DATA_DEPENDENT_GUARD), VERSIONS)
    ranks = [SOUNDNESS.index(shim.soundness) for shim in found]
    assert ranks == sorted(ranks)


def test_a_trace_of_values_is_specialised_whatever_the_shims_are() -> None:
    def soundness(exporter: str) -> str:
        return ShimCatalogue(shims=OWN, versions=VERSIONS, axes={}, allow=(), exporter=exporter).soundness(
            ("mask-without-vmap",)
        )

    assert [soundness(exporter) for exporter in EXPORTERS] == ["exact", "exact", "specialised"]


def test_an_unsound_shim_is_a_candidate_only_where_it_is_allowed() -> None:
    silent = replace(OWN[0], id="silent", soundness="unsound", cures=(Cure(),))
    seen = FailureView(kind=FailureKind.DATA_DEPENDENT_GUARD)
    assert candidates(seen, VERSIONS, shims=(silent,)) == ()
    assert candidates(seen, VERSIONS, shims=(silent,), allow=("unsound",)) == (silent,)


@pytest.mark.parametrize("change", [{"kinds": ("vmap",)}, {"message": "nowhere"}, {"where": "nowhere"},
                                    {"exporters": ("torchscript",)}, {"guard": "nowhere"}])  # fmt: skip
def test_a_pattern_matches_only_with_everything_it_asks_for(change: dict[str, object]) -> None:
    guarded = msgspec.structs.replace(failure(SPLIT), guard=SIZE)
    seen = seen_in_failure(guarded, kind=FailureKind.DATA_DEPENDENT_GUARD)
    whole = Cure(
        kinds=("data_dependent_guard",), message="u0 > 1", where="cu_seqlens|lengths", exporters=("export",),
        guard="q_length",
    )  # fmt: skip
    assert whole.matches(seen)
    assert not replace(whole, **change).matches(seen)  # type: ignore[arg-type]


def test_a_shim_says_why_it_does_not_fit() -> None:
    shim = find("precompute-grid-methods")
    assert shim.fits(VERSIONS) == "made for transformers >=4.53,<5.20, found 5.23.0"
    assert shim.fits({**VERSIONS, "transformers": "4.57.1"}) is None
    assert shim.fits({"torch": "2.13.0"}) == "transformers is not installed"


def test_a_definition_that_is_gone_upstream_is_a_reason() -> None:
    shim = replace(OWN[0], wants=("transformers.vision_utils:get_vision_nothing",))
    assert shim.fits(VERSIONS) == "the installed transformers has no get_vision_nothing in vision_utils"
    assert replace(shim, wants=("transformers.vision_utils:get_vision_window_index",)).fits(VERSIONS) is None


def test_an_unknown_id_is_told_with_ids_that_come_near() -> None:
    with pytest.raises(UsageError) as caught:
        find("block-diagonal")
    assert "block-diagonal-attention" in caught.value.hint


def test_one_axis_can_be_frozen_by_name() -> None:
    shim = find("static-dim:patches", axes={"patches": ("hidden_states[0]",)})
    assert (shim.id, shim.soundness) == ("static-dim:patches", "specialised")
    with pytest.raises(UsageError):
        find("static-dim:batch", axes={"patches": ("hidden_states[0]",)})


def test_input_changes_come_before_patches_and_one_name_stands_for_a_family() -> None:
    ordered = order_shims([find("block-diagonal-attention"), find("precompute-position-ids"), find("precompute-grid")])
    assert [shim.id for shim in ordered] == ["precompute-grid", "precompute-position-ids", "block-diagonal-attention"]
    assert conflicts_with(find("block-diagonal-attention"), "hf.chunked-vision-attention:VisionAttention.forward")


def test_two_shims_that_conflict_are_found_also_by_their_ids() -> None:
    strict, non_strict, static = find("strict"), find("non-strict"), find("no-grad")
    assert find_conflict([static, strict, non_strict]) == ("strict", "non-strict")
    assert find_conflict([static, find("auto-dims")], ["static-dim:batch"]) == ("auto-dims", "static-dim:batch")
    assert find_conflict([static, static]) == ("no-grad", "no-grad")
    assert find_conflict([static, strict]) is None


def test_the_page_in_docs_is_the_one_that_the_records_make() -> None:
    writer = runpy.run_path(str(ROOT / "tools" / "write_shims.py"))
    page = (ROOT / "docs" / "shims.md").read_text(encoding="utf-8")
    assert page == writer["document"](), "make it again: python tools/write_shims.py > docs/shims.md"


def test_every_entry_of_the_exporters_of_transformers_is_a_shim_of_its_own() -> None:
    found = [shim for shim in registry() if shim.provider == "transformers.exporters"]
    assert len(found) > 80
    assert {"hf.inputs.grid-thw-vision-inputs", "hf.onnx.masked-scatter", "hf.cache-pytrees"} <= {s.id for s in found}
    assert {shim.id for shim in found if shim.soundness == "unsound"} == {"hf.onnx.fix-assertion", "hf.onnx.for-export"}


@pytest.mark.parametrize(
    ("operator", "line", "replaces"),
    [
        ("aten.cummax", "", {"cummax:torch.cummax", "cummax:Tensor.cummax"}),
        ("aten._fft_c2r", "", {"irfft"}),
        ("aten._fused_rms_norm", "", {"rms-norm-forward"}),
        ("aten._scaled_dot_product_flash_attention", "", {"sdpa:functional.scaled_dot_product_attention"}),
        ("aten.sort", "", {"fix-sort-stable"}),
        ("prims.erf_inv", "", set()),
        ("prims.erf_inv", "net.py:forward: return torch.erfinv(x).roll(1)", {"roll"}),
    ],
)
def test_where_an_operator_has_no_translation_only_what_replaces_it_is_tried(
    operator: str, line: str, replaces: set[str]
) -> None:
    message = f"DispatchError: No ONNX function found for <OpOverload(op='{operator}', overload='default')>."
    seen = FailureView(kind=FailureKind.TRANSLATE, messages=(message,), lines=(line,) if line else ())
    found = {shim.id.removeprefix("hf.onnx.") for shim in registry() if shim.may_cure(seen) and "hf.onnx" in shim.id}
    of_transformers = {"byte-group-hash", "broadcast-mask-expansion"}
    assert found - of_transformers == replaces
    other = FailureView(kind=FailureKind.TRANSLATE, messages=("ValueError: Cannot view a tensor",))
    assert sum("hf.onnx" in shim.id for shim in registry() if shim.may_cure(other)) > 40


def test_the_list_names_provider_soundness_and_the_reason_of_a_misfit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shims", "list", "--provider", "own"]) == 0
    out = capsys.readouterr().out
    assert all(shim.id in out for shim in OWN)
    assert "precompute-grid-methods" in out
    assert "does not fit: made for transformers >=4.53,<5.20" in out


def test_the_list_can_be_narrowed_and_read_by_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shims", "list", "--provider", "own", "--fitting", "--json"]) == 0
    rows = msgspec.json.decode(capsys.readouterr().out)
    assert {row["provider"] for row in rows} == {"own"}
    assert all(row["fits"] and row["reason"] is None for row in rows)


def test_one_shim_is_shown_with_its_diff(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shims", "show", "sdpa-without-size-check"]) == 0
    out = capsys.readouterr().out
    assert "exact: same values, same inputs, all shapes" in out
    assert "+    is_causal = attention_mask is None and is_causal and" in out


def test_an_unknown_shim_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shims", "show", "block-diagonal"]) == 2
    assert "Did you mean 'block-diagonal-attention'" in capsys.readouterr().err
