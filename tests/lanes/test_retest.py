"""What became of a run's findings is asked anew, kept, and told in scripts' heads and in the list of known issues."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from exportdoctor.cli import main
from exportdoctor.core.failure import known_issues
from exportdoctor.core.failure.finding import ExceptionRecord, KnownIssueRecord, Repro
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.events import FindingMade, RunStarted
from exportdoctor.core.run.lane_matrix import FailureName, LaneAnswer, LaneMatrix, retest_of, rows_of
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.core.versions import installed_versions
from exportdoctor.lanes.ask_lanes import _packages_changed, map_side_by_side
from exportdoctor.lanes.lane import Lane, LaneSpec, here
from exportdoctor.lanes.lane_question import finding_question
from exportdoctor.report.canvas import Style
from exportdoctor.report.matrix_tables import render_retest
from exportdoctor.report.wording.version_searches import known_versions
from exportdoctor.repro.find_probe import changed_sources_of
from exportdoctor.store.measurements import code_digest, list_measurements
from exportdoctor.store.run_folder import RunFolder
from exportdoctor.store.runs import find_run, read_run, target_again
from lane_wheels import fast_variables, write_wheel
from synthetic import WINDOWS

HEAD = "# From a run\n# Made by: exportdoctor repro RUN F1\n"
SCRIPT = "import oddity.torch.export as it\n\n\nit.export()\n"
EXPORT = "def export():\n    if {fails}:\n        raise ValueError('no')\n"


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a finding whose script is verified, and two releases of what it imports."""
    for name, value in fast_variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    for version, fails in (("1.0", True), ("1.1", False)):
        files = {"oddity/__init__.py": "", "oddity/torch/__init__.py": ""}
        text = EXPORT.format(fails=fails)
        write_wheel(tmp_path / "wheels", version, files={**files, "oddity/torch/export/__init__.py": text})
    path = tmp_path / "run"
    with RunFolder.create(path) as folder:
        target = TargetRef(ref="m.py:build", parts=(), options=BuildOptions())
        folder.append(RunStarted(run="run", target=target, options=ScanOptions(), version="0"))
        finding = msgspec.structs.replace(
            WINDOWS,
            exception=ExceptionRecord(type="ValueError", message="no"),
            known_issues=(KnownIssueRecord(id="symint-not-tracked-with-proxy", link="pytorch/pytorch#163713"),),
            repro=Repro(path="repros/F1.py", lines=2, imports=("oddity",), verified=True),
        )
        folder.append(FindingMade(finding=finding))
    (path / "repros").mkdir()
    (path / "repros" / "F1.py").write_text(HEAD + SCRIPT)
    return path


