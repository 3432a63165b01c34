"""The atlas of recorded findings: its tables, its page, what changed, and text that attacks them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

import pytest

from exportdoctor.cli.main import run
from exportdoctor.core.codec import decode, pretty
from exportdoctor.core.errors import ExitCode
from exportdoctor.core.failure.finding import ExceptionRecord, Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.run.atlas import Also, Atlas, AtlasCell, AtlasRow, SampleFact
from exportdoctor.core.run.report import (
    ModuleRecord,
    NumbersCheck,
    PartRecord,
    PartVerdict,
    Prescription,
    Proof,
    Report,
    TargetRecord,
)
from exportdoctor.report.atlas.atlas_difference import compare_atlases
from exportdoctor.report.atlas.atlas_markdown import render_markdown
from exportdoctor.report.atlas.atlas_page import render_page
from exportdoctor.report.wording.atlas import atlas_lines
from exportdoctor.sweep.atlas_rows import count_shares, find_causes, identity_of, make_row
from exportdoctor.sweep.target_task import AnswerStatus, RunAnswer, SweepAnswer
from golden_files import assert_golden

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&|`*_\x1b[31m\u202e\n# title"


def _finding(module: str = "layer", **changes: Any) -> Finding:
    told: dict[str, Any] = {
        "id": "1", "part": "text", "module": module, "module_class": "Layer", "own_code": True, "function": "forward",
        "file": f"/x/site-packages/models/{module}.py", "line": 7, "source": "if x.sum() > 0:",
        "kind": FailureKind.DATA_DEPENDENT_GUARD, "op": None, "expression": None, "signature": module,
        "exception": ExceptionRecord(type="Guard", message="Could not guard on data-dependent expression Eq(u0, 1)"),
    }  # fmt: skip
    return Finding(**(told | changes))


def _cell(finding: Finding | None = None, *, model: str = "", **changes: Any) -> AtlasCell:
    told: dict[str, Any] = {"part": "text", "sizes": "static", "stage": "export", "verdict": "passes", "seconds": 1.5}
    if finding is not None:
        told |= {
            "verdict": "fails", "failures": (identity_of(finding, model=model),), "kind": str(finding.kind),
            "exception": finding.exception.message, "place": f"models/{finding.module}.py:7",
            "source": finding.source or "",
        }  # fmt: skip
    return AtlasCell(**(told | {"command": f"exportdoctor scan {model} --static", "memory_mb": 300.0} | changes))


def _atlas(rows: list[AtlasRow], findings: dict[str, list[Finding]], **changes: Any) -> Atlas:
    shares = count_shares(rows, ("static",), "export", of=len(rows))
    told: dict[str, Any] = {
        "at": 1.7e9, "command": "exportdoctor sweep", "environment": {"torch": "2.13.0", "exportdoctor": "1"},
        "rows": tuple(rows), "shares": shares, "causes": find_causes(rows, findings),
    }  # fmt: skip
    return Atlas(**(told | changes))


@pytest.fixture
def atlas() -> Atlas:
    """Two models that one fix unlocks, one that needs two, one that passes, one without a verdict."""
    guard, mask = _finding(), _finding("mask", source="mask[i]", exception=ExceptionRecord(type="E", message="index"))
    rows = [
        AtlasRow(name="a", ref="a", cells=(_cell(guard, model="a"),), seconds=9.5),
        AtlasRow(
            name="b",
            ref="b",
            seconds=130.0,
            cells=(_cell(_finding("other"), model="b", verdict="cured", cure=("s",), soundness="exact"),),
        ),
        AtlasRow(name="c", ref="c", cells=(_cell(guard, model="c"), _cell(mask, model="c", part="vision"))),
        AtlasRow(name="d", ref="d", cells=(_cell(model="d"),), seconds=3000.0, kept=True),
        AtlasRow(
            name="e",
            ref="e",
            cells=(AtlasCell(part="", sizes="static", stage="export", verdict="no_verdict", why="no inputs"),),
        ),
    ]
    found = _atlas(
        rows, {"a": [guard], "b": [_finding("other")], "c": [guard, mask]}, sample=SampleFact(drawn=5, of=9, seed=1)
    )
    earlier = [AtlasRow(name="d", ref="d", cells=(_cell(guard, model="d"),)), rows[0], AtlasRow(name="gone", ref="g")]
    difference = compare_atlases(
        earlier, rows, name="earlier.json", environment=({"torch": "2.12.0"}, {"torch": "2.13.0"})
    )
    return Atlas(**({name: getattr(found, name) for name in found.__struct_fields__} | {"difference": difference}))


def test_the_atlas_reads_as_it_did(atlas: Atlas) -> None:
    assert_golden(render_markdown(atlas), "atlas.md")
    assert_golden(render_page(atlas), "atlas.html")


def test_what_the_runs_took_is_of_those_that_were_asked_now(atlas: Atlas) -> None:
    assert (
        "The runs of 2 models took 2 min 20 s together: 70 s in the median, 2 min 10 s at most (b). "
        "A run took up to 300 MiB of memory (b)."
    ) in atlas_lines(atlas)


def test_the_difference_comes_before_everything_else(atlas: Atlas) -> None:
    for text in (render_markdown(atlas), render_page(atlas)):
        assert text.index("Since earlier") < text.index("Stages") < text.index("Root causes")
    assert atlas.difference is not None
    assert [change.what for change in atlas.difference.cells] == ["d text static export"]
    assert (atlas.difference.models_gone, atlas.difference.same) == (("gone",), 1)


def test_causes_are_ranked_by_what_one_fix_unlocks(atlas: Atlas) -> None:
    first, second = atlas.causes
    assert (first.models, first.unlocks, first.cures) == (("a", "b", "c"), ("a", "b"), {"s": 1})
    assert (second.models, second.unlocks) == (("c",), ())


def test_shares_count_all_and_those_tried(atlas: Atlas) -> None:
    assert [(one.of, one.tried, one.as_is, one.with_shims) for one in atlas.shares] == [(5, 4, 1, 2), (5, 0, 0, 0)]


def test_failures_of_two_models_are_one_only_if_line_and_message_are() -> None:
    one = identity_of(_finding("a"), model="a")
    assert identity_of(_finding("b", file="/y/b.py", line=90, module_class="B"), model="b") == one
    message = ExceptionRecord(type="Guard", message="Could not guard on data-dependent expression u0 < 4")
    for other in (_finding(source="if y.any():"), _finding(kind=FailureKind.CRASH), _finding(exception=message)):
        assert identity_of(other, model="a") != one


def test_sizes_and_symbols_in_a_quoted_shape_are_one_cause() -> None:
    def cause(message: str) -> str:
        return identity_of(_finding(exception=ExceptionRecord(type="RuntimeError", message=message)), model="a")

    said = "Cannot view a tensor with shape torch.Size({}) and strides ({}) as a tensor with shape ({})!"
    fixed = said.format([2, 13, 8, 64], "6656, 64, 832, 1", "2, 13, 512")
    dynamic = said.format("[s47, s87, 8, 64]", "512*s87, 64, 64*s87, 1", "s47, s87, 512")
    assert cause(fixed) == cause(dynamic)
    assert cause("Could not guard on Eq(u0, 1)") != cause("Could not guard on Eq(u0, u1)")


@pytest.mark.parametrize("kind", [FailureKind.CRASH, FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY])
def test_processes_that_died_are_never_alike_in_two_models(kind: FailureKind) -> None:
    assert identity_of(_finding(kind=kind), model="a") != identity_of(_finding(kind=kind), model="b")


def test_the_file_reads_back_as_it_was(atlas: Atlas) -> None:
    assert decode(pretty(atlas), Atlas) == atlas


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))


def test_hostile_names_stay_text() -> None:
    finding = _finding(HOSTILE, source=HOSTILE, exception=ExceptionRecord(type=HOSTILE, message=HOSTILE))
    cell = _cell(finding, model=HOSTILE, part=HOSTILE, why=HOSTILE, cure=(HOSTILE,), soundness=HOSTILE)
    rows = [AtlasRow(name=HOSTILE, ref=HOSTILE, cells=(cell,))]
    difference = compare_atlases([], rows, name=HOSTILE, environment=({HOSTILE: "1"}, {HOSTILE: HOSTILE}))
    atlas = _atlas(rows, {HOSTILE: [finding]}, difference=difference, command=HOSTILE)
    page, seen = render_page(atlas), _Page()
    seen.feed(page)
    assert sum(tag == "script" for tag, _ in seen.tags) == 1
    assert not [tag for tag, attrs in seen.tags if tag == "img" or any(name.startswith("on") for name, _ in attrs)]
    assert not [name for _, attrs in seen.tags for name, _ in attrs if name in ("src", "href")]
    for text in (page, render_markdown(atlas)):
        assert not {"\x1b", "\u202e"} & set(text)
    assert "<img" not in render_markdown(atlas).replace("\\<img", "")
    assert "\n# title" not in render_markdown(atlas)


@pytest.mark.parametrize(
    ("verdict", "stages", "told"),
    [
        ("passes", {"export": "pass", "translate": "pass"}, "passes not_asked passes not_asked"),
        ("passes", {"export": "pass", "translate": "pass", "numbers": "pass"}, "passes passes passes not_asked"),
        (
            "passes",
            {"export": "pass", "translate": "pass", "load": "pass", "run": "pass", "numbers": "pass"},
            "passes passes passes passes",
        ),
        ("fails", {"export": "pass", "numbers": "fail"}, "passes fails not_asked not_asked"),
        ("fails", {"export": "pass", "translate": "fail"}, "passes not_asked fails not_asked"),
        ("cured", {"export": "fail"}, "cured not_asked not_asked not_asked"),
        ("passes", {}, "passes not_asked not_asked not_asked"),
    ],
)
def test_only_a_stage_that_ran_passes(tmp_path: Path, verdict: PartVerdict, stages: dict[str, str], told: str) -> None:
    root = ModuleRecord(fqn="model.visual", class_name="Net", status="pass", stages=stages)
    ends: dict[str, Literal["agrees", "differs"]] = {"pass": "agrees", "fail": "differs"}
    numbers = NumbersCheck(verdict=ends[stages["numbers"]]) if "numbers" in stages else None
    part = PartRecord(name="p", verdict=verdict, exporter="export", seconds=1.0, modules=(root,), numbers=numbers)
    report = Report(target=TargetRecord(ref="m.py:build"), parts=(part,))
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "report.json").write_bytes(pretty(report))
    asked = RunAnswer(sizes="static", status=AnswerStatus.ANSWERED, seconds=3.5)
    answer = SweepAnswer(name="m", ref="m.py:build", key="", at=0.0, timeout=1.0, memory_mb=1.0, runs=(asked,))
    row, _ = make_row(answer, tmp_path, to="ort", ref="m.py:build", words=("--no-cure",))
    assert row.seconds == 3.5
    assert " ".join(cell.verdict for cell in row.cells) == told


@pytest.mark.parametrize(
    ("verdict", "stages", "with_shims", "told"),
    [
        ("cured", {"export": "fail"}, {"export": "pass", "translate": "pass"}, "cured cured cured not_asked"),
        ("fails", {"export": "fail"}, {"export": "pass", "translate": "fail"}, "cured cured fails not_asked"),
        ("cured", {"export": "pass", "translate": "fail"}, {}, "passes cured cured not_asked"),
        ("cured", {"export": "pass", "translate": "fail"}, {"export": "pass", "translate": "pass", "load": "pass",
                                                            "run": "pass"}, "passes cured cured cured"),
        ("fails", {"export": "pass", "translate": "fail"}, {"export": "pass", "translate": "pass", "load": "fail"},
         "passes cured cured fails"),
    ],
)  # fmt: skip
def test_a_stage_behind_what_shims_cure_says_how_it_ended_with_them(
    tmp_path: Path, verdict: PartVerdict, stages: dict[str, str], with_shims: dict[str, str], told: str
) -> None:
    root = ModuleRecord(fqn="", class_name="Net", status="fails_own", stages=stages)
    proof = Proof(inputs_tried=3, max_abs_diff=1e-7, stage="run")
    found = Prescription(shims=("a", "b"), soundness="exact", proof=proof, stages=with_shims)
    part = PartRecord(
        name="p", verdict=verdict, exporter="export", seconds=1.0, modules=(root,), prescription=found
    )  # fmt: skip
    failing = next((stage for stage, how in stages.items() if how == "fail"), "export")
    report = Report(target=TargetRecord(ref="m"), parts=(part,), findings=(_finding("a", stage=failing),))
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "report.json").write_bytes(pretty(report))
    asked = RunAnswer(sizes="static", status=AnswerStatus.ANSWERED)
    answer = SweepAnswer(name="m", ref="m", key="", at=0.0, timeout=1.0, memory_mb=1.0, runs=(asked,))
    row, _ = make_row(answer, tmp_path, to="ort", ref="m", words=())
    assert " ".join(cell.verdict for cell in row.cells) == told
    assert {cell.cure for cell in row.cells if cell.verdict == "cured"} == {("a", "b")}


def test_shims_whose_program_was_not_compared_with_eager_cure_nothing(tmp_path: Path) -> None:
    """As the run's own report says: it gets further."""
    root = ModuleRecord(fqn="", class_name="Net", status="fails_own", stages={"export": "fail"})
    found = Prescription(
        shims=("a",),
        soundness="exact",
        proof=Proof(inputs_tried=0, max_abs_diff=None, stage="export"),
        stages={"export": "pass", "translate": "pass"},
    )
    part = PartRecord(
        name="p", verdict="fails", exporter="export", seconds=1.0, modules=(root,), prescription=found
    )  # fmt: skip
    report = Report(target=TargetRecord(ref="m"), parts=(part,), findings=(_finding("a", stage="export"),))
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "report.json").write_bytes(pretty(report))
    asked = RunAnswer(sizes="static", status=AnswerStatus.ANSWERED)
    answer = SweepAnswer(name="m", ref="m", key="", at=0.0, timeout=1.0, memory_mb=1.0, runs=(asked,))
    row, _ = make_row(answer, tmp_path, to="onnx", ref="m", words=())
    assert [(cell.stage, cell.verdict, cell.cure) for cell in row.cells] == [
        ("export", "fails", ()),
        ("numbers", "not_asked", ()),
        ("onnx", "not_asked", ()),
    ]


