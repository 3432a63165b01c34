"""The command line: what it prints where, its exit codes, and what it must not import."""

from __future__ import annotations

import errno
import io
import json
import marshal
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import click
import pytest
import yaml

from exportdoctor.cli.error_output import print_error
from exportdoctor.cli.interruption import Interruption
from exportdoctor.cli.main import run
from exportdoctor.cli.verbs import VERBS
from exportdoctor.cli.verbs.tui import find_interface
from exportdoctor.core.codec import decode
from exportdoctor.core.errors import ExitCode, TargetError, UsageError
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import RunState, fold
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report import FORMS
from exportdoctor.report.live.live_display import LiveDisplay
from exportdoctor.report.live.progress import LineProgress
from exportdoctor.store.digest import request_digest
from exportdoctor.store.places import runs_root
from exportdoctor.store.run_cache import RunCache
from exportdoctor.store.run_folder import RunFolder
from exportdoctor.store.runs import list_runs
from exportdoctor.targets import resolve
from synthetic import passing_scan, qwen_scan

ROOT = Path(__file__).parents[2]
QWEN = "20231114-221320-qwen2.5-vl-3b-x7"
FACTORY = "import torch\n\ndef build():\n    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    # for child processes; here too, because a request's digest covers where imports come from
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


def stored(events: tuple[ev.AnyEvent, ...], run_id: str = QWEN) -> Path:
    """A run among the others."""
    with RunFolder.create(runs_root() / run_id) as folder:
        for event in events:
            folder.append(event)
        return folder.path


@pytest.fixture
def known_target(tmp_path: Path) -> str:
    """A factory whose scan has been done before, so that no engine is needed: its stored report has two findings."""
    file = tmp_path / "model.py"
    file.write_text(FACTORY)
    events = tuple(qwen_scan())
    options = ScanOptions(exhaustive=True)
    digest = request_digest(resolve(TargetRef(ref=f"{file}:build")).identity(), options)
    folder = stored(events)
    (folder / "logs").mkdir(exist_ok=True)
    for finding in fold(events).findings.values():
        if finding.log:
            (folder / "logs" / Path(finding.log).name).write_text("its stack trace")
    RunCache().remember(digest, run=QWEN, path=folder, state=fold(events))
    return f"{file}:build"


def child(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "exportdoctor", *arguments], env=environment(**more), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    """This process's environment, and more."""
    return os.environ | more


# help


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == ExitCode.EXPORTS
    shown = capsys.readouterr().out
    assert all(verb.name in shown and verb.help in shown for verb in VERBS)


