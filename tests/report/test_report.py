"""The reports: golden files, and properties of the tree, the wording and each format."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.explanations import next_step, summary
from exportdoctor.core.failure.finding import ExceptionRecord, Finding, KnownIssueRecord, TriedRewrite
from exportdoctor.core.failure.kinds import KINDS, FailureKind
from exportdoctor.core.records.outcome import Frame, Ground
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import ModuleRecord, PartRecord, Prescription, Report, TargetRecord
from exportdoctor.core.run.run_state import fold
from exportdoctor.report import FORMS, render, wording
from exportdoctor.report.canvas import Style, wrap_words
from exportdoctor.report.explanation_page import as_markdown, as_text, finding_blocks
from exportdoctor.report.folded_tree import Row, condense, group_siblings, label, silent
from exportdoctor.report.wording.formatting import beside_limit
from exportdoctor.report.wording.rewrites import failed_rewrites
from golden_files import assert_golden
from synthetic import (
    AROUND,
    ATTENTION,
    FULL_ATTENTION,
    START,
    WINDOWS,
    answered,
    captured,
    cured_part,
    judged,
    opened,
    passing_scan,
    qwen_scan,
    started,
)

HOSTILE = "<b>`x`|\x1b[31m\u202e\n]]>&\"'"


def qwen() -> Report:
    """The full scan."""
    return fold(tuple(qwen_scan())).report()


def cut_off() -> Report:
    """The full scan, killed in the middle."""
    events = tuple(qwen_scan())
    return fold(events[: len(events) // 2]).report()


def cured() -> Report:
    """The full scan, with what cures it."""
    events = [cured_part() if isinstance(event, ev.PartFinished) else event for event in qwen_scan()]
    return fold(tuple(events)).report()


def crashed() -> Report:
    """A model with one module that kills its process, one that hangs and one that is never called."""
    crash = Finding(
        id="F1",
        part="full",
        module="native",
        module_class="Native",
        own_code=True,
        function=None,
        file=None,
        line=None,
        source=None,
        kind=FailureKind.CRASH,
        op=None,
        expression=None,
        signature="0123456789ab",
        exception=ExceptionRecord(type="SIGSEGV", message="The process died of a segmentation fault."),
        modules=("native",),
        log="logs/3f2a.log",
    )
    events = (
        started(run="20231114-221320-native-build-cc", ref="fixtures/native.py:build"),
        opened(parameters=12_345),
        captured(
            {"": "Model", "native": "Native", "slow": "Slow", "fine": "Linear", "spare": "Spare"}, never=("Spare",)
        ),
        *answered("native"),
        ev.FindingMade(at=START, finding=crash),
        judged("fails_child", ""),
        judged("crashed", "native", finding="F1"),
        judged("timed_out", "slow"),
        judged("pass", "fine"),
        ev.PartFinished(at=START, part="full", verdict="fails", exporter="export", seconds=70.0, asked=4),
        ev.RunFinished(at=START, exit_code=1, seconds=75.0),
    )
    return fold(events).report()


def hostile() -> Report:
    """Names and messages that would steer a terminal, a browser or a table."""
    finding = msgspec.structs.replace(
        WINDOWS, module=HOSTILE, module_class=HOSTILE, function=HOSTILE, file=HOSTILE, source=HOSTILE,
        explanation=HOSTILE, exception=msgspec.structs.replace(WINDOWS.exception, type=HOSTILE, message=HOSTILE),
    )  # fmt: skip
    events = (
        started(ref=HOSTILE),
        opened(environment={"torch": HOSTILE}),
        captured({"": HOSTILE, HOSTILE: HOSTILE, "fine": "Linear"}),
        ev.FindingMade(at=START, finding=finding),
        judged("fails_child", ""),
        judged("fails_own", HOSTILE, finding="F1"),
        judged("pass", "fine"),
        ev.NoteAdded(text=HOSTILE),
    )
    return fold(events).report()


CASES = {"qwen": qwen, "cut-off": cut_off, "cured": cured, "crashed": crashed, "hostile": hostile}
STYLES = {
    "wide": Style(width=120),
    "narrow": Style(width=40),
    "colour": Style(width=100, colour=True),
    "ascii": Style(width=80, ascii=True),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("style", STYLES)
def test_text(case: str, style: str) -> None:
    assert_golden(render(CASES[case](), "text", STYLES[style]), f"{case}.{style}.txt")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["md", "html", "sarif"])
def test_other_formats(case: str, form: str) -> None:
    text = render(CASES[case](), form)
    if form == "html":  # what is the same on every page is left out
        text = re.sub(r"(?s)(<style>|<script>|'sha256-).*?('|</style>|</script>)", r"\1…\2", text)
    assert_golden(text, f"{case}.{form}")


@pytest.mark.parametrize("case", ["crashed", "hostile"])
@pytest.mark.parametrize("form", ["json", "junit"])
def test_formats_with_a_row_for_each_module(case: str, form: str) -> None:
    assert_golden(render(CASES[case](), form), f"{case}.{form}")


def test_a_passing_target_is_one_line() -> None:
    text = render(fold(tuple(passing_scan())).report(), "text", Style(width=120))
    assert_golden(text, "passing.txt")
    assert "exports as is" in text.splitlines()[1]


def test_an_unknown_format_is_told_with_those_that_exist() -> None:
    with pytest.raises(UsageError) as error:
        render(qwen(), "pdf")
    assert all(form in error.value.line() for form in FORMS)


# what must hold for each format


def test_json_is_the_report_that_the_events_fold_to() -> None:
    assert decode(render(qwen(), "json"), Report) == qwen()


@pytest.mark.parametrize("case", CASES)
def test_text_never_steers_the_terminal(case: str) -> None:
    text = render(CASES[case](), "text", Style(width=60))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


@pytest.mark.parametrize("case", ["qwen", "cut-off", "cured", "crashed"])
@pytest.mark.parametrize("width", [40, 57, 80, 200])
def test_text_fits_its_width_and_loses_nothing(case: str, width: int) -> None:
    report = CASES[case]()
    text = render(report, "text", Style(width=width))
    assert max(map(len, text.splitlines())) <= width
    together = re.sub(r"\s+", "", text)
    for finding in report.findings:
        for sentence in (wording.culprit_line(finding), *wording.story(finding, report.run)):
            assert re.sub(r"\s+", "", sentence) in together


def test_text_in_ascii_is_ascii() -> None:
    assert render(qwen(), "text", Style(ascii=True)).isascii()


class _Page(HTMLParser):
    """Notes which tags and which addresses a page has, and that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"href", "src"}]
        if tag not in {"meta", "br", "input", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("case", CASES)
def test_html_is_well_formed_and_needs_nothing_else(case: str) -> None:
    page = _Page()
    text = render(CASES[case](), "html")
    page.feed(text)
    assert not page.open
    assert text.count("<script") == 1
    assert page.seen.isdisjoint({"link", "iframe", "b"})  # a hostile name is a <b>
    known = ("#", "https://github.com/", "https://docs.pytorch.org/", "data:image/")
    assert all(address.startswith(known) for address in page.addresses)


@pytest.mark.parametrize("case", CASES)
def test_junit_counts_what_it_lists(case: str) -> None:
    root = ElementTree.fromstring(render(CASES[case](), "junit"))
    for suite in root.findall("testsuite"):
        cases = suite.findall("testcase")
        assert len(cases) == int(suite.attrib["tests"])
        for tag, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert sum(1 for entry in cases if entry.find(tag) is not None) == int(suite.attrib[attribute])


def test_a_module_with_two_findings_names_both() -> None:
    """As where two dimensions are violated at two lines: they are failures of one attempt."""
    events = [one for one in qwen_scan() if not isinstance(one, ev.RunFinished | ev.PartFinished)]
    extra = msgspec.structs.replace(WINDOWS, id="F9", line=70, source="other = int(x)", function="other")
    told: list[ev.AnyEvent] = [ev.FindingMade(finding=extra), judged("fails_own", "model.visual", finding="F9")]
    report = fold((*events, *told)).report()
    record = next(one for part in report.parts for one in part.modules if one.fqn == "model.visual")
    assert (record.finding, record.also) == ("F1", ("F9",))
    text = render(report, "junit")
    assert "F1, F9" in render(report, "text")
    assert "get_vision_window_index" in text
    assert "other (" in text
    moved = ev.FindingMade(finding=msgspec.structs.replace(WINDOWS, modules=("model.visual.merger",)))
    record = next(
        one for part in fold((*events, *told, moved)).report().parts for one in part.modules if one.fqn == record.fqn
    )
    assert (record.finding, record.also) == ("F9", ())


def test_junit_is_not_green_where_nothing_is_known_to_export() -> None:
    """Story: a scan that was interrupted had modules that fail through a child, or were not tried, and nothing red."""

    def reds(**changed: object) -> list[str]:
        part = PartRecord(name="full", verdict="fails", exporter="export", seconds=1, **changed)  # type: ignore[arg-type]
        report = Report(target=TargetRecord(ref="m"), run="r", parts=(part,), complete=part.complete)
        root = ElementTree.fromstring(render(report, "junit"))
        assert (root.attrib["failures"], root.attrib["errors"]) in {("1", "0"), ("0", "1")}
        return [one.attrib["message"] for tag in ("failure", "error") for one in root.iter(tag)]

    through = ModuleRecord(fqn="", class_name="M", status="fails_child")
    assert reds(modules=(through,)) == ["fails"]
    assert reds(modules=(through,), complete=False) == [
        "This run was cut off. Continue with: exportdoctor scan --resume r"
    ]
    refused = Report(target=TargetRecord(ref="m"), complete=False, error="the model is not there")
    root = ElementTree.fromstring(render(refused, "junit"))
    assert root.attrib["errors"] == "1"
    assert "the model is not there" in root.findall(".//error")[0].attrib["message"]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_format_says_why_a_run_ended_with_an_error_and_none_that_nothing_fails(form: str) -> None:
    refused = Report(run="r", target=TargetRecord(ref="m"), complete=False, error="the model is not there")
    text = render(refused, form)
    assert "the model is not there" in text
    assert "No findings" not in text


def test_sarif_names_no_file_where_the_code_was_given_as_text() -> None:
    """As in a Python that reads from stdin: the name `<stdin>` is no reference to anything."""
    report = qwen()
    findings = [msgspec.structs.replace(one, file="<stdin>", stack=()) for one in report.findings]
    results = json.loads(render(msgspec.structs.replace(report, findings=tuple(findings)), "sarif"))["runs"][0][
        "results"
    ]
    assert results
    assert all("physicalLocation" not in place for one in results for place in one["locations"])


def test_sarif_names_rule_place_and_identity_of_each_finding() -> None:
    run = json.loads(render(qwen(), "sarif"))["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result, finding in zip(run["results"], qwen().findings, strict=True):
        assert rules[result["ruleIndex"]] == result["ruleId"] == finding.kind
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].startswith("file:///")
        assert place["region"]["startLine"] == finding.line
        assert result["partialFingerprints"] == {"exportdoctorSignature/1": finding.signature}


# the tree


def test_the_tree_of_the_whole_model_folds_to_what_matters() -> None:
    (visual, rest) = condense(group_siblings(qwen().parts[0]))
    windowed, attention_blocks, others = visual.children
    assert (visual.names, visual.status, visual.finding) == (("model.visual",), "fails_own", "F1")
    assert (len(windowed.names), windowed.status, windowed.equal) == (28, "fails_child", True)
    assert [int(name.removeprefix("blocks.")) for name in attention_blocks.names] == list(FULL_ATTENTION)
    assert [row.names for row in windowed.children if row.notable] == [("attn",)]
    assert others.status == rest.status == "pass"
    assert rest.names == ("model.language_model", "lm_head")
    assert rest.modules == 473


def counted(rows: tuple[Row, ...]) -> list[str]:
    """The FQN of every module in these rows and below."""
    return [fqn for row in rows for fqn in (*row.fqns, *counted(row.children))]


TREES = st.lists(
    st.lists(st.sampled_from(["a", "b", "0", "1", "2"]), min_size=1, max_size=4).map(".".join),
    unique=True,
    max_size=25,
).map(lambda names: sorted({"", *names}))
STATUSES = st.sampled_from(["pass", "pass", "pass", "fails_own", "fails_child", "not_called", "not_asked", "crashed"])


@st.composite
def parts(draw: st.DrawFn) -> PartRecord:
    """A part with an arbitrary tree and arbitrary verdicts, not always sensible ones."""
    modules = tuple(
        ModuleRecord(
            fqn=fqn,
            class_name=draw(st.sampled_from(["Linear", "Block"])),
            status=draw(STATUSES),  # type: ignore[arg-type]
            finding=draw(st.sampled_from([None, "F1", "F2"])),
            evidence=draw(st.sampled_from(["asked", "equal"])),
        )
        for fqn in draw(TREES)
    )
    return PartRecord(name="p", verdict="fails", exporter="export", seconds=0.0, modules=modules)


@settings(deadline=None)
@given(part=parts())
def test_a_failing_module_is_always_in_sight(part: PartRecord) -> None:
    """Below a group only its first member's tree is drawn; the others look the same, which is why they are a group."""
    groups = group_siblings(part)
    shown = set(counted(condense(groups)))
    for module in part.modules:
        if module.status in {"fails_own", "crashed"} and module.fqn in counted(groups):
            assert module.fqn in shown


@pytest.mark.slow
@settings(deadline=None)
@given(part=parts())
def test_no_module_is_told_twice(part: PartRecord) -> None:
    for rows in (group_siblings(part), condense(group_siblings(part))):
        names = counted(rows)
        assert len(names) == len(set(names))
        assert set(names) <= {module.fqn for module in part.modules}


@pytest.mark.slow
@settings(deadline=None)
@given(part=parts())
def test_modules_are_counted_once_in_the_outermost_rows(part: PartRecord) -> None:
    called = sum(1 for module in part.modules if module.status not in {"not_called", "not_asked"})
    assert sum(row.modules for row in group_siblings(part)) == called


@pytest.mark.slow
@settings(deadline=None)
@given(part=parts())
def test_every_report_can_be_told_in_every_way(part: PartRecord) -> None:
    report = msgspec.structs.replace(qwen_report, parts=(part,))
    for form in FORMS:
        assert render(report, form).endswith("\n")


qwen_report = qwen()


def test_equal_modules_are_called_equal_only_by_evidence() -> None:
    def row(evidence: str) -> Row:
        events = (
            started(),
            captured({"": "Stack", "layers.0": "Layer", "layers.1": "Layer"}),
            judged("fails_own", "layers.0", finding="F1"),
            judged("fails_own", "layers.1", finding="F1", evidence=evidence),
            judged("fails_child", ""),
        )
        return condense(group_siblings(fold(events).report().parts[0]))[0]

    assert wording.row_name(row("equal")) == "layers.0-1  2 identical"
    assert wording.row_name(row("asked")) == "layers.0-1  2 similar"


def test_modules_without_a_verdict_are_told_apart() -> None:
    part = crashed().parts[0]
    assert silent(part, "not_called") == ("spare",)
    assert silent(cut_off().parts[0], "not_asked")[-2:] == ("model.language_model", "lm_head")
    assert not any(name.rpartition(".")[2] == "layers" for name in silent(cut_off().parts[0], "not_called"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("attn",), "attn"),
        (("q", "k", "v"), "q, k, v"),
        (("blocks.0", "blocks.1", "blocks.2"), "blocks.0-2"),
        (("blocks.0", "blocks.2", "blocks.3", "blocks.7"), "blocks.0, 2-3, 7"),
        (("0", "1", "norm"), "0-1, norm"),
        (("a.0", "b.1"), "a.0, b.1"),
        (tuple(f"blocks.{index}" for index in range(0, 40, 2)), "blocks.0, 2, 4, 6, 8, 10, 12, … 13 more"),
    ],
)
def test_names_are_told_in_few_words(names: tuple[str, ...], expected: str) -> None:
    assert label(names) == expected