def test_strict_and_decomposed_have_columns_and_commands_of_their_own(tmp_path: Path) -> None:
    def report(folder: str, verdict: PartVerdict, stages: dict[str, str], *findings: Finding) -> None:
        root = ModuleRecord(fqn="", class_name="Net", status="pass", stages=stages)
        part = PartRecord(name="text", verdict=verdict, exporter="export", seconds=1.0, modules=(root,))
        (tmp_path / folder).mkdir()
        found = Report(target=TargetRecord(ref="m"), parts=(part,), findings=findings)
        (tmp_path / folder / "report.json").write_bytes(pretty(found))

    strict, decomposed = _finding(stage="export"), _finding("mask", stage="decompose")
    report("static", "passes", {"export": "pass", "translate": "pass"})
    report("static-strict", "fails", {"export": "fail"}, strict)
    report("static-decomposed", "fails", {"export": "pass", "decompose": "fail"}, decomposed)
    asked: tuple[Also, ...] = ("", "strict", "decomposed")
    runs = tuple(RunAnswer(sizes="static", also=also, status=AnswerStatus.ANSWERED) for also in asked)
    answer = SweepAnswer(name="m", ref="m", key="", at=0.0, timeout=1.0, memory_mb=1.0, runs=runs)
    words = ("--exporter", "export", "--to", "onnx", "--no-cure")
    row, found = make_row(answer, tmp_path, to="onnx", ref="m", words=words)
    told = {
        cell.stage: (cell.verdict, cell.command.removeprefix("exportdoctor scan m --static ")) for cell in row.cells
    }
    assert told == {
        "export": ("passes", "--exporter export --to onnx --no-cure"),
        "numbers": ("not_asked", "--exporter export --to onnx --no-cure"),
        "onnx": ("passes", "--exporter export --to onnx --no-cure"),
        "strict": ("fails", "--no-cure --exporter export-strict"),
        "decomposed": ("fails", "--exporter export --no-cure --to decomposed"),
    }  # fmt: skip
    shares = count_shares([row], ("static",), "onnx", of=1, also=("strict", "decomposed"))
    assert [(one.stage, one.tried, one.as_is) for one in shares[-2:]] == [("strict", 1, 0), ("decomposed", 1, 0)]
    atlas = _atlas([row], {"m": found}, shares=shares)
    assert {cause.kind for cause in atlas.causes} == {"data_dependent_guard"}
    assert len(atlas.causes) == 2
    for text in (render_markdown(atlas), render_page(atlas)):
        assert "strict" in text
        assert "decomposed" in text
    before = [AtlasRow(name="m", ref="m", cells=row.cells[:3])]
    changed = compare_atlases(before, [row], name="e", environment=({}, {})).cells
    assert [change.what for change in changed] == ["m text static strict", "m text static decomposed"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--also", "strict", "--exporter", "export-strict"), "--also strict asks what"),
        (("--also", "decomposed", "--to", "decomposed"), "--also decomposed asks what"),
        (("--also", "decomposed", "--exporter", "torchscript"), "makes no program"),
    ],
)
def test_a_column_that_is_there_already_or_cannot_be_is_refused(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "m.py:build", *words]) == ExitCode.USAGE
    assert told in capsys.readouterr().err