def test_help_imports_neither_torch_nor_rich_nor_the_engine() -> None:
    program = (
        "import sys; from exportdoctor.cli.main import run; run(['--help']);"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & set(sys.argv[1:])), file=sys.stderr);"
        "print(*[name for name in sys.modules if name.startswith('exportdoctor.engine')], file=sys.stderr)"
    )
    heavy = ("torch", "transformers", "rich", "networkx", "numpy", "msgspec", "psutil", "yaml", "exportdoctor_tui")
    done = subprocess.run(
        [sys.executable, "-c", program, *heavy], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == []


@pytest.mark.slow
def test_a_baseline_makes_only_new_failures_red(
    known_target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["scan", known_target, "--exhaustive", "-q"]
    file = tmp_path / "known.json"
    assert run([*words, "--fail-on", "never"]) == ExitCode.EXPORTS
    assert run([*words, "--fail-on", "new"]) == ExitCode.USAGE
    assert run([*words, "--baseline", str(file)]) == ExitCode.USAGE
    assert "there is no baseline" in capsys.readouterr().err
    file.write_text('{"name": "webapp", "dependencies": {}}')  # a file of another kind is neither read nor written over
    for more in ([], ["--update-baseline"]):
        assert run([*words, "--baseline", str(file), *more]) == ExitCode.USAGE
        assert "is no baseline: it names no schema" in capsys.readouterr().err
    assert "webapp" in file.read_text()
    file.unlink()
    assert run([*words, "--baseline", str(file), "--update-baseline"]) == ExitCode.EXPORTS
    assert run([*words, "--baseline", str(file)]) == ExitCode.EXPORTS
    assert run([*words, "--baseline", str(file), "--fail-on", "any"]) == ExitCode.FINDINGS
    assert "2 known failures, as in the baseline" in capsys.readouterr().err
    baseline = json.loads(file.read_text())
    failures = next(iter(baseline["failures"].values()))
    failures[0]["signature"] = "0" * 12
    file.write_text(json.dumps(baseline))
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert run([*words, "--baseline", str(file), "--format", "github"]) == ExitCode.FINDINGS
    shown = capsys.readouterr()
    assert "changed failure: " in shown.err
    assert [line.partition(" ")[0] for line in shown.out.splitlines()] == ["::error", "::notice"]
    assert summary.read_text().startswith("- changed failure: ")
    assert "\n\n# " in summary.read_text()
    assert run([*words, "--baseline", str(file), "--update-baseline"]) == ExitCode.EXPORTS
    capsys.readouterr()
    assert run([*words, "--baseline", str(file), "--format", "github"]) == ExitCode.EXPORTS
    assert [line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()] == ["::notice", "::notice"]
    file.write_text("{}{")
    assert run([*words, "--baseline", str(file)]) == ExitCode.USAGE


BOTH_FAIL = """
import torch
from torch import nn

class One(nn.Module):
    def forward(self, x): return x * 2 if x.sum() > 0 else x

class Other(nn.Module):
    def forward(self, x): return x * [1, 2][int(x.sum())]

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = One(), Other()
    def forward(self, x): return self.one(x) + self.other(x)

def build(): return Both(), (torch.zeros(3),)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_baseline_keeps_what_was_not_scanned_and_knows_a_file_by_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "both.py").write_text(BOTH_FAIL)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["--no-cure", "-q", "--baseline"]
    assert run(["scan", "both.py:build", *words, "b.json", "--update-baseline"]) == ExitCode.EXPORTS
    whole = Path("b.json").read_bytes()
    assert [*json.loads(whole)["failures"]] == ["both.py:build"]
    assert run(["scan", "both.py:build", "--module", "one", *words, "b.json", "--update-baseline"]) == ExitCode.EXPORTS
    assert Path("b.json").read_bytes() == whole
    assert "not asked kept" in capsys.readouterr().err
    assert run(["scan", str(tmp_path / "both.py:build"), *words, "b.json"]) == ExitCode.EXPORTS
    monkeypatch.chdir(tmp_path / "below")
    assert run(["scan", "../both.py:build", *words, "../b.json"]) == ExitCode.EXPORTS


def test_a_working_folder_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(["scan", "Qwen2.5-VL-3B"]) == ExitCode.USAGE
    assert "The working folder is gone" in capsys.readouterr().err


@pytest.mark.slow
def test_the_action_and_the_hook_run_a_scan_as_their_hosts_do(known_target: str, tmp_path: Path) -> None:
    """The action's step by the shell of a runner, the hook's entry with its arguments behind it."""
    (tmp_path / "exportdoctor").write_text(f'#!/bin/sh\nexec {sys.executable} -m exportdoctor "$@"\n')
    (tmp_path / "exportdoctor").chmod(0o755)
    summary = tmp_path / "summary.md"
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    install, check = action["runs"]["steps"]
    assert install["env"]["INSTALL"] == "${{ inputs.install || github.action_path }}"
    (tmp_path / "step.sh").write_text(check["run"])
    given = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(summary),
        "TARGET": known_target,
        "BASELINE": "",
        "ARGUMENTS": "--exhaustive  --fail-on any\n--out 'two words'\n",
    }
    assert given.keys() > check["env"].keys()
    step = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(tmp_path / "step.sh"))
    done = subprocess.run(step, env=environment(**given), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("::error ") == 2
    assert (tmp_path / "two words" / "report.json").exists()
    assert summary.read_text().startswith("# ")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert not hook["pass_filenames"]
    done = subprocess.run(hook["entry"].split(), env=environment(**given), capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "A TARGET is missing" in done.stderr


def test_a_kind_is_explained_with_rewrites_as_diffs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "data-dependent-guard"]) == ExitCode.EXPORTS
    shown = capsys.readouterr().out
    assert "    +    return torch.where(hidden.mean() > 0, hidden * 2, hidden * 4)" in shown
    assert "A traced program is a single sequence of operators." in shown
    assert run(["explain", "vmap", "--format", "md"]) == ExitCode.EXPORTS
    assert "```diff\n" in capsys.readouterr().out
    assert run(["explain", "data_dependent_gard"]) == ExitCode.USAGE
    assert "Did you mean 'data_dependent_guard'" in capsys.readouterr().err
    assert run(["explain", os.getcwd()]) == ExitCode.USAGE
    assert "name a finding of that run too" in capsys.readouterr().err


def test_a_finding_of_a_stored_run_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    stored(tuple(qwen_scan()))
    assert run(["explain", "f1", "--no-try"]) == ExitCode.EXPORTS
    shown = capsys.readouterr().out
    assert shown.startswith("F1 ")
    assert "Examples" in shown
    assert "torch documents this as not supported:\n    https://docs.pytorch.org/docs/stable/export.html#" in shown
    assert run(["explain", QWEN, "F9"]) == ExitCode.USAGE
    assert run(["explain", "F1", QWEN, "--no-try"]) == ExitCode.EXPORTS, "the run may stand behind the finding"
    assert "has no finding 'F9'. Its findings: F1" in capsys.readouterr().err
    assert run(["explain", "F1", "--format", "json", "--no-try"]) == ExitCode.EXPORTS
    assert json.loads(capsys.readouterr().out)["finding"]["id"] == "F1"


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_has_its_own_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == ExitCode.EXPORTS
    assert f"exportdoctor {verb}" in capsys.readouterr().out


def test_without_a_verb_the_help_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == ExitCode.USAGE
    told = capsys.readouterr()
    assert told.out == ""
    assert "Usage: exportdoctor" in told.err


def test_the_version_names_the_packages_that_decide(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == ExitCode.EXPORTS
    assert capsys.readouterr().out.startswith("exportdoctor ")


# what is asked for does not exist


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["scna"], "Did you mean 'scan'"),
        (["report", "--format", "htm"], "Did you mean 'html'?"),
        (["shims", "shwo", "x"], "Did you mean 'show'? See: exportdoctor shims --help"),
        (["scan"], "TARGET is missing"),
        (["scan", "Qwen2.5-VL-3B", "--bogus"], "--bogus"),
        (["scan", "Qwen2.5-VL-3B", "--exporter", "magic"], "export-strict"),
        (["scan", "Qwen2.5-VL-3B", "--part", "audio"], "vision"),
        (["scan", "Qwen2.5-VL-3B", "--image-size", "big"], "672x672"),
        (["scan", "Qwen2.5-VL-3B", "--image-size", "0x28"], "above zero"),
        (["scan", "Qwen2.5-VL-3B", "--image-size", "640x640"], "644"),
        (["scan", "Qwen2.5-VL-3B", "--timeout", "0"], "--timeout"),
        (["scan", "Qwen2.5-VL-3B", "--jobs", "none"], "--jobs"),
        (["scan", "Qwen2.5-VL-3BB"], "Qwen2.5-VL-3B"),
        (["scan", "no/such/folder/at/all"], "no/such/folder/at/all"),
        (["scan", "--resume", "nothing"], "nothing"),
        (["scan", "--resume", QWEN, "--part", "text"], "--part does not go with --resume"),
        (["scan", "Qwen2.5-VL-3B", "--resume", QWEN], "does not go with --resume"),
        (["report"], "no run yet"),
        (["report", "--format", "pdf"], "sarif"),
        (["known", "no", "such", "words"], "exportdoctor known"),
        (["completion", "tcsh"], "fish"),
    ],
)
def test_a_wrong_request_is_one_line_on_stderr(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert told in shown.err


def test_an_unwritable_home_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "file"))
    assert run(["scan", "Qwen2.5-VL-3B", "--no-cache"]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "cannot be created" in shown.err
    assert shown.err.count("\n") == 1


# scan


def test_a_scan_tells_its_result_on_stdout_and_all_else_on_stderr(
    known_target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scan", known_target, "--exhaustive"]) == ExitCode.FINDINGS
    shown = capsys.readouterr()
    assert "✗ model.visual" in shown.out
    assert "Nothing has changed since" in shown.out
    assert shown.out.rstrip().rpartition("\n\n")[2].startswith("Next\n  exportdoctor explain F1 ")
    assert "F1  get_vision_window_index" in shown.err
    assert "saved in" in shown.err
    newest = list_runs()[0]
    assert (newest.status, newest.exit_code, newest.findings) == ("finished", 1, 2)


def test_json_and_quiet(known_target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", known_target, "--exhaustive", "--json", "--quiet"]) == ExitCode.FINDINGS
    shown = capsys.readouterr()
    report: Report = decode(shown.out, Report)
    assert (len(report.findings), report.complete) == (2, True)
    assert shown.err == ""
    saved = (Path(list_runs()[0].path) / "report.json").read_text()
    assert saved == shown.out


def test_an_unchanged_scan_is_answered_without_torch(known_target: str) -> None:
    program = (
        "import sys; from exportdoctor.cli.main import run; code = run(sys.argv[1:]);"
        "print(code, *({'torch', 'transformers', 'networkx'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "scan", known_target, "--exhaustive", "--quiet"], env=environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr.split() == ["1"]


def test_a_folder_of_ones_own_is_used_once(
    known_target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run(["scan", known_target, "--exhaustive", "--quiet", "--out", out]) == ExitCode.FINDINGS
    assert {"events.jsonl", "report.json", "logs"} <= {path.name for path in Path(out).iterdir()}
    assert str(list_runs()[0].path) == out
    assert run(["scan", known_target, "--exhaustive", "--quiet", "--out", out]) == ExitCode.USAGE
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_costs_nothing_that_was_computed(
    known_target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "events.jsonl").symlink_to("/dev/full")
    assert run(["scan", known_target, "--exhaustive", "--out", str(tmp_path / "out")]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert "F2  sdpa_attention_forward" in shown.out
    assert "the disk is full" in shown.err.splitlines()[-1]
    assert "saved in" not in shown.err


def test_a_finished_run_resumed_is_only_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    stored(tuple(qwen_scan()))
    before = (runs_root() / QWEN / "events.jsonl").read_bytes()
    assert run(["scan", "--resume", QWEN]) == ExitCode.FINDINGS
    assert "837 modules" in capsys.readouterr().out
    assert (runs_root() / QWEN / "events.jsonl").read_bytes() == before


def test_a_run_whose_request_has_changed_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tuple(qwen_scan())[:-1])
    (path / ".request").write_text("of another version")
    assert run(["scan", "--resume", QWEN]) == ExitCode.USAGE
    assert "cannot be resumed" in capsys.readouterr().err


def test_two_runs_in_one_folder_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stored(tuple(qwen_scan())[:-1])
    with RunFolder.reopen(runs_root() / QWEN):
        assert run(["scan", "--resume", QWEN]) == ExitCode.USAGE
    assert "another process is using" in capsys.readouterr().err


# report, runs


@pytest.mark.parametrize("form", FORMS)
def test_a_stored_run_is_told_in_every_format(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tuple(qwen_scan()))
    assert run(["report", "--format", form]) == ExitCode.EXPORTS
    shown = capsys.readouterr().out
    assert "get_vision_window_index" in shown
    assert run(["report", QWEN[:12], "--format", form, "-o", str(tmp_path / "report")]) == ExitCode.EXPORTS
    assert (tmp_path / "report").read_text() == shown


def test_a_foreign_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_text("hello\n")
    assert run(["report", str(tmp_path)]) == ExitCode.USAGE
    assert "was not written by exportdoctor" in capsys.readouterr().err


def test_a_torn_run_is_told_as_far_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    file = stored(tuple(qwen_scan())) / "events.jsonl"
    file.write_bytes(file.read_bytes()[:-2000])
    assert run(["report"]) == ExitCode.EXPORTS
    assert f"scan --resume {QWEN}" in capsys.readouterr().out


def test_runs_are_listed_as_lines_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs"]) == ExitCode.EXPORTS
    assert "no runs yet" in capsys.readouterr().out
    stored(tuple(qwen_scan()))
    stored(tuple(passing_scan()), "20231115-000000-tiny-bb")
    assert run(["runs"]) == ExitCode.EXPORTS
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("finished" in line for line in lines)
    assert run(["runs", "--json"]) == ExitCode.EXPORTS
    assert {entry["run"] for entry in json.loads(capsys.readouterr().out)} == {QWEN, "20231115-000000-tiny-bb"}


def test_a_run_that_was_refused_is_not_the_newest_and_invites_nobody_to_resume_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stored(tuple(qwen_scan()))
    refused = "20991231-000000-qwen-zz"
    began = [event for event in qwen_scan() if isinstance(event, ev.RunStarted | ev.TargetOpened | ev.PartCaptured)]
    error = "No part calls a submodule 'pol'. Did you mean 'pool'?"
    stored((*began, ev.RunFinished(at=1, exit_code=2, seconds=1, complete=False, error=error)), refused)
    assert run(["report"]) == ExitCode.EXPORTS
    assert "Summary: 2 findings" in capsys.readouterr().out
    assert run(["report", refused]) == ExitCode.EXPORTS
    shown = capsys.readouterr().out
    assert "This run ended with an error: No part calls" in shown
    assert "--resume" not in shown
    assert "not tried: (root)" in shown


def test_a_run_whose_start_could_not_be_written_is_not_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    """As on a disk that was full."""
    path = stored(tuple(qwen_scan()))
    empty = path.with_name("20991231-000000-qwen-zz")
    empty.mkdir()
    (empty / "events.jsonl").touch()
    assert run(["report"]) == ExitCode.EXPORTS
    assert "Summary: 2 findings" in capsys.readouterr().out


def test_runs_are_deleted_by_name_and_only_among_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tuple(qwen_scan()))
    with RunFolder.create(tmp_path / "mine") as mine:
        for event in qwen_scan():
            mine.append(event)
    assert run(["runs", "--delete", "nothing"]) == ExitCode.USAGE
    assert run(["runs", "--delete", QWEN, "--delete", "nothing"]) == ExitCode.USAGE
    assert run(["runs", "--delete", str(mine.path)]) == ExitCode.USAGE
    assert "yours to delete" in capsys.readouterr().err
    assert path.is_dir()
    assert mine.path.is_dir()
    assert run(["runs", "--delete", QWEN[:20]]) == ExitCode.EXPORTS
    assert not path.exists()
    assert run(["runs"]) == ExitCode.EXPORTS
    assert "There are no runs yet" in capsys.readouterr().out


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    stored(tuple(qwen_scan()))
    process = subprocess.Popen(
        [sys.executable, "-m", "exportdoctor", "report", "--format", "json"], env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(30) == ExitCode.EXPORTS
    process.stderr.close()


def test_a_closed_stdout_is_no_error() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m exportdoctor runs >&-"], env=environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_known_issues_are_searched(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["known"]) == ExitCode.EXPORTS
    everything = capsys.readouterr().out
    assert run(["known", "DynamicCache", "pytree"]) == ExitCode.EXPORTS
    some = capsys.readouterr().out
    assert 0 < some.count("\n") < everything.count("\n")
    assert "pytorch/pytorch#" in some
    assert run(["known", "_Map_base::at"]) == ExitCode.EXPORTS  # as libstdc++ has it
    assert "pytorch/pytorch#172880" in capsys.readouterr().out
    assert run(["known", "cache", "--json"]) == ExitCode.EXPORTS
    assert all("cache" in json.dumps(issue).lower() for issue in json.loads(capsys.readouterr().out))


# completion, terminal interface


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == ExitCode.EXPORTS
    assert "_EXPORTDOCTOR_COMPLETE" in capsys.readouterr().out


@pytest.mark.slow
def test_presets_and_runs_are_completed() -> None:
    stored(tuple(qwen_scan()))
    asked = {"_EXPORTDOCTOR_COMPLETE": "bash_complete"}
    offered = child(**asked, COMP_WORDS="exportdoctor scan qwen", COMP_CWORD="2").stdout
    assert "Qwen2.5-VL-3B" in offered
    assert "file," not in offered, "bash's script drops what was offered where a file is offered too"
    assert "file," in child(**asked, COMP_WORDS="exportdoctor scan my_mod", COMP_CWORD="2").stdout
    assert QWEN in child(**asked, COMP_WORDS="exportdoctor report 2023", COMP_CWORD="2").stdout
    assert "scan" in child(**asked, COMP_WORDS="exportdoctor sc", COMP_CWORD="1").stdout


@pytest.mark.long
@pytest.mark.slow
def test_parts_submodules_findings_and_shims_are_completed() -> None:
    stored(tuple(qwen_scan()))

    def offered(line: str) -> list[str]:
        words = {"COMP_WORDS": f"exportdoctor {line}", "COMP_CWORD": str(len(line.split()) + line.endswith(" "))}
        shown = child(_EXPORTDOCTOR_COMPLETE="bash_complete", **words).stdout
        return [row.partition(",")[2] for row in shown.splitlines()]

    assert offered("scan Qwen2.5-VL-3B --part v") == ["vision", "video"]
    assert offered("scan Qwen2.5-VL-3B --module model.visual.m")[0] == "model.visual.merger"
    assert offered("repro F") == ["F1", "F2"]
    assert offered(f"repro {QWEN} ") == ["F1", "F2"]
    assert offered("export x --to pt2 --shims check-as-assertion+bl")[0].startswith("check-as-assertion+block-")
    assert offered("shims show check-as-a") == ["check-as-assertion"]


def test_a_missing_interface_is_told_with_the_command_that_installs_it() -> None:
    with pytest.raises(UsageError) as error:
        find_interface("exportdoctor.no.such.group")
    assert "pip install 'exportdoctor[tui]'" in error.value.line()


# trouble


def test_a_fault_of_our_own_is_one_line_and_a_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        1 / 0  # noqa: B018
    assert print_error(raised.value) == ExitCode.INTERNAL
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "ZeroDivisionError: division by zero" in line
    log = Path(line.rpartition("Traceback: ")[2].strip())
    assert log.is_relative_to(tmp_path / "home")
    assert "1 / 0" in log.read_text()


@pytest.mark.long
@pytest.mark.slow
def test_after_a_run_that_cannot_be_kept_no_command_about_it_is_proposed(tmp_path: Path) -> None:
    """`explain F1` was, and answered that the run has no findings."""
    (tmp_path / "gate.py").write_text(
        "import torch\nclass Gate(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x if x.sum() > 0 else -x\ndef build():\n    return Gate(), (torch.ones(3),)\n"
    )
    scan = f"{shlex.quote(sys.executable)} -m exportdoctor scan gate.py:build --no-cure -q --out kept"
    for limit, proposed in (("", True), ("ulimit -f 16; ", False)):
        done = subprocess.run(["bash", "-c", limit + scan], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "F1  Gate.forward" in done.stdout, done.stderr
        assert ("exportdoctor explain F1" in done.stdout) is proposed
        assert ("events.jsonl cannot be written: File too large" in done.stderr) is not proposed
        shutil.rmtree(tmp_path / "kept")


def test_what_click_takes_for_the_end_of_a_prompt_is_no_interruption(capsys: pytest.CaptureFixture[str]) -> None:
    """A file of compiled code that a full disk has cut off raises EOFError."""
    with pytest.raises(EOFError) as raised:
        marshal.loads(b"")
    abort = click.Abort()
    abort.__cause__ = raised.value
    assert print_error(abort) == ExitCode.INTERNAL
    assert "EOFError" in capsys.readouterr().err
    assert print_error(click.Abort()) == ExitCode.INTERRUPTED


def test_a_log_that_cannot_be_kept_at_home_is_kept_elsewhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert print_error(ZeroDivisionError("by nothing")) == ExitCode.INTERNAL
    assert Path(capsys.readouterr().err.rpartition("Traceback: ")[2].strip()).exists()


def test_a_fault_in_the_worker_is_one_line_with_its_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traceback was squashed onto that line, and cut in the middle."""
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path))
    try:
        [][0]
    except IndexError as error:
        refused = Refused.from_error(error)
    assert print_error(refused.to_error()) == ExitCode.INTERNAL
    (line,) = capsys.readouterr().err.splitlines()
    said, _, path = line.partition(" Traceback: ")
    assert said == (
        "exportdoctor: The worker failed: IndexError: list index out of range. This is a bug in exportdoctor: please "
        "report it."
    )
    assert Path(path).read_text().rstrip().endswith("IndexError: list index out of range")


