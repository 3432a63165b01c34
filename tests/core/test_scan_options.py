"""The table of scan options: complete, and the one source of the command line, the API and a probe's template."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.cli.verbs.scan import scan
from exportdoctor.core.records.probe import Probe, probe_template
from exportdoctor.core.scan_options import DEFAULTS, OPTIONS, ScanOptions, option_words, result_options

NAMES = st.lists(st.sampled_from(("a", "b.c")), max_size=2, unique=True).map(tuple)


def test_every_option_has_its_row_but_isolation_which_is_found_out() -> None:
    assert {*OPTIONS, "isolation"} == set(DEFAULTS)


def test_every_choice_is_a_default_or_can_be_left_out() -> None:
    assert all(DEFAULTS[name] in (*spec.choices, ()) for name, spec in OPTIONS.items() if spec.choices)


@pytest.mark.slow
@given(
    st.builds(
        ScanOptions,
        exporter=st.sampled_from(OPTIONS["exporter"].choices),
        to=st.sampled_from(OPTIONS["to"].choices),
        exhaustive=st.booleans(),
        cure=st.booleans(),
        search=st.booleans(),
        timeout=st.none() | st.integers(1, 1000).map(float),
        jobs=st.integers(1, 9),
        use_cache=st.booleans(),
        allow=st.sampled_from(((), ("unsound",))),
        modules=NAMES,
    )
)
def test_the_words_of_options_give_the_same_options(options: ScanOptions) -> None:
    from exportdoctor.cli.scan_flags import pop_scan_options

    context = scan.make_context("scan", ["target", *option_words(options)])
    assert ScanOptions(**pop_scan_options(context.params)) == options


def test_limits_and_speed_do_not_change_a_result() -> None:
    slow = ScanOptions(jobs=1, timeout=9.0, memory_mb=5.0, use_cache=False)
    assert result_options(slow) == ScanOptions()
    assert result_options(ScanOptions(exhaustive=True)) != ScanOptions()


def test_options_of_the_export_go_into_the_probe_and_limits_do_not() -> None:
    probe = probe_template("full", ScanOptions(exporter="torchscript", to="ort", timeout=5.0))
    assert probe == Probe(part="full", fqn="", exporter="torchscript", to="ort")


def test_a_probes_id_is_that_of_stored_runs() -> None:
    plain = Probe(part="full", fqn="a.b")
    others = (
        msgspec.structs.replace(plain, watch=(("a", "b"),)),
        msgspec.structs.replace(plain, dynamic=("batch",)),
        msgspec.structs.replace(plain, opaque=True),
    )
    assert [probe.variant for probe in (plain, *others)] == ["", "?a.b", "!dynamic ('batch',)", "!opaque"]
    assert msgspec.structs.replace(plain, timeout=1.0).id == plain.id == "2006cf873e29a509"