def test_a_limit_is_no_verdict_and_notes_hold_for_every_verdict(tmp_path: Path) -> None:
    ended = ExceptionRecord(type="T", message="Killed after 3 s")
    killed = _finding(kind=FailureKind.TIMEOUT, part="p", stage="export", exception=ended)
    root = ModuleRecord(fqn="m", class_name="Net", status="timed_out", stages={"export": "fail"})
    part = PartRecord(name="p", verdict="fails", exporter="export", seconds=1.0, modules=(root,))
    note = "The model was scanned as a small model with random weights, because of this: it is large."
    report = Report(target=TargetRecord(ref="m"), parts=(part,), findings=(killed,), notes=(note,))
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "report.json").write_bytes(pretty(report))
    asked = RunAnswer(sizes="static", status=AnswerStatus.ANSWERED)
    answer = SweepAnswer(name="m", ref="m", key="", at=0.0, timeout=1.0, memory_mb=1.0, runs=(asked,))
    row, found = make_row(answer, tmp_path, to="export", ref="m", words=())
    assert [(cell.verdict, cell.why) for cell in row.cells] == [("no_verdict", "Killed after 3 s"), ("not_asked", "")]
    atlas = _atlas([row], {"m": found})
    assert atlas.causes == ()
    assert atlas.shares[0].tried == 0
    assert note in render_page(atlas)
    assert "small model with random weights" in render_markdown(atlas)