# words


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0.00 s"), (0.42, "0.42 s"), (8.34, "8.3 s"), (75.2, "75 s"), (725, "12 min 05 s"), (7380, "2 h 03 min")],
)
def test_durations(seconds: float, expected: str) -> None:
    assert wording.duration(seconds) == expected


def test_a_kind_of_a_later_version_has_words_too() -> None:
    assert wording.why(msgspec.structs.replace(ATTENTION, kind=FailureKind("curse")))


@pytest.mark.parametrize(("reason", "message"), [("exit code 7", "without an exception"), ("SIGSEGV", "fault")])
def test_how_a_process_ended_is_said_once(reason: str, message: str) -> None:
    said = wording.kill_message(reason, seconds=1, memory_mb=1, limit_mb=1)
    assert message in said
    assert reason not in said


def test_every_kind_says_why_and_what_next() -> None:
    assert all(summary(kind) and next_step(kind) for kind in KINDS)
    assert len({summary(kind) for kind in KINDS}) == len(KINDS)
    other = KnownIssueRecord(id="a", link="of/another#1", workaround="Drop the shortcut.", elsewhere=True)
    assert wording.next_step(msgspec.structs.replace(ATTENTION, known_issues=(other,))) == next_step(ATTENTION.kind)


@given(text=st.text(), width=st.integers(min_value=10, max_value=60))
def test_wrapping_keeps_every_word_and_the_width(text: str, width: int) -> None:
    lines = wrap_words(text, width=width, later="  ")
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(len(line) <= width for line in lines)


