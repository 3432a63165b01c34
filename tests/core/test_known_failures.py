"""A baseline beside what fails now: each failure of each module is new, fixed or as it was, and none is lost."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.run.known_failures import (
    Baseline,
    KnownFailure,
    compare_with_baseline,
    known_failure,
    looks_of,
    without_fixed,
)
from exportdoctor.core.run.report import PartRecord, Report, TargetRecord
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report.wording.baselines import baseline_lines
from synthetic import ATTENTION

MODULES = ("0", "1", "2")
LOOKS = looks_of(ScanOptions())


def finding(signature: str, guard: str, modules: tuple[str, ...]) -> Finding:
    """A violated dimension, or with an empty guard a failing line, in some modules."""
    frame = Frame(file="/a.py", line=3, function="f", source=guard) if guard else None
    file = None if guard else "/a.py"
    return msgspec.structs.replace(
        ATTENTION,
        part="full",
        signature=signature,
        file=file,
        function=None if guard else "g",
        guard=frame,
        module=modules[0],
        modules=modules,
    )


def report(findings: list[Finding]) -> Report:
    part = PartRecord(name="full", verdict="fails", exporter="export", seconds=1.0)
    return Report(target=TargetRecord(ref="t"), parts=(part,), findings=tuple(findings))


def singles(failures: tuple[KnownFailure, ...]) -> Counter[tuple[str, ...]]:
    """How often each failure is named for each module."""
    return Counter((module, one.signature, one.place, one.source) for one in failures for module in one.modules)


FINDINGS = st.lists(
    st.builds(
        finding,
        st.sampled_from(["one", "other"]),
        st.sampled_from(["", "if h == 6:", "if w == 10:"]),
        st.lists(st.sampled_from(MODULES), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    max_size=4,
)


@given(FINDINGS, FINDINGS)
def test_what_fails_before_and_now_is_told_once_for_each_module(was: list[Finding], now: list[Finding]) -> None:
    known = tuple(map(known_failure, was))
    found = compare_with_baseline((known, LOOKS), report(now), LOOKS)
    olds = singles(tuple(before for before, _ in found.changed))
    news = singles(tuple(after for _, after in found.changed))
    before, after = singles(known), singles(tuple(map(known_failure, now)))
    assert singles(found.same) == before & after
    assert singles(found.fixed) + olds == before - after
    assert singles(found.new) + news == after - before
    assert all(found.breaks(one) != found.knows(one) for one in now)
    left = without_fixed(known, found.fixed)
    assert singles(left) == before - singles(found.fixed)
    assert {one.module for one, _ in found.changed} == {one.module for _, one in found.changed}


@given(FINDINGS)
def test_a_baseline_knows_what_it_was_written_from(now: list[Finding]) -> None:
    baseline = Baseline().replace_check("t", map(known_failure, now), LOOKS)
    again = msgspec.json.decode(msgspec.json.encode(baseline), type=Baseline)
    found = compare_with_baseline(again.of_check("t"), report(now), LOOKS)
    assert not found.broken
    assert not found.fixed


def test_of_two_violated_dimensions_one_may_be_new() -> None:
    height, width = (finding("one", guard, ("",)) for guard in ("if h == 6:", "if w == 10:"))
    found = compare_with_baseline(([known_failure(height)], LOOKS), report([height, width]), LOOKS)
    assert [one.source for one in found.new] == ["if w == 10:"]
    assert [one.source for one in found.same] == ["if h == 6:"]


def test_a_layer_that_is_mended_does_not_make_the_others_new() -> None:
    known = known_failure(finding("one", "", ("0", "1", "2")))
    found = compare_with_baseline(([known], LOOKS), report([finding("one", "", ("1", "2"))]), LOOKS)
    assert not found.broken
    (line, same) = baseline_lines(found, accept="x")
    assert line.startswith("fixed: full: 0, g (a.py)")
    assert same == "1 known failure, as in the baseline"
    more = compare_with_baseline(([known], LOOKS), report([finding("one", "", ("0", "1", "2", "3", "4"))]), LOOKS)
    (line, *_) = baseline_lines(more, accept="x")
    assert line.startswith("new failure: full: 3 and 1 other module, g (a.py)")


def test_a_file_of_an_earlier_version_stands_for_all_modules_of_its_failures() -> None:
    layers = finding("one", "", ("0", "1"))
    of_before = msgspec.structs.replace(known_failure(layers), modules=())
    guarded = finding("other", "if h == 6:", ("2",))
    without_place = msgspec.structs.replace(known_failure(guarded), modules=(), place="", source="")
    old = Baseline(failures={"t": (of_before, without_place)})
    found = compare_with_baseline(old.of_check("t"), report([layers, guarded]), LOOKS)
    assert not found.broken
    assert not found.fixed
    assert len(found.same) == 2
    gone = compare_with_baseline(([of_before], LOOKS), report([]), LOOKS)
    assert [one.modules for one in gone.fixed] == [("0",)]


def test_what_a_scan_did_not_look_for_is_not_fixed() -> None:
    """Without a search for shims a failure behind another one is not met; it is there all the same."""
    hidden = msgspec.structs.replace(finding("other", "", ("1",)), behind="F1")
    first = finding("one", "", ("0",))
    known = tuple(map(known_failure, (first, hidden)))
    less = {
        ScanOptions(cure=False): (first,),
        ScanOptions(search=False): (),
    }
    for options, found_fixed in less.items():
        found = compare_with_baseline((known, LOOKS), report([]), looks_of(options))
        assert found.fixed == tuple(map(known_failure, found_fixed))
        assert singles(found.fixed) + singles(found.unasked) == singles(known)
    other = looks_of(ScanOptions(exporter="torchscript"))
    assert not compare_with_baseline((known, LOOKS), report([]), other).fixed
    assert not compare_with_baseline((known, other), report([]), LOOKS).fixed
    deep = looks_of(ScanOptions(to="onnx", exhaustive=True, slow=3.0))
    assert not compare_with_baseline((known, deep), report([]), LOOKS).fixed
    assert len(compare_with_baseline((known, LOOKS), report([]), deep).fixed) == 2


def test_what_a_baseline_did_not_look_for_is_told_beside_what_is_new() -> None:
    shallow = looks_of(ScanOptions(cure=False))
    found = compare_with_baseline(((), shallow), report([finding("one", "", ("0",))]), LOOKS)
    lines = baseline_lines(found, accept="x")
    assert lines[-1].startswith("the baseline is of a scan without a search for shims: what is new may")
    assert len(baseline_lines(compare_with_baseline(((), shallow), report([]), LOOKS), accept="x")) == 0
