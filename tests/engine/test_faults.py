"""A dead process loses no result: workers are replaced, runs go on, no process is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from exportdoctor.core.codec import decode
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.events import RunStarted
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import RunState
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.scan import ScanRequest, scan
from exportdoctor.process import long_logs
from exportdoctor.process.launcher import Fork
from exportdoctor.report import wording
from exportdoctor.targets import resolve
from scanning import scan_file, scan_ref

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[2] / "fixtures"
SLOW_ENOUGH = f"{FIXTURES / 'tolist_loop.py'}:build"


def command(*words: str, home: Path) -> tuple[list[str], dict[str, str]]:
    """The command line's own process, with its runs in `home`."""
    return [sys.executable, "-m", "exportdoctor", *words], {**os.environ, "EXPORTDOCTOR_HOME": str(home)}


def descendants_of(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def ended(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive if process.is_running())


@pytest.mark.long
def test_a_killed_worker_is_replaced_and_the_answers_are_the_same() -> None:
    target, options = TargetRef(ref=SLOW_ENOUGH), ScanOptions(use_cache=False, exhaustive=True, jobs=1)
    started = RunStarted(run="r", target=target, options=options, version="0")
    state, killed = RunState().apply(started), False
    for event in scan(ScanRequest(target=target, options=options)):
        state.apply(event)
        if isinstance(event, ev.ProbeStarted) and not killed:
            with contextlib.suppress(psutil.NoSuchProcess):  # this attempt is over: then at the next one
                worker = psutil.Process(event.pid).parent()
                assert worker is not None
                os.kill(worker.pid, signal.SIGKILL)
                killed = True
    undisturbed = scan_ref(SLOW_ENOUGH, exhaustive=True)
    assert killed
    assert _verdicts(state.report()) == _verdicts(undisturbed)


@pytest.mark.long
def test_a_killed_run_resumes_without_asking_anything_twice(tmp_path: Path) -> None:
    words, environment = command(
        "scan", SLOW_ENOUGH, "--exhaustive", "--jobs", "1", "--no-cache", "--out", str(tmp_path / "run"), home=tmp_path
    )
    first = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / "run" / "events.jsonl"
    deadline = time.monotonic() + 120
    while not (journal.exists() and b'"probe_finished"' in journal.read_bytes()):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.02)
    left_behind = descendants_of(first.pid)
    first.kill()
    first.wait()
    assert ended(left_behind)
    answered = [event.probe.id for event in _events(journal) if isinstance(event, ev.ProbeFinished)]
    assert answered

    words, environment = command("scan", "--resume", str(tmp_path / "run"), "--json", home=tmp_path)
    done = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert done.returncode == 1, done.stderr.decode()
    report: Report = decode(done.stdout, Report)
    finished = [event.probe.id for event in _events(journal) if isinstance(event, ev.ProbeFinished)]
    assert len(finished) == len(set(finished))
    assert report.complete
    assert report.stats.asked_twice == report.stats.in_flight <= 1
    assert _verdicts(report) == _verdicts(scan_ref(SLOW_ENOUGH, exhaustive=True))


