"""Two runs side by side: only differences are listed, each by name."""

from __future__ import annotations

import msgspec

from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.run.events import FindingMade, RunStarted
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report.comparison import compare_reports, compare_runs, render_comparison
from synthetic import qwen_scan


def report() -> Report:
    return fold(tuple(qwen_scan())).report()


def test_a_run_is_the_same_as_itself() -> None:
    found = compare_reports(report(), report())
    assert found.same
    assert found.findings_same == len(report().findings) > 0
    assert "Same verdicts" in render_comparison(found)


def test_runs_of_two_targets_say_so() -> None:
    """Else the findings of one model are told as gone and those of another as new, as if something had been mended."""
    old = report()
    target = msgspec.structs.replace(old.target, ref="other.py:model", options=("--static",))
    found = compare_reports(old, msgspec.structs.replace(old, target=target))
    assert [(change.what, change.after) for change in found.target] == [
        ("name", "other.py:model"),
        ("options", "--static"),
    ]
    assert f"target  name: {old.target.ref} → other.py:model" in " ".join(render_comparison(found).split("\n"))
    assert not compare_reports(old, old).target


def test_runs_that_asked_for_other_things_say_so() -> None:
    first, *rest = qwen_scan()
    assert isinstance(first, RunStarted)
    options = msgspec.structs.replace(first.options, exporter="torchscript", to="onnx", slow=3.0)
    other = fold((msgspec.structs.replace(first, options=options), *rest))
    found = compare_runs(fold((first, *rest)), other)
    assert [(change.what, change.before, change.after) for change in found.target] == [
        ("exporter", "export", "torchscript"),
        ("to", first.options.to, "onnx"),
        ("slow", "", "3.0"),
    ]
    assert "exporter: export → torchscript" in " ".join(render_comparison(found).split())
    assert not compare_runs(other, other).target


def test_a_finding_that_went_and_a_module_that_passes_now_are_named() -> None:
    old = report()
    part = next(part for part in old.parts if any(m.status == "fails_own" for m in part.modules))
    mended = tuple(msgspec.structs.replace(m, status="pass") for m in part.modules)
    new = msgspec.structs.replace(
        old,
        run="later",
        environment={**old.environment, "torch": "9.9"},
        parts=tuple(
            msgspec.structs.replace(p, modules=mended, verdict="passes") if p is part else p for p in old.parts
        ),
        findings=(),
    )
    found = compare_reports(old, new)
    assert not found.same
    assert len(found.findings_gone) == len(old.findings)
    assert not found.findings_new
    assert {change.after for change in found.modules} == {"pass"}
    text = render_comparison(found)
    assert "9.9" in text
    assert f"fails itself → passes: {sum(m.status == 'fails_own' for m in part.modules)} modules: " in text
    assert "fails_own" not in text
    back = compare_reports(new, old)
    assert back.findings_new == found.findings_gone
    assert len(back.modules) == len(found.modules)


def test_a_part_that_only_one_run_asked_is_told_without_its_modules() -> None:
    old = report()
    new = msgspec.structs.replace(old, parts=old.parts[:-1], findings=())
    found = compare_reports(old, new)
    assert [change.after for change in found.parts if change.what == old.parts[-1].name] == [""]
    assert not any(change.what.startswith(f"{old.parts[-1].name}:") for change in found.modules)


def test_what_a_run_that_was_cut_off_has_not_asked_is_neither_gone_nor_missing() -> None:
    whole = report()
    parts = (*whole.parts[:-1], msgspec.structs.replace(whole.parts[-1], complete=False, modules=()))
    cut = msgspec.structs.replace(whole, run="cut", complete=False, parts=parts[1:], findings=())
    early = msgspec.structs.replace(cut, parts=(), environment={})
    for other in (cut, early):
        for found in (compare_reports(whole, other), compare_reports(other, whole)):
            assert found.unfinished == ("cut",)
            assert not found.same
            assert not found.environment
            named = {part.name for part in other.parts if part.complete}
            assert {change.what for change in found.parts} <= named
            assert {one.partition(":")[0] for one in (*found.findings_gone, *found.findings_new)} <= named
            text = render_comparison(found)
            assert "cut did not come to its end: what it has not asked is not compared." in text
            assert "missing" not in text


def test_a_run_of_one_submodule_is_said_to_be_one_first() -> None:
    old = report()
    name = next(module.fqn for module in old.parts[0].modules if module.status == "fails_own")
    rest = tuple(
        module if module.fqn == name else msgspec.structs.replace(module, status="not_asked")
        for module in old.parts[0].modules
    )
    alone = msgspec.structs.replace(old.parts[0], only=(name,), modules=rest)
    kept = tuple(finding for finding in old.findings if finding.part != alone.name or finding.module == name)
    later = msgspec.structs.replace(old, run="later", parts=(alone, *old.parts[1:]), findings=kept)
    found = compare_reports(old, later)
    assert found.same
    assert len(kept) < len(old.findings)
    assert render_comparison(found).splitlines()[1].startswith(f"One run scanned only {alone.name}: {name}")