def test_the_targets_own_stack_is_shown_before_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    stack = tuple(f"  frame {number}" for number in range(40))
    assert print_error(TargetError("the eager forward fails", hint="mend it", stack=stack)) == ExitCode.TARGET
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "exportdoctor: the eager forward fails. mend it"
    assert lines[-2] == "  frame 39"
    assert len(lines) < 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    interrupted = False
    with Interruption():
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        except KeyboardInterrupt:
            interrupted = True
    assert interrupted
    assert signal.getsignal(number) == before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As SIGHUP under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "error", [BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), RuntimeError("can't start new thread")]
)
def test_a_limit_of_processes_is_no_internal_error(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_error(error) == ExitCode.USAGE
    assert "ulimit -u" in capsys.readouterr().err


@pytest.mark.slow
def test_a_closed_stderr_is_no_error() -> None:
    command = f"exec {shlex.quote(sys.executable)} -m exportdoctor scan missing.py:build 2>&-"
    done = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, timeout=60, check=False)
    assert done.returncode == ExitCode.USAGE


def test_the_second_signal_ends_the_process_at_once() -> None:
    program = (
        "import os, signal, time; from exportdoctor.cli.interruption import Interruption\n"
        "with Interruption():\n"
        "    try: os.kill(os.getpid(), signal.SIGINT); time.sleep(30)\n"
        "    except KeyboardInterrupt: pass\n"
        "    time.sleep(0.2); os.kill(os.getpid(), signal.SIGINT); time.sleep(30)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], env=environment(), timeout=20, check=False).returncode == 130


def test_a_signal_that_timeout_sends_twice_counts_once() -> None:
    """To the process and to its group: a scan ended without a word, and without its report."""
    program = (
        "import time; from exportdoctor.cli.interruption import Interruption\n"
        "with Interruption():\n"
        "    try: print('ready', flush=True); time.sleep(30)\n"
        "    except KeyboardInterrupt: time.sleep(0.2); print('told', flush=True)\n"
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            process.send_signal(number)
        assert process.communicate(timeout=20)[0] == "told\n"


# progress


def test_plain_progress_is_a_line_for_each_thing_worth_knowing() -> None:
    told = io.StringIO()
    state = RunState()
    with LineProgress(told) as progress:
        for event in qwen_scan():
            progress.show(event, state.apply(event))
    lines = [line.split("  ", 1)[1] for line in told.getvalue().splitlines()]
    assert lines[0].endswith(f"run {QWEN}")
    assert "full: 837 modules captured" in lines
    assert sum(line.startswith(("F1 ", "F2 ")) for line in lines) == 2
    assert lines[-1].startswith("full: fails, 2 findings")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_display_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    state = RunState()
    with suppress(KeyboardInterrupt), LiveDisplay(terminal) as progress:
        for event in qwen_scan():
            progress.show(event, state.apply(event))
        raise KeyboardInterrupt
    shown = terminal.getvalue()
    assert "F1  get_vision_window_index" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1


# with the real engine


@pytest.fixture
def factory(tmp_path: Path) -> str:
    """A target whose forward passes, and whose export waits for longer than any test."""
    file = tmp_path / "slow.py"
    file.write_text(
        "import time, torch\n\n"
        "class Slow(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        if torch.compiler.is_exporting():\n"
        "            time.sleep(600)\n"
        "        return x + 1\n\n"
        "def build():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(2, 2), Slow()), (torch.ones(1, 2),)\n"
    )
    return f"{file}:build"


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupted_scan_saves_what_it_has_and_exits_130(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "exportdoctor", "scan", factory, "--exhaustive"], env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not _answers():
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "not tried" in out
    assert "scan --resume" in err
    assert list_runs()[0].status == "cut off"
    assert run(["runs"]) == 0
    assert "interrupted; default begun; no findings" in capsys.readouterr().out


def _answers() -> int:
    files = list(runs_root().glob("*/events.jsonl"))
    return sum(file.read_bytes().count(b'{"event":"probe_finished"') for file in files)


@pytest.mark.long
@pytest.mark.slow
def test_a_target_that_raises_is_told_with_its_own_stack(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def build():\n    raise LookupError('the weights are gone')\n")
    done = child("scan", f"{file}:build", "--quiet")
    assert done.returncode == ExitCode.TARGET
    assert done.stdout == ""
    assert "the weights are gone" in done.stderr.splitlines()[-1]
    assert "broken.py" in done.stderr


@pytest.mark.parametrize("file", ["absent.onnx", "model.bin"])
def test_numbers_refuses_a_file_that_it_cannot_compare_with(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["numbers", "Qwen2.5-VL-3B-tiny", "--against", file]) == ExitCode.USAGE
    assert file in capsys.readouterr().err


@pytest.mark.night
@pytest.mark.parametrize("verb", ["inputs", "numbers", "domain", "sensitivity --to fp16"])
def test_a_target_that_does_not_end_is_stopped_at_the_limit_that_was_given(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text("def build():\n    import time\n    time.sleep(1000)\n")
    assert run([*verb.split(), f"{tmp_path / 'model.py'}:build", "--build-timeout", "8"]) == ExitCode.TARGET
    assert "--build-timeout allows more" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
def test_a_limit_is_a_finite_number(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["scan", "x.py:build", "--timeout"],
        ["numbers", "x.py:build", "--draw"],
        ["sweep", "--target-timeout"],
    ):
        assert run([*words, number]) == ExitCode.USAGE
        assert words[-1] in capsys.readouterr().err


def test_a_file_whose_name_begins_with_a_dash_gets_a_folder() -> None:
    """The command that a scan suggested took it for an option."""
    from exportdoctor.cli.options import TargetType

    assert TargetType().convert("-net.py:build", None, None) == "./-net.py:build"
    assert TargetType().convert("net.py:build", None, None) == "net.py:build"
