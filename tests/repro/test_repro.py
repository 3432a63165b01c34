"""Repros of findings: scripts are reduced, verified end to end, and kept."""

from __future__ import annotations

import ast
import importlib
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.cli.main import run as command_line
from exportdoctor.core.codec import encode
from exportdoctor.core.failure.classify import kind_of
from exportdoctor.core.failure.identity import NameFreeSignature, name_free_signature
from exportdoctor.core.failure.kinds import KIND_OF_STATUS, KINDS, FailureKind
from exportdoctor.core.failure.messages import exception_in_text
from exportdoctor.core.limits import SCRIPT_MB, SCRIPT_SECONDS
from exportdoctor.core.protocol.repro import ScriptDraft
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, Outcome, OutcomeStatus
from exportdoctor.core.run.events import RunFinished
from exportdoctor.reduce import Ended, Verdict
from exportdoctor.report.wording import repro_not_found
from exportdoctor.repro.bundle import difference, fold_stack
from exportdoctor.repro.candidates.budget import BudgetClock, ReductionBudget
from exportdoctor.repro.candidates.candidate_judge import CandidateJudge
from exportdoctor.repro.candidates.candidate_runner import CandidateRunner
from exportdoctor.repro.candidates.incidental_failures import FailureCollector
from exportdoctor.repro.candidates.reduction import Reducer, ReductionResult, find_last, slice_by_stack
from exportdoctor.repro.candidates.verdict_log import VerdictLog
from exportdoctor.repro.kind_limits import script_limits
from exportdoctor.repro.pipeline import ends_of_drafts
from exportdoctor.repro.script import code_lines, imports_of
from exportdoctor.repro.verify import verify
from exportdoctor.store import journal
from exportdoctor.store.runs import read_run
from failing_outcomes import VALUE, failing
from scanning import scan_file

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_verdicts_are_remembered_for_the_same_bug_and_forgotten_for_another(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    VerdictLog(path, holds_for="a").note("x = 1", Verdict.YES)
    with open(path, "a") as file:
        file.write('{"torn')
    assert VerdictLog(path, holds_for="a").verdict_of("x = 1") is Verdict.YES
    assert VerdictLog(path, holds_for="b").verdict_of("x = 1") is None


def test_the_last_exception_of_a_printed_traceback_is_read_with_all_its_lines() -> None:
    output = (
        "noise\nTraceback (most recent call last):\n  File \"a\", line 1\nKeyError: 'x'\n\nThe above exception was the "
        'direct cause of the following exception:\n\nTraceback (most recent call last):\n  File "b", line 2\n'
        "    f()\na.b.Broken: first\n  second\nthird\n"
    )
    assert exception_in_text(output) == ("a.b.Broken", "first\n  second\nthird")


def test_imports_are_packages_without_pythons_own() -> None:
    assert imports_of("import torch.nn\nimport ctypes\nfrom transformers.x import y") == ("torch", "transformers")


def test_lines_are_counted_without_comments_and_empty_ones() -> None:
    assert code_lines("# a\n\nx = 1\n  # b\ny = 2\n") == 2


def test_the_difference_to_the_passing_variant_names_both_lines() -> None:
    assert difference("a\nint(n)\nb", "a\nn\nb").splitlines() == [" a", "-int(n)", "+n", " b"]


def test_a_folded_stack_counts_the_frames_of_torch() -> None:
    inner = Frame(file="/x/site-packages/torch/fx/a.py", line=1, function="g")
    user = Frame(file="/home/me/model.py", line=3, function="forward", source="int(x)", user=True)
    assert fold_stack((inner, inner, user, inner, inner)) == [
        "  … 2 frames of torch",
        '  File "model.py", line 3, in forward',
        "    int(x)",
        "  … 1 frame of torch",
        '  File "torch/fx/a.py", line 1, in g',
    ]


@pytest.mark.parametrize("status", KIND_OF_STATUS)
def test_the_script_of_a_dead_process_has_the_limits_of_its_kind(status: OutcomeStatus) -> None:
    signature = name_free_signature(Outcome(probe="1", status=status), exporter="export")
    assert signature is not None
    own = {OutcomeStatus.TIMED_OUT: (40.0, SCRIPT_MB), OutcomeStatus.OUT_OF_MEMORY: (SCRIPT_SECONDS, 900.0)}
    assert script_limits(signature.kind) == own.get(status, (SCRIPT_SECONDS, SCRIPT_MB))


def test_a_failure_that_is_raised_needs_no_limits_of_its_own() -> None:
    assert all(script_limits(kind) == (SCRIPT_SECONDS, SCRIPT_MB) for kind in KINDS if not kind.ends_the_process)


def test_an_exception_raised_while_another_is_handled_has_that_as_its_cause() -> None:
    """A reduction that had left out `from error` was told as one that does not fail in the same way."""
    wanted = NameFreeSignature(FailureKind.PYTHON_ERROR, ("builtins.ValueError", "builtins.KeyError"), "bad")
    lines = "try:\n    {}['x']\nexcept KeyError as error:\n    raise ValueError('bad')"
    assert verify(lines, wanted).verified
    assert verify(f"{lines} from error", wanted).verified
    assert not verify(f"{lines} from None", wanted).verified


@pytest.mark.slow
def test_a_script_that_no_longer_fails_so_is_not_verified() -> None:
    signature = name_free_signature(failing(VALUE), exporter="export")
    assert signature is not None
    assert not verify("raise KeyError('x')", signature).verified
    assert not verify("pass", signature).verified


@pytest.fixture(scope="module")
def bench() -> Iterator[CandidateRunner]:
    with CandidateRunner(width=2) as process:
        yield process


def reducer_of(bench: CandidateRunner, source: str, *, candidates: int) -> Reducer:
    signature = name_free_signature(bench.run(source), exporter="export")
    assert signature is not None
    judge = CandidateJudge(runner=bench, wanted=signature, exporter="export", log=VerdictLog(None))
    clock = BudgetClock(ReductionBudget(seconds=math.inf, candidates=candidates), bench)
    return Reducer(judge, clock, lambda text: None)


@pytest.mark.long
@pytest.mark.slow
def test_a_script_whose_time_was_over_keeps_no_statement_that_nothing_reads(bench: CandidateRunner) -> None:
    """What only dropped statements needed was left in a script whose reduction was cut off: 30 lines instead of 10."""
    lines = "".join(f"        unread{number} = torch.ones({number})\n" for number in range(1, 6))
    source = (
        "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"{lines}        if x.sum() > 0:\n            pass\n        return x\n\n"
        "torch.export.export(Model(), (torch.ones(2),))\n"
    )
    reducer = reducer_of(bench, source, candidates=0)
    ended = ReductionResult(source, ended=Ended.CANDIDATES.value, trail=(source,))
    cut = reducer.cut_again(ended)
    assert "unread" not in cut.source
    assert reducer.judge(cut.source) is Verdict.YES
    assert reducer.cut_again(replace(ended, ended=Ended.FINISHED.value)).source == source


@given(trail=st.lists(st.booleans(), max_size=40))
def test_what_last_held_is_found_where_only_late_ones_do_not(trail: list[bool]) -> None:
    names = tuple(map(str, range(len(trail))))
    found = find_last(names, lambda name: trail[int(name)])
    assert found is None or trail[int(found)]
    if trail == sorted(trail, reverse=True):
        assert found == (str(sum(trail) - 1) if any(trail) else None)


RUNS = """
import torch
class M(torch.nn.Module):
    def forward(self, x):
        if x.sum().item() > 2:
            x = x * 2
        return {rest}
torch.export.export(M(), (torch.ones(1),))
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_script_that_was_reduced_until_eager_fails_falls_back_to_what_ran(bench: CandidateRunner) -> None:
    runs, broken = (RUNS.format(rest=rest) for rest in ("x + 1", "None[0]"))
    reducer = reducer_of(bench, runs, candidates=1)
    assert reducer.judge(broken) is Verdict.YES
    polished = reducer.polish(ReductionResult(broken, trail=(runs, broken)))
    assert polished.eager
    assert reducer.judge.with_eager(True)(polished.source) is Verdict.YES
    assert not reducer.polish(ReductionResult(broken, trail=(broken,))).eager


@pytest.mark.slow
def test_a_long_script_gets_more_time_than_a_short_one(bench: CandidateRunner) -> None:
    clock = BudgetClock(ReductionBudget(seconds=-1.0, at_most=math.inf, for_long=math.inf), bench)
    assert clock.is_over(source="print()\n" * 25)
    assert not clock.is_over(source="print()\n" * 26)


def minimum_of(path: Path) -> str:
    assigned = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    found = next(node.value for node in assigned if ast.unparse(node.targets[0]) == "MINIMUM")
    return str(ast.literal_eval(found))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["unregistered_pytree_out"])
def test_a_whole_network_is_reduced_to_about_the_length_of_a_minimum_by_hand(name: str, bench: CandidateRunner) -> None:
    path = FIXTURES / f"{name}.py"
    source = path.read_text().partition("\nEXPECTED")[0] + "\ntorch.export.export(*build())\n"
    reducer = reducer_of(bench, source, candidates=400)
    reduction = reducer.reduce(source)
    assert reduction.ended == "finished"
    assert reducer.judge.rerun(reduction.source) is Verdict.YES
    assert code_lines(reduction.source) <= 1.5 * code_lines(minimum_of(path))


@pytest.mark.long
@pytest.mark.slow
def test_candidates_beside_each_other_get_each_its_own_outcome(bench: CandidateRunner) -> None:
    with ThreadPoolExecutor(4) as threads:
        sources = [f"raise ValueError('{number}')" for number in range(12)]
        outcomes = list(threads.map(bench.run, sources))
    said = [outcome.failure.exceptions[0].message for outcome in outcomes if outcome.failure]
    assert said == [str(number) for number in range(12)]


@pytest.mark.long
@pytest.mark.slow
def test_a_script_that_exports_nothing_does_not_pass(bench: CandidateRunner) -> None:
    outcome = bench.run("import torch\n\ntorch.nn.Linear(2, 2)")
    assert outcome.failure is not None
    assert (outcome.status, outcome.failure.stage) == ("failed", "capture")


@pytest.mark.slow
def test_an_interrupt_that_the_code_raises_is_an_exception_as_any_other(bench: CandidateRunner) -> None:
    """It was told as a crash, and a script that raises it as one that a signal ended."""
    source = "import torch\n\nraise KeyboardInterrupt"
    outcome = bench.run(source)
    assert outcome.failure is not None
    assert outcome.failure.exceptions[0].name == "KeyboardInterrupt"
    signature = name_free_signature(outcome, exporter="export")
    assert signature is not None
    assert verify(source, signature).verified


@pytest.mark.slow
def test_why_there_is_no_script_names_each_way_once_and_no_mistake_of_a_draft(bench: CandidateRunner) -> None:
    wanted = name_free_signature(failing(VALUE), exporter="export")
    assert wanted is not None
    judge = CandidateJudge(runner=bench, wanted=wanted, exporter="export", log=VerdictLog(None))
    ends = {"a": ("x0", "1 / 0", "1 / 0"), "b": ("[][0]", "1 / 0"), "c": ("x0",)}
    drafts = [ScriptDraft(what=what, source=source) for what, sources in ends.items() for source in sources]
    assert ends_of_drafts(judge, drafts) == [
        "a: ZeroDivisionError: division by zero",
        "b: IndexError: list index out of range, or ZeroDivisionError: division by zero",
    ]


def test_a_failure_that_is_seen_under_a_shim_alone_is_said_to_be() -> None:
    assert "frozen-values only, and a script has no shims" in repro_not_found("why", shims=("frozen-values",))
    assert "shim" not in repro_not_found("why", shims=())


@pytest.mark.slow
def test_a_failure_that_comes_and_goes_is_noticed(bench: CandidateRunner, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    diary.touch()
    source = (
        f"import os, torch\nodd = os.path.getsize({str(diary)!r}) % 2\nopen({str(diary)!r}, 'a').write('x')\n"
        "class M(torch.nn.Module):\n    def forward(self, x):\n        return x if odd else int(x.max())\n"
        "torch.export.export(M(), (torch.ones(2),))\n"
    )
    reducer = reducer_of(bench, source, candidates=10)
    found = reducer.confirm(ReductionResult(source))
    assert found.flaky
    assert (found.same, found.runs) == (1, 2)


NO_SOURCE = """\
import torch
exec("def crop(hidden):\\n    return hidden[:2]")
half = lambda hidden: hidden / 2
class Model(torch.nn.Module):
    def forward(self, hidden):
        return half(crop(hidden)) + torch.special.expit(hidden[:2])
"""


@pytest.mark.slow
def test_a_function_without_source_is_imported_from_its_module_and_the_script_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exportdoctor.worker.repro.script.prune import CodeSelection
    from exportdoctor.worker.repro.script.script_builder import ScriptBuilder

    (tmp_path / "sourceless.py").write_text(NO_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("sourceless")
    script = ScriptBuilder(CodeSelection.of(None, substitute=False, decorators=False), {})
    text = script.render([f"model = {script.module_code(module.Model())}"])
    assert f"sys.path.insert(0, {str(tmp_path)!r})\nfrom sourceless import crop" in text
    assert "= lambda hidden: hidden / 2" in text  # a lambda has its line, and a C function its name
    assert "torch.special.expit" in text
    (note,) = script.imports
    assert note.module == "sourceless"
    assert "crop has no source" in note.text
    assert "<string>" in note.text
    space: dict[str, Any] = {}
    exec(text, space)
    assert space["model"](module.torch.ones(3)).shape == (2,)


CONFIGURED = """import torch
class Base:
    @property
    def kind(self):
        return self._kind
    @property
    def broken(self):
        raise RuntimeError("not now")
class Config(Base):
    def __init__(self):
        self._kind = "sdpa"
        self.unused = 1
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
    def forward(self, hidden):
        return hidden * len(self.config.kind) if hidden is not None else self.config.broken
"""


@pytest.mark.slow
def test_an_object_whose_class_inherits_a_property_keeps_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exportdoctor.worker.repro.script.prune import CodeSelection
    from exportdoctor.worker.repro.script.recorder import Record
    from exportdoctor.worker.repro.script.script_builder import ScriptBuilder

    path = tmp_path / "configured.py"
    path.write_text(CONFIGURED)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("configured")
    lines = {(str(path), line) for line in range(12, 19)}
    record = Record(lines, {(str(path), 17)}, set(), {})
    script = ScriptBuilder(CodeSelection.of(record, substitute=False, decorators=False), {})
    text = script.render([f"model = {script.module_code(module.Model())}"])
    assert "class Config:\n    kind = 'sdpa'" in text
    assert "unused" not in text


@pytest.mark.slow
def test_a_call_that_one_draft_replaces_by_its_value_is_a_call_in_the_next_draft(tmp_path: Path) -> None:
    from exportdoctor.worker.repro.script.prune import CodeSelection
    from exportdoctor.worker.repro.script.recorder import Record
    from exportdoctor.worker.repro.script.source_lookup import definition_at

    path = tmp_path / "heads.py"
    path.write_text("def forward(self, x):\n    return x * (1 + count(x))\n")
    function = definition_at(str(path), 1, "forward")
    record = Record({(str(path), 2)}, {(str(path), 1)}, set(), {(str(path), 2, 2, 20, 28): ["plain", 3]})
    texts = [
        ast.unparse(CodeSelection.of(record, substitute=substitute, decorators=False).prune(function, str(path), "f"))
        for substitute in (False, True, False)
    ]
    assert texts[1].endswith("return x * (1 + 3)")
    assert texts[0] == texts[2]
    assert texts[0].endswith("return x * (1 + count(x))")


@pytest.mark.slow
def test_a_call_that_is_captured_alone_is_the_same_as_in_the_whole_capture() -> None:
    from exportdoctor.core.protocol.scan import Capture, Open
    from exportdoctor.core.records.target import TargetRef
    from exportdoctor.worker.open_target import OpenTarget
    from exportdoctor.worker.repro.single_call import one_call

    opening = OpenTarget()
    opening.open(Open(target=TargetRef(ref=f"{FIXTURES / 'constraint_between_inputs.py'}:build"), isolation="fork"))
    assert opening.built is not None
    alone = one_call(opening.built.part("default"), "fusion")
    opening.capture(Capture(part="default", exporter="export"))
    whole = opening.parts["default"].distinct["fusion"][0]
    assert alone is not None
    (call,) = alone.distinct["fusion"]
    assert [given.shape for given in call.args] == [given.shape for given in whole.args]
    assert (call.dims, call.sizes) == (whole.dims, whole.sizes)
    assert call.dims


def recorded(path: Path, run: Path) -> Path:
    """The folder of a run in which the target in `path` was scanned."""
    from scanning import events_of

    (run / "logs").mkdir(parents=True)
    events = [*events_of(f"{path}:build"), RunFinished(exit_code=1, seconds=1.0)]
    (run / journal.NAME).write_bytes(b"".join(encode(event) + b"\n" for event in events))
    return run


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file with a failure, that a test may change."""
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    path = tmp_path / "network.py"
    path.write_text((FIXTURES / "tolist_loop.py").read_text())
    return path


@pytest.mark.night
def test_a_repro_that_was_interrupted_is_kept_and_goes_on_where_it_was(target: Path, tmp_path: Path) -> None:
    run, bundle = recorded(target, tmp_path / "run"), tmp_path / "bundle"
    verdicts = run / "repros" / "F1.verdicts.jsonl"
    command = [sys.executable, "-m", "exportdoctor", "repro", str(run), "F1", "--probes", "500"]
    process = subprocess.Popen(
        [*command, "-o", str(tmp_path / "first.py")],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    while process.poll() is None and (not verdicts.exists() or len(verdicts.read_text().splitlines()) < 12):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130, told
    assert "smallest script so far" in told
    assert "torch.export.export" in (tmp_path / "first.py").read_text()

    assert command_line([*command[3:], "-q", "-o", str(tmp_path / "out.py"), "--bundle", str(bundle)]) == 0
    asked = [key for line in verdicts.read_text().splitlines()[1:] for key in json.loads(line) if key != "kept"]
    assert len(asked) == len(set(asked))
    finding = read_run(run).state.findings["F1"]
    assert finding.repro is not None
    assert finding.repro.verified
    assert finding.repro.imports == ("torch",)
    assert finding.repro.lines <= 1.5 * code_lines(minimum_of(FIXTURES / "tolist_loop.py"))
    assert (run / finding.repro.path).read_text() == (tmp_path / "out.py").read_text()
    assert json.loads((run / "report.json").read_text())["findings"][0]["repro"]["verified"]
    script = (bundle / "repro.py").read_text()
    assert set((tmp_path / "out.py").read_text().splitlines()) - set(script.splitlines())
    assert "Made by" not in script
    assert "your own" in (bundle / "README.md").read_text()
    ElementTree.parse(bundle / "slice.svg")
    issue = (bundle / "issue.md").read_text()
    assert "<summary>python -m torch.utils.collect_env</summary>" in issue
    assert "PyTorch version: " in issue
    for heading in ("What happens", "What was expected", "Where it occurs in the model", "Versions"):
        assert f"## {heading}" in issue


PROTECTED = """\
import torch
class Gate(torch.nn.Module):
    def forward(self, hidden, lengths):
        longest = lengths.max().item()
        torch._check(longest <= 100)
        hidden = hidden[:, :4] if longest <= 100 else hidden
        return hidden * 2 if bool(hidden.sum()) else hidden
def build():
    return Gate(), (torch.ones(2, 4), torch.tensor([3, 2]))
"""


@pytest.mark.night
def test_another_failure_that_is_met_on_the_way_is_a_verified_script_of_its_own_and_no_part_of_the_issue(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.write_text(PROTECTED)
    run, bundle = recorded(target, tmp_path / "run"), tmp_path / "bundle"
    assert command_line(["repro", str(run), "F1", "-q", "--probes", "25", "--bundle", str(bundle)]) == 0
    told = capsys.readouterr().err
    assert "also found while reducing" in told
    other = run / "repros" / "F1-other-1.py"
    assert str(other) in told
    assert other.read_text() == (bundle / "other-1.py").read_text()
    assert "if longest <= 1" in other.read_text()
    assert "_check" not in other.read_text()
    assert "# Met while F1 was reduced" in other.read_text()
    shown = subprocess.run([sys.executable, "-I", str(other)], capture_output=True, text=True, check=False).stderr
    assert "Could not guard on data-dependent expression u0 <= 1" in shown
    assert "u0 <= 1" not in (bundle / "issue.md").read_text()
    assert len(json.loads((run / "report.json").read_text())["findings"]) == 1


def test_what_is_the_same_bug_a_finding_of_the_run_or_no_export_is_not_another_failure() -> None:
    wanted = name_free_signature(failing(VALUE), exporter="export")
    assert wanted is not None
    collector = FailureCollector(wanted, "export", VerdictLog(None))
    collector.add("a", failing(VALUE, expression="[x] * n"))
    collector.add("b", Outcome(probe="1", status=OutcomeStatus.PASSED))
    collector.add("c", Outcome(probe="1", status=OutcomeStatus.TIMED_OUT))
    collector.add("d", Outcome(probe="1", status=OutcomeStatus.FAILED, failure=Failure(stage="capture", exceptions=())))
    call = Frame(file="/repro/repro.py", line=9, function="<module>", source="torch.export.export(M())", user=True)
    broken = Failure(
        stage="export",
        exceptions=(
            ExceptionFact(type="builtins.TypeError", message="missing 1 required positional argument: 'args'"),
        ),
        frames=(call,),
    )
    collector.add("f", Outcome(probe="1", status=OutcomeStatus.FAILED, failure=broken))
    assert collector.scripts() == ()
    for source in ("eeeee", "ee", "eee"):
        collector.add(source, failing("Could not guard on data-dependent expression u0 > 1"))
    assert collector.scripts() == (("ee", "eeeee"),)


MADE_BY_A_REDUCTION = {
    "no dimension": "{1: 'n'}",
    "no axis": "{2: n}",
    "no name of an input": "{1: n}, '': {1: n}",
    "another size": "{1: 3}",
    "twice a size": "{1: 2 * n}",
    "two unequal sizes": "{0: n, 1: n}",
    "too small a size": "{1: torch.export.Dim('m', min=7)}",
}
SHAPED = """
import torch
class M(torch.nn.Module):
    def forward(self, x):
        {body}
n = torch.export.Dim("n")
torch.export.export(M(), (torch.ones(2, {size}),), dynamic_shapes={{'x': {shapes}}})
"""


@pytest.mark.slow
@pytest.mark.parametrize("shapes", MADE_BY_A_REDUCTION.values(), ids=list(MADE_BY_A_REDUCTION))
def test_dynamic_shapes_that_torch_does_not_take_are_no_other_failure(shapes: str, bench: CandidateRunner) -> None:
    wanted = name_free_signature(failing(VALUE), exporter="export")
    assert wanted is not None
    collector = FailureCollector(wanted, "export", VerdictLog(None))
    script = SHAPED.format(body="return x + x", size=5, shapes=shapes)
    outcome = bench.run(script)
    assert outcome.status is OutcomeStatus.FAILED
    collector.add(script, outcome)
    assert collector.scripts() == ()


@pytest.mark.slow
def test_a_violated_dimension_is_cut_to_what_the_line_of_its_guard_needs(bench: CandidateRunner) -> None:
    lines = "y = x.sin()", "length = x.shape[1]", "rows = [x for _ in range(length)]", "return y + rows[0]"
    script = SHAPED.format(body="\n        ".join(lines), size=5, shapes="{1: n}")
    wanted = name_free_signature(bench.run(script), exporter="export")
    assert wanted is not None
    judge = CandidateJudge(runner=bench, wanted=wanted, exporter="export", log=VerdictLog(None))
    cut = slice_by_stack(judge, script, lambda text: None)
    assert "range(length)" in cut
    assert "sin" not in cut
    assert "return" not in cut


SIZE_AS_A_NUMBER = {
    "numpy": "torch.Tensor(numpy.arange(x.shape[0]))",
    "key": "{4: x}.get(x.shape[0])",
    "of data": "torch.Tensor(numpy.arange(x.nonzero().shape[0]))",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", SIZE_AS_A_NUMBER)
def test_a_script_tells_a_size_that_is_used_as_a_number_from_a_value_as_the_scan_does(
    how: str, bench: CandidateRunner, tmp_path: Path
) -> None:
    """It hangs on whether unbacked symbols were made, which was not counted in scripts."""
    body = f"class M(torch.nn.Module):\n    def forward(self, x):\n        return {SIZE_AS_A_NUMBER[how]}\n"
    head, dims = f"import numpy\nimport torch\n{body}", "({0: torch.export.Dim.DYNAMIC},)"
    inputs = "(torch.ones(4, 3),)"
    (tmp_path / "model.py").write_text(
        f"{head}def build():\n    return {{'module': M(), 'args': {inputs}, 'dynamic_shapes': {dims}}}\n"
    )
    (found,) = scan_file(tmp_path / "model.py", cure=False).findings
    shown = bench.run(f"{head}torch.export.export(M(), {inputs}, dynamic_shapes={dims})\n")
    assert kind_of(shown, exporter="export") is found.kind


@pytest.mark.slow
def test_a_dimension_of_size_one_is_no_other_failure_and_one_that_code_fixes_is(bench: CandidateRunner) -> None:
    wanted = name_free_signature(failing(VALUE), exporter="export")
    assert wanted is not None
    collector = FailureCollector(wanted, "export", VerdictLog(None))
    one = SHAPED.format(body="return x + x", size=1, shapes="{1: torch.export.Dim.DYNAMIC}")
    fixed = SHAPED.format(body="return x + torch.ones(5)", size=5, shapes="{1: torch.export.Dim.DYNAMIC}")
    for script in (one, fixed):
        collector.add(script, bench.run(script))
    assert collector.scripts() == ((fixed,),)


@pytest.mark.night
def test_a_finding_is_looked_at_anew_before_its_repro_is_offered(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    run = recorded(target, tmp_path / "run")
    assert command_line(["repro", str(run), "F7"]) == 2
    assert "Its findings: F1" in capsys.readouterr().err

    target.write_text("# a comment that moves every line\n" + target.read_text())
    path, out = run / journal.NAME, tmp_path / "out.py"
    path.write_text(path.read_text().replace(f'"torch":"{torch.__version__}"', '"torch":"2.0.0"'))
    assert command_line(["repro", str(run), "F1", "-q", "--probes", "1", "-o", str(out)]) == 0
    told = capsys.readouterr().err
    assert "network.py changed since this run" in told
    assert f"made with other versions: torch 2.0.0 then, {torch.__version__} now" in told
    assert f"torch {torch.__version__}" in out.read_text()
    assert "2.0.0" not in out.read_text()

    target.write_text(target.read_text().replace("lengths.tolist()", "[3, 5]"))
    assert command_line(["repro", str(run), "F1", "-q"]) == 2
    assert "The failure no longer occurs" in capsys.readouterr().err


def test_what_torch_registers_itself_is_not_registered_by_a_script() -> None:
    import torch

    from exportdoctor.worker.repro.script.prune import CodeSelection
    from exportdoctor.worker.repro.script.registrations import write_registrations
    from exportdoctor.worker.repro.script.script_builder import ScriptBuilder

    script = ScriptBuilder(CodeSelection.of(None, substitute=False, decorators=False), {})
    assert list(write_registrations(script, ((torch.Size([2, 3]), {"shape": torch.Size([1])}), {}))) == []