def test_the_synthetic_scan_has_as_many_modules_as_the_real_one() -> None:
    assert sum(1 for kind in AROUND.values() if kind != "ModuleList") == 837


def test_a_finding_that_shows_only_inside_the_root_says_so() -> None:
    assert "fails only inside (root)" in wording.why(msgspec.structs.replace(ATTENTION, only_inside=""))
    assert "only inside" not in wording.why(msgspec.structs.replace(ATTENTION, only_inside=None))


def test_each_dimension_that_alone_shows_a_failure_is_named() -> None:
    told = msgspec.structs.replace(
        ATTENTION, dimensions=("batch",), dimensions_also=(("sequence",),), dimensions_passing=()
    )
    assert wording.dimensions(told) == (
        "Fails when only `batch` is dynamic, and when only `sequence` is dynamic; exports with static shapes."
    )


def test_dimensions_that_the_inputs_do_not_tell_apart_are_named_each_and_said_to_be_such() -> None:
    finding = msgspec.structs.replace(ATTENTION, dimensions=("x[0] or m[1]",), dimensions_passing=())
    assert wording.dimensions(finding) == (
        "Fails when `x[0]` or `m[1]` is dynamic; exports with static shapes. Inputs give those with `or` between them "
        "the same sizes: which it is, is not known."
    )