@pytest.mark.parametrize("recording", [pytest.param("qwen", marks=[pytest.mark.slow, pytest.mark.long]), "crash"])
def test_a_run_that_a_limit_ends_says_no_more_than_the_whole_run(tmp_path: Path, recording: str) -> None:
    """Cut off after any event: a verdict is that of the whole run, or the search for shims is what was cut off."""
    journal = Path(__file__).parents[1] / "support" / "tui_recordings" / recording / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    (tmp_path / "static").mkdir()

    def cells(events: int, status: AnswerStatus) -> dict[tuple[str, str, str], AtlasCell]:
        (tmp_path / "static" / "events.jsonl").write_bytes(b"".join(lines[:events]))
        ended = RunAnswer(sizes="static", status=status, why="no end after 3 s")
        answer = SweepAnswer(name="m", ref="m", key="", at=0.0, timeout=3.0, memory_mb=1.0, runs=(ended,))
        row, _ = make_row(answer, tmp_path, to="export", ref="m", words=())
        return {cell.column: cell for cell in row.cells}

    whole = cells(len(lines), AnswerStatus.ANSWERED)
    in_cures = 0
    for events in range(1, len(lines)):
        found = cells(events, AnswerStatus.TIMED_OUT)
        told = any(cell.part == "" and cell.why == "no end after 3 s" for cell in found.values())
        assert told or {cell.part for cell in found.values()} == {cell.part for cell in whole.values()}
        for column, cell in found.items():
            if cell.verdict in ("no_verdict", "not_asked") or column not in whole:
                continue
            searching = cell.verdict == "fails" and cell.cut_off == "no end after 3 s"
            assert cell.verdict == whole[column].verdict or (searching and whole[column].verdict == "cured")
            in_cures += searching and not told
            assert not searching or (cell.why == "" and cell.kind)  # the failure is shown, and not the limit
    assert in_cures