@pytest.mark.long
@pytest.mark.slow
def test_a_finding_that_a_release_mends_is_told_kept_and_noted(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["retest", str(run_folder), "--with", "oddity=1.1", "--json", "-q"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["finding"], row["state"], row["lane"]) == ("F1", "fixed", "oddity 1.1")
    assert main.run(["retest", str(run_folder), "--with", "oddity=1.0,1.1,1.2", "--jobs", "2", "-q"]) == 1
    said = capsys.readouterr().out
    assert [state in said for state in ("still there", "fixed", "changed", "unknown")] == [True, True, False, True]
    script = (run_folder / "repros" / "F1.py").read_text()
    assert script.count("Asked on other versions") == 1
    assert "oddity 1.0; passes with" in " ".join(script.replace("#", "").split())
    assert script.endswith(SCRIPT)
    assert {one.state for one in list_measurements()} == {"same failure", "passes"}
    assert main.run(["known", "163713"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Measured: .*passes with [^;]*oddity 1.1", told)
    assert "Not measured, read in" in told
    once = known_versions(known_issues.load()[0], list_measurements() * 2)
    assert once == known_versions(known_issues.load()[0], list_measurements()), "told once, whoever was asked"


def test_a_script_answers_for_what_differs_from_the_run_only() -> None:
    """A script holds copies of the model's code: another transformers than the run's cannot change it."""
    lane = Lane(name="x", spec=LaneSpec(packages={"torch": "9.1", "transformers": "5.1"}), prefix="")
    assert list(_packages_changed({"torch": "9.0+cpu", "transformers": "5.1"}, lane)) == ["torch"]
    assert list(_packages_changed({"torch": "9.1+cpu", "transformers": "4.1"}, lane)) == ["transformers"]
    here = installed_versions(("torch", "transformers"))
    assert list(_packages_changed(here, Lane(name="here", spec=LaneSpec(), prefix=""))) == []
    assert list(_packages_changed({**here, "transformers": "0"}, Lane(name="here", spec=LaneSpec(), prefix=""))) == [
        "transformers"
    ]


def test_a_digest_of_code_does_not_count_the_head_but_all_else() -> None:
    assert code_digest(HEAD + SCRIPT) == code_digest("# other\n\n" + SCRIPT)
    assert code_digest(SCRIPT) != code_digest(SCRIPT.replace("export()", "export(1)"))


TWO_LAYERS = """
import torch
class Gate(torch.nn.Module):
    def forward(self, x):
        if x.mean() > 0:
            return x + 1
        return x - 1
def build():
    return torch.nn.Sequential(Gate(), torch.nn.Linear(8, 8), Gate()), (torch.randn(2, 8),)
"""
INTERRUPTED = """
import os, subprocess
from exportdoctor.lanes.ask_lanes import map_side_by_side
def ask(seconds):
    os.write(1, b"asked\\n")  # one write: two threads that print share their line ends
    return subprocess.run(["sleep", seconds], process_group=0).returncode
map_side_by_side(ask, ["50.25"] * 4, 2)
"""


def test_what_is_fixed_beside_changed_sources_says_so() -> None:
    was = FailureName(exception="a.B", message="no")
    other = FailureName(exception="a.C", message="other")
    answers = (LaneAnswer(), LaneAnswer(failures=(was,)), LaneAnswer(failures=(other,)), LaneAnswer(unknown="gone"))
    matrix = LaneMatrix(asked="run", lanes=("1", "2", "3", "4"), rows=rows_of("F1", answers, was))
    told = render_retest(retest_of(matrix, changed="net.py changed since this run"), Style())
    assert [line.split(maxsplit=1)[1].split("  ")[-1].strip() for line in told.splitlines()] == [
        "was B: no; net.py changed since this run",
        "B: no",
        "C: other",
        "gone",
    ]
    assert [row.detail for row in retest_of(matrix)] == ["", "", "C: other", "gone"]


@pytest.mark.long
@pytest.mark.usefixtures("own_home")
def test_all_modules_of_a_finding_that_were_asked_are_asked_again(tmp_path: Path) -> None:
    """One of two layers that fail at one line may be mended, and the finding is there still."""
    (tmp_path / "net.py").write_text(TWO_LAYERS)
    assert main.run(["scan", f"{tmp_path}/net.py:build", "--no-cure", "-q"]) == 1
    (tmp_path / "net.py").write_text(TWO_LAYERS.replace("(Gate(), ", "(torch.nn.Tanh(), "))
    stored = read_run(find_run(None))
    (finding,) = stored.state.report().findings
    assert finding.modules == ("0", "2")
    assert changed_sources_of(stored) == "net.py changed since this run"
    question = finding_question(stored, finding, ())
    assert question.about == "submodule 0 of part default, and 1 that fail like it"
    assert question.small(here(), False).cell(question.wanted).state == "same failure"


@pytest.mark.parametrize(("kind", "same"), [("SlowExport", True), ("HeavyExport", True), ("NumbersDiffer", False)])
def test_what_an_export_costs_is_the_same_failure_whatever_was_measured(kind: str, same: bool) -> None:
    """A busy machine spent most of the time on something else, and it was another failure."""
    one, other = (
        FailureName(exception=f"exportdoctor.{kind}", message=f"It takes {seconds} s. {where}")
        for seconds, where in ((7.5, "47% of it went to recording of operators"), (9.1, "51% of it went to guards"))
    )
    assert one.is_same(other) is same
    assert not one.is_same(msgspec.structs.replace(one, exception="exportdoctor.Other"))


@pytest.mark.long
@pytest.mark.usefixtures("own_home")
def test_a_run_is_asked_again_about_its_own_file_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file of the name passed, and the failure was called fixed."""
    for name, code in (("mine", TWO_LAYERS), ("other", TWO_LAYERS.replace("x.mean() > 0", "x.ndim > 0"))):
        (tmp_path / name / "nets").mkdir(parents=True)
        (tmp_path / name / "nets" / "net.py").write_text(code)
    monkeypatch.chdir(tmp_path / "mine")
    assert main.run(["scan", "./nets/net.py:build", "--no-cure", "-q"]) == 1
    monkeypatch.chdir(tmp_path / "other")
    stored = read_run(find_run(None))
    (finding,) = stored.state.report().findings
    assert target_again(stored).ref == f"{tmp_path}/mine/nets/net.py:build"
    question = finding_question(stored, finding, ())
    assert question.small(here(), False).cell(question.wanted).state == "same failure"


COUNTS_CALLS = """
import torch
class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return x / self.calls
def build():
    return torch.nn.Sequential(Counts(), torch.nn.Linear(8, 8)), (torch.randn(2, 8),)
"""
UNROLLED = """
import torch
class Unrolled(torch.nn.Module):
    def forward(self, x):
        for _ in range(300):
            x = torch.tanh(x) + x.sum()
        return x
def build():
    return torch.nn.Sequential(Unrolled(), torch.nn.Linear(8, 8)), (torch.randn(2, 8),)
"""


@pytest.mark.long
@pytest.mark.usefixtures("own_home")
@pytest.mark.parametrize(
    ("code", "options", "what"),
    [(COUNTS_CALLS, (), "NumbersDiffer"), (UNROLLED, ("--slow", "1", "--no-cure"), "SlowExport")],
)
def test_a_failure_of_what_exports_is_asked_as_it_was_found(
    code: str, options: tuple[str, ...], what: str, tmp_path: Path
) -> None:
    """Numbers are those of the whole part, and a limit is an option: both were told as fixed."""
    (tmp_path / "net.py").write_text(code)
    assert main.run(["scan", f"{tmp_path}/net.py:build", "-q", *options]) == 1
    stored = read_run(find_run(None))
    (finding,) = stored.state.report().findings
    assert finding.exception.type.endswith(what)
    assert finding.module == "0"
    question = finding_question(stored, finding, ())
    assert question.small(here(), False).cell(question.wanted).state == "same failure"


@pytest.mark.slow
def test_lanes_side_by_side_answer_in_order_and_end_with_an_interruption() -> None:
    assert map_side_by_side(lambda number: number * 2, range(5), 3) == [0, 2, 4, 6, 8]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored where the tests run in the background
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"asked\n"] * 2
    time.sleep(0.3)
    begun = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    rest = process.communicate()[0]
    assert time.monotonic() - begun < 20
    assert process.returncode
    assert not rest