def test_what_passes_at_fixed_sizes_says_so_with_what_lies_inside() -> None:
    """The root fails; `first` was asked at fixed sizes, and `first.inner` lies inside it."""
    event = captured({"": "Tiny", "first": "Block", "first.inner": "Linear", "second": "Linear"})
    modules = tuple(
        msgspec.structs.replace(fact, at_fixed_sizes="no other sizes" if fact.fqn == "first" else "")
        for fact in event.captured.modules
    )
    event = msgspec.structs.replace(event, captured=msgspec.structs.replace(event.captured, modules=modules))
    verdicts = [
        judged("fails_own", ""),
        judged("pass", "first", "second"),
        judged("pass", "first.inner", evidence="parent"),
    ]
    report = fold((started(), opened(), event, *verdicts)).report()
    fixed = {module.fqn: module.at_fixed_sizes for module in report.parts[0].modules}
    assert fixed == {"": "", "first": "no other sizes", "first.inner": "no other sizes", "second": ""}
    assert "2 pass, asked at fixed sizes only (no other sizes)" in wording.coverage(report.parts[0])
    record = next(module for module in report.parts[0].modules if module.fqn == "first")
    assert wording.evidence(record, record.status).endswith(", at fixed sizes: no other sizes.")
    assert "at fixed sizes" in render(report, "text")