@pytest.mark.long
def test_interrupting_a_scan_saves_the_best_so_far_and_leaves_nobody_behind(tmp_path: Path) -> None:
    words, environment = command(
        "scan", f"{FIXTURES / 'hang.py'}:build", "--no-cache", "--out", str(tmp_path / "run"), home=tmp_path
    )
    running = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    journal = tmp_path / "run" / "events.jsonl"
    deadline = time.monotonic() + 120
    while not (journal.exists() and b'"probe_started"' in journal.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    processes = descendants_of(running.pid)
    assert processes
    running.send_signal(signal.SIGINT)
    _, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert ended(processes)
    report: Report = decode((tmp_path / "run" / "report.json").read_bytes(), Report)
    assert not report.complete


@pytest.mark.long
def test_a_fork_never_finalises_what_the_process_it_came_from_has_made(tmp_path: Path) -> None:
    """An inference session's destructor, run in a fork, waits for ever for threads that only the parent has."""
    marker, home, thresholds = tmp_path / "finalised", os.getpid(), gc.get_threshold()

    class Session:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if os.getpid() != home:
                marker.touch()

    gc.collect()
    gc.set_threshold(50_000)  # so that it is the fork that collects first
    try:
        Session()
        scan_ref(SLOW_ENOUGH)
    finally:
        gc.set_threshold(*thresholds)
    assert not marker.exists()


@pytest.mark.long
def test_closing_the_events_ends_every_process() -> None:
    request = ScanRequest(target=TargetRef(ref=f"{FIXTURES / 'hang.py'}:build"), options=ScanOptions(use_cache=False))
    events = scan(request)
    for event in events:
        if isinstance(event, ev.ProbeStarted):
            break
    mine = descendants_of(os.getpid())
    assert mine
    events.close()  # type: ignore[attr-defined]
    assert ended(mine)


def _events(journal: Path) -> list[ev.AnyEvent]:
    lines = journal.read_bytes().split(b"\n")
    return [decode(line, ev.AnyEvent) for line in lines[:-1]]


def _verdicts(report: Report) -> dict[str, str]:
    return {module.fqn: module.status for module in report.parts[0].modules}


@pytest.mark.long
@pytest.mark.parametrize("fixture", ["data_dependent_int", "segfault"])
def test_workers_that_are_replaced_give_the_answers_that_forks_give(fixture: str) -> None:
    """As beside a CUDA context, which survives no fork."""
    forks, workers = (scan_file(FIXTURES / f"{fixture}.py", isolation=how) for how in ("fork", "process"))
    assert [(one.fqn, one.status) for one in workers.parts[0].modules] == [
        (one.fqn, one.status) for one in forks.parts[0].modules
    ]
    assert [(one.kind, one.module, one.line) for one in workers.findings] == [
        (one.kind, one.module, one.line) for one in forks.findings
    ]


PRINTER = """
import os
import torch

class M(torch.nn.Module):
    def forward(self, x):
        for number in range(3000):
            os.write(1, b"x" * 999 + b"\\n")
        return x + 1 if x.sum() > 0 else x

def build():
    return M(), (torch.ones(2),)
"""


def test_a_forward_that_prints_without_end_is_told_and_its_logs_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_logs, "LOG_MB", 2)
    (tmp_path / "target.py").write_text(PRINTER)
    target, logs = TargetRef(ref=f"{tmp_path / 'target.py'}:build"), tmp_path / "logs"
    logs.mkdir()
    options = ScanOptions(use_cache=False, cure=False)
    request = ScanRequest(target=target, options=options, logs=logs)
    events = list(scan(request, Fork(resolve(target))))
    notes = [event.text for event in events if isinstance(event, ev.NoteAdded)]
    assert [note for note in notes if note == wording.long_log_note()] == [wording.long_log_note()]
    files = [file for file in logs.iterdir() if file.stat().st_size]
    assert len(files) == 2  # of the worker and of the attempt
    for file in files:
        assert file.stat().st_size < 2 * 2**20
        assert "are left out here]" in file.read_text()


REFUSING = """
import torch
from torch import nn


def refuse(self, *_):
    raise NotImplementedError


def refusing(base, *names):
    members = dict.fromkeys(("__len__", "__iter__", "__eq__", "__bool__", "__repr__", *names), refuse)
    return type(f"Own{base.__name__}", (base,), members | {"__hash__": base.__hash__})


VALUES = (
    refusing(list, "__getitem__")([1, 2]), refusing(tuple)((1, -1)), refusing(set)([1]), refusing(str)("ab"),
    refusing(dict, "items", "keys", "values", "__getitem__")(a=1), refusing(int)(3), refusing(object, "__getattr__")(),
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 3)
        for place, value in enumerate(VALUES):
            setattr(self, f"value{place}", value)
            setattr(self.up, f"value{place}", value)

    def forward(self, x):
        x = self.up(x)
        return x * 2 if x.sum() > 0 else x


def build():
    return Model().eval(), (torch.ones(2, 3),)
"""


@pytest.mark.long
@pytest.mark.slow
def test_values_that_refuse_to_be_looked_at_are_no_failure_of_the_forward(tmp_path: Path) -> None:
    """Story: e3nn keeps tuples in its modules whose `len` raises. "The eager forward fails" was said of each model."""
    (tmp_path / "refusing.py").write_text(REFUSING)
    report = scan_file(tmp_path / "refusing.py", cure=True)
    assert report.parts[0].verdict == "cured"
    assert [(one.kind, one.module) for one in report.findings] == [("data_dependent_guard", "")]
    assert report.parts[0].prescription is not None
    assert report.parts[0].prescription.proof is not None