def test_a_failure_of_a_function_whose_lines_have_changed_is_in_both_and_not_gone_and_new() -> None:
    old = report()
    first, *others = old.findings
    moved = msgspec.structs.replace(first, signature="1234", line=9_999)
    new = msgspec.structs.replace(old, findings=(moved, *others))
    found = compare_reports(old, new)
    assert (found.findings_gone, found.findings_new, len(found.findings_moved)) == ((), (), 1)
    assert not found.same
    assert ":9999" in render_comparison(found)
    twice = msgspec.structs.replace(moved, id="F9", signature="5678")  # which of the two it became is not known
    unclear = compare_reports(old, msgspec.structs.replace(old, findings=(moved, twice, *others)))
    assert (len(unclear.findings_gone), len(unclear.findings_new), unclear.findings_moved) == (1, 2, ())
    mended = msgspec.structs.replace(moved, source="if mask.any():")  # another branch of that function
    found = compare_reports(old, msgspec.structs.replace(old, findings=(mended, *others)))
    assert (len(found.findings_gone), len(found.findings_new), found.findings_moved) == (1, 1, ())
    elsewhere = {"module": "other", "modules": ("other",)}
    for change in ({"function": "other"}, elsewhere, {"function": None}):
        other = msgspec.structs.replace(moved, **change)
        found = compare_reports(old, msgspec.structs.replace(old, findings=(other, *others)))
        assert (len(found.findings_gone), len(found.findings_new), found.findings_moved) == (1, 1, ())


def test_a_failure_that_is_mended_in_one_of_two_layers_is_gone_there_and_not_new_in_the_other() -> None:
    old = report()
    first, second, *others = old.findings
    fewer = msgspec.structs.replace(second, module=second.modules[1], modules=second.modules[1:])
    found = compare_reports(old, msgspec.structs.replace(old, findings=(first, fewer, *others)))
    (gone,) = found.findings_gone
    assert f"called by {second.modules[0]}: " in gone
    assert (found.findings_new, found.findings_moved, found.findings_same) == ((), (), len(old.findings))
    back = compare_reports(msgspec.structs.replace(old, findings=(first, fewer, *others)), old)
    assert (back.findings_gone, back.findings_new) == ((), (gone,))
    only_first = msgspec.structs.replace(second, modules=second.modules[:1])
    many = compare_reports(old, msgspec.structs.replace(old, findings=(first, only_first, *others)))
    assert f"{second.modules[1]} and {len(second.modules) - 2} other modules: " in many.findings_gone[0]


def test_of_two_violated_dimensions_of_a_module_one_may_be_gone() -> None:
    old = report()
    guards = [Frame(file="/net.py", line=line, function="Net.forward", source=f"if h == {line}:") for line in (6, 8)]
    one, other = (
        msgspec.structs.replace(old.findings[0], id=f"F{i}", function=None, file=None, line=None, guard=guard)
        for i, guard in enumerate(guards)
    )
    both, left = (msgspec.structs.replace(old, findings=findings) for findings in ((one, other), (one,)))
    found = compare_reports(both, left)
    assert ["net.py:8" in text for text in found.findings_gone] == [True]
    assert (found.findings_new, found.findings_same, found.same) == ((), 1, False)


def test_what_the_other_run_did_not_look_for_is_neither_gone_nor_new() -> None:
    first, *rest = qwen_scan()
    assert isinstance(first, RunStarted)
    finding = msgspec.structs.replace(fold((first, *rest)).findings["F2"], behind="F1")
    events = [one for one in rest if not (isinstance(one, FindingMade) and one.finding.id == "F2")]
    uncured = fold((msgspec.structs.replace(first, options=ScanOptions(cure=False)), *events))
    cured = fold((msgspec.structs.replace(first, options=ScanOptions()), *events))
    full = fold((msgspec.structs.replace(first, options=ScanOptions()), *rest, FindingMade(finding=finding)))
    found, back = compare_runs(full, uncured), compare_runs(uncured, full)
    assert (found.findings_gone, back.findings_new) == ((), ())
    assert [change.what for change in found.target] == ["cure"]
    assert len(compare_runs(full, cured).findings_gone) == 1


def test_runs_that_share_no_finding_are_not_said_to_have_none() -> None:
    old = report()
    new = msgspec.structs.replace(old, findings=())
    assert "no findings" not in render_comparison(compare_reports(old, new)).lower()
    assert "no findings in either" in render_comparison(compare_reports(new, new))