def test_a_proof_that_could_not_see_some_submodules_names_them() -> None:
    report = cured()
    (part,) = report.parts
    assert part.prescription is not None
    assert part.prescription.proof is not None
    ground = Ground(tried=7, unseen=("head.dead", "head.dead.0"), left=3)
    proof = msgspec.structs.replace(part.prescription.proof, ground=ground)
    part = msgspec.structs.replace(part, prescription=msgspec.structs.replace(part.prescription, proof=proof))
    told = " ".join(wording.prescription(part, report))
    assert "2 of 7 submodules and inputs could be disturbed unseen" in told
    assert "head.dead, head.dead.0" in told
    assert "3 more submodules or inputs would show was not tested" in told


@pytest.mark.parametrize("many", [1, 2, 3])
def test_what_a_cured_program_raises_for_refused_inputs_is_told(many: int) -> None:
    report = cured()
    (part,) = report.parts
    assert part.prescription is not None
    assert part.prescription.proof is not None
    why = ("AssertionError: Guard failed: x.size()[0] >= 4", "ValueError: one frame")[:many]
    at = ("2 x 3", "1 x 9")[:many]
    proof = msgspec.structs.replace(
        part.prescription.proof, refused=("2 x 1", *at)[-many:], refused_by=why, refused_at=at
    )
    part = msgspec.structs.replace(part, prescription=msgspec.structs.replace(part.prescription, proof=proof))
    told = next(line for line in wording.prescription(part, report) if "refuses" in line)
    sets = {
        1: f"an input set that eager takes: inputs 2 x 3 ({why[0]})",
        2: f"2 input sets that eager takes: inputs 2 x 3 ({why[0]}); inputs 1 x 9 ({why[-1]})",
        3: f"3 input sets that eager takes: inputs 2 x 3 ({why[0]}); inputs 1 x 9 ({why[-1]}) among them",
    }
    assert told == f"The program refuses {sets[many]}."


def test_a_part_that_needs_a_registration_does_not_export_as_it_is_unsaid() -> None:
    (part,) = fold(tuple(passing_scan())).report().parts
    part = msgspec.structs.replace(part, registered=("DynamicCache",))
    assert wording.verdict(part, 0) == "exports as is, with DynamicCache registered"
    (part,) = cured().parts
    part = msgspec.structs.replace(part, registered=("DynamicCache",))
    assert 'find("register-cache-pytree")' in wording.prescription_code(part)


@pytest.mark.parametrize(
    ("exporter", "shims", "said"),
    [
        ("export", ("a", "b"), " --part text --to pt2"),
        ("export-strict", ("a", "non-strict"), " --part text --shims a --to pt2"),
        ("export-strict", ("non-strict",), " --shims none --to pt2"),
    ],
)
def test_the_command_that_exports_names_what_was_found_with_another_exporter(
    exporter: str, shims: tuple[str, ...], said: str
) -> None:
    found = Prescription(shims=shims, soundness="exact")
    part = PartRecord(name="text", verdict="cured", exporter=exporter, seconds=1, prescription=found)
    assert said in wording.export_command(part, Report(run="r", target=TargetRecord(ref="x"), parts=(part,)))


def test_the_end_counts_a_failure_of_several_parts_once_and_names_the_next_commands() -> None:
    report = cured()
    twin = msgspec.structs.replace(report.findings[0], id="F3", part="text")
    target = msgspec.structs.replace(report.target, weights="random", options=("--weights", "random", "--static"))
    report = msgspec.structs.replace(report, findings=(*report.findings, twin), target=target)
    assert wording.different_findings(report) == "3 findings, 2 different"
    assert [line.partition("; ")[2] for line in wording.summary_lines(report)] == ["also F3 (text)", ""]
    commands = [command for command, _ in wording.next_commands(report)]
    assert commands == [
        "exportdoctor explain F1",
        "exportdoctor repro F1",
        "exportdoctor export Qwen2.5-VL-3B --part full --weights random --static --to pt2 -o full.pt2",
    ]


def test_no_command_is_shown_for_a_run_that_cannot_be_made_again() -> None:
    here = msgspec.structs.replace(cured().target, in_memory=True)
    report = msgspec.structs.replace(cured(), target=here)
    assert not wording.next_commands(report)
    assert "exportdoctor export" not in render(report, "text")
    assert not wording.next_commands(cut_off())


def test_options_are_named_as_the_command_line_takes_them() -> None:
    options = BuildOptions(dtype="float16", image_size=(56, 84), inputs="/a b.py:f", static=True)
    assert options.flags == ("--dtype", "float16", "--image-size", "56x84", "--inputs", "/a b.py:f", "--static")
    assert BuildOptions().flags == ()


def test_rewrites_that_end_alike_are_told_once() -> None:
    vain = TriedRewrite(title="Pass the value in", diff="-a\n+b\n", result="fails", ended="same", note="guards on u0")
    again, other = msgspec.structs.replace(vain, diff="-a\n+c\n"), msgspec.structs.replace(vain, title="Clamp it")
    tried = msgspec.structs.replace(WINDOWS, rewrites=(vain, again, other))
    report = Report(target=TargetRecord(ref="x"), findings=(tried,))
    text, untried = (as_text(finding_blocks(one, report), Style()) for one in (tried, WINDOWS))
    assert text.count("Tried in vain") == 2
    assert "None of the rewrites that were tried" in text
    assert "No rewrite could be applied" not in text
    assert "No rewrite could be applied" in untried


def test_an_explanation_begins_with_the_cure_that_the_scan_found() -> None:
    """Story: the scan exports it with strict, and `explain` said that nothing works."""
    report = cured()
    part = next(part for part in report.parts if part.verdict == "cured")
    finding = next(one for one in report.findings if one.part == part.name)
    text = as_text(finding_blocks(finding, report), Style(width=1000))
    assert f"The scan found shims with which {part.name} exports" in text
    assert text.index("Export it with: exportdoctor export") < text.index("Why: ")


def test_a_failure_that_is_expected_is_called_so() -> None:
    """Story: the class of an exception reads like a bug of torch; most often it is a documented limit."""
    said = "This is a documented limit of torch.export, not a bug in torch."
    replace = msgspec.structs.replace
    assert said in wording.story(WINDOWS)
    assert said not in wording.story(replace(WINDOWS, kind=FailureKind.CRASH))
    assert said not in wording.story(replace(WINDOWS, file=None, kind=FailureKind.DATA_DEPENDENT_GUARD))
    assert said in wording.story(replace(WINDOWS, file=None, kind=FailureKind.DIMS_RELATED))
    kernel = replace(WINDOWS, kind=FailureKind.MISSING_FAKE_KERNEL, op="mylib.smooth.default")
    assert said in wording.story(kernel)
    assert said not in wording.story(replace(kernel, op="aten.smooth.default"))
    shown = as_markdown(finding_blocks(kernel, Report(target=TargetRecord(ref="m"))))
    assert "<https://docs.pytorch.org/docs/stable/export.html#missing-fake-meta-kernels-for-operators>" in shown


def test_what_no_line_of_the_model_raised_is_not_said_to_come_from_its_code() -> None:
    refused = msgspec.structs.replace(
        WINDOWS, kind=FailureKind.PYTHON_ERROR, file=None, line=None, guard=None, value_origin=None, only_inside=None,
        stack=(),
    )  # fmt: skip
    assert "itself, outside of the forward" in wording.why(refused)
    assert "fake tensor" in wording.why(msgspec.structs.replace(refused, file="model.py", line=3))


def test_what_a_layer_of_torch_raises_in_its_forward_is_not_said_to_come_from_outside_of_it() -> None:
    """Story: an LSTM that is given a packed sequence. Its forward has no line of the user's."""
    frame = Frame(file="torch/nn/modules/rnn.py", line=1164, function="LSTM.forward", module="encoder.lstm")
    unknown = msgspec.structs.replace(WINDOWS, file=None, line=None, guard=None, value_origin=None, only_inside=None)
    inside = msgspec.structs.replace(unknown, stack=(frame,))
    assert "it fails in the forward of encoder.lstm, and" in " ".join(wording.story(inside))
    raised = msgspec.structs.replace(inside, kind=FailureKind.PYTHON_ERROR)
    assert "outside of the forward" not in wording.why(raised)
    outside = msgspec.structs.replace(unknown, stack=(msgspec.structs.replace(frame, module=None),))
    assert "torch found this outside of the forward" in " ".join(wording.story(outside))


def test_symbols_of_one_place_are_told_in_one_sentence() -> None:
    (origin,) = WINDOWS.origins[:1]
    several = [msgspec.structs.replace(origin, symbol=name) for name in ("u0", "u1", "u7")]
    elsewhere = msgspec.structs.replace(origin, symbol="u2", frame=None)
    told = wording.symbol_origins(msgspec.structs.replace(WINDOWS, origins=(*several, elsewhere)))
    assert len(told) == 2
    assert told[0].startswith("u0, u1, u7 were created by ")
    assert told[1].startswith("u2 was created by ")


def test_a_form_of_a_rewrite_that_fails_is_not_told_where_another_form_works() -> None:
    works = TriedRewrite(title="Assert it", diff="", result="exports", input_sets=3)
    fails = TriedRewrite(title="Assert it", diff="", result="fails", note="fails with a TypeError", ended="otherwise")
    other = msgspec.structs.replace(fails, title="Branch on it")
    assert failed_rewrites((works, fails, other), ATTENTION) == failed_rewrites((other,), ATTENTION) != ()
    assert failed_rewrites((fails,), ATTENTION) != ()


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_difference_beside_what_is_allowed_shows_which_is_larger(value: float, limit: float) -> None:
    shown, allowed = map(float, beside_limit(value, limit))
    assert (shown > allowed, shown < allowed) == (value > limit, value < limit)
    assert beside_limit(1.3e-3, 1.26e-5) == ("1.3e-03", "1e-05")
    assert beside_limit(1.6e-5, 1.5e-5) == ("1.60e-05", "1.50e-05")
