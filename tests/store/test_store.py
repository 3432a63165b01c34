"""Properties of the run's folder, the list of runs and the caches."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import ExitCode, StoreError, UsageError
from exportdoctor.core.failure.kinds import KIND_OF_STATUS
from exportdoctor.core.file_hash import VARIABLE, WORKER_DEFAULTS, variable_identity
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.store import digest, journal
from exportdoctor.store.atomic_write import replace_file
from exportdoctor.store.digest import changed_sources, file_digest, probe_digest, request_digest, shared_digest
from exportdoctor.store.lock import is_held
from exportdoctor.store.outcome_cache import OutcomeCache
from exportdoctor.store.places import new_run_id, slug
from exportdoctor.store.run_cache import RunCache, replay
from exportdoctor.store.run_folder import REPORT, RunFolder
from exportdoctor.store.runs import find_run, list_runs, read_run, register
from synthetic import passing_scan, qwen_scan, started

PASSING = tuple(passing_scan())
RUN = "20231114-221320-tiny-build-aa"
LINES = b"".join(encode(event) + b"\n" for event in PASSING)


def record(path: Path, events: tuple[ev.AnyEvent, ...] = PASSING) -> Path:
    """A run's folder with these events in it."""
    with RunFolder.create(path) as folder:
        for event in events:
            folder.append(event)
        folder.write_report(fold(events).report())
    return path


def file_of(folder: Path, data: bytes) -> Path:
    """A folder whose events.jsonl holds `data`; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / journal.NAME).write_bytes(data)
    return folder / journal.NAME


# the journal


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    events = tuple(qwen_scan())
    assert read_run(record(tmp_path / "run", events)).events == events


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(min_value=0, max_value=len(LINES)))
def test_a_file_cut_at_any_byte_reads_as_a_prefix(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    file = file_of(tmp_path_factory.mktemp("cut"), LINES[:cut])
    events = journal.read_events(file)
    assert events == PASSING[: len(events)]
    assert len(events) == LINES[:cut].count(b"\n")


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(min_value=0, max_value=len(LINES)), max_size=6))
def test_reading_a_growing_file_gives_each_event_once(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    file = file_of(tmp_path_factory.mktemp("grow"), b"")
    reader = journal.EventReader(file)
    seen: list[ev.AnyEvent] = []
    for cut in [*sorted(cuts), len(LINES)]:
        file.write_bytes(LINES[:cut])
        seen.extend(reader.read_new())
    assert tuple(seen) == PASSING


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(min_value=LINES.index(b"\n") + 1, max_value=len(LINES) - 1))
def test_going_on_after_a_torn_line_loses_only_that_line(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    file = file_of(tmp_path_factory.mktemp("torn"), LINES[:cut])
    with RunFolder.reopen(file.parent) as folder:
        kept = folder.events
        folder.append(ev.NoteAdded(text="later"))
    assert kept == PASSING[: LINES[:cut].count(b"\n")]
    assert journal.read_events(file) == (*kept, ev.NoteAdded(text="later"))


def test_a_run_cut_off_in_its_first_line_has_no_events_to_continue(tmp_path: Path) -> None:
    file = file_of(tmp_path / "torn", LINES[:10])
    with RunFolder.reopen(file.parent) as folder:
        assert folder.events == ()
    with pytest.raises(StoreError, match="before its first event"):
        read_run(file.parent)


def test_kinds_of_a_later_version_are_skipped(tmp_path: Path) -> None:
    lines = LINES.splitlines(keepends=True)
    lines.insert(2, b'{"event":"shim_blessed","at":1.0,"by":{"whom":["nobody"]}}\n')
    assert journal.read_events(file_of(tmp_path, b"".join(lines))) == PASSING


def test_keys_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    data = LINES.replace(b'"event":"run_finished",', b'"event":"run_finished","mood":"good",')
    assert data != LINES
    assert journal.read_events(file_of(tmp_path, data)) == PASSING


@pytest.mark.parametrize(
    "data", [b"hello\n", b"{}\n", b"[1]\n", b"\x00\xff\n", b"torn and foreign", LINES.split(b"\n")[1] + b"\n"]
)
def test_a_foreign_file_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(StoreError, match="was not written by exportdoctor"):
        journal.read_events(file_of(tmp_path, data))


def test_a_newer_schema_is_refused_with_both_names(tmp_path: Path) -> None:
    data = LINES.replace(b"exportdoctor.events/1", b"exportdoctor.events/2")
    with pytest.raises(StoreError, match=r"events/2.*events/1"):
        journal.read_events(file_of(tmp_path, data))


def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path) -> None:
    lines = LINES.splitlines(keepends=True)
    lines[3] = b'{"event":"part_captured","at":"never"}\n'
    with pytest.raises(StoreError, match="line 4 is damaged") as told:
        journal.read_events(file_of(tmp_path, b"".join(lines)))
    assert "3 lines before it are whole" in told.value.hint
    assert journal.read_events(file_of(tmp_path, b"".join(lines[:3]))) == PASSING[:3]


def test_a_last_line_of_zeros_counts_as_torn(tmp_path: Path) -> None:
    assert journal.read_events(file_of(tmp_path, LINES + b"\x00" * 512 + b"\n")) == PASSING


def test_a_missing_file_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        journal.read_events(tmp_path / journal.NAME)


def test_only_the_wanted_kinds_are_given(tmp_path: Path) -> None:
    events = journal.read_events(file_of(tmp_path, LINES), only=("run_started", "part_finished"))
    assert [type(event) for event in events] == [ev.RunStarted, ev.PartFinished]


# the folder


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    record(tmp_path / "run")
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder.create(tmp_path / "run")
    assert read_run(tmp_path / "run").events == PASSING


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run"):
        with pytest.raises(StoreError, match=rf"another process is using .*process {os.getpid()}"):
            RunFolder.create(tmp_path / "run")
        with pytest.raises(StoreError, match="another process is using"):
            RunFolder.reopen(tmp_path / "run")
    assert not is_held(tmp_path / "run")


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from exportdoctor.store.run_folder import RunFolder;"
        "folder = RunFolder.create(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "run"], stdout=subprocess.PIPE, env=_environment()
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    assert is_held(tmp_path / "run")
    child.kill()
    child.wait()
    child.stdout.close()
    assert not is_held(tmp_path / "run")


def test_a_path_that_is_a_file_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(StoreError, match="is a file, not a folder"):
        RunFolder.create(tmp_path / "run")


def test_an_unwritable_folder_is_told_in_one_line(tmp_path: Path) -> None:
    # no user, not even root, can make a folder below a file
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be created"):
        RunFolder.create(tmp_path / "file" / "run")


def test_the_report_is_whole_or_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    replace_file(target, b"first")
    target.chmod(0o644)
    (tmp_path / f".report.json.{os.getpid()}").mkdir()  # the draft cannot be opened
    with pytest.raises(StoreError, match="cannot be written"):
        replace_file(target, b"second")
    assert target.read_bytes() == b"first"


def test_a_link_is_followed_and_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_bytes(b"before")
    link, lost = tmp_path / "link.txt", tmp_path / "lost.txt"
    link.symlink_to("real.txt")
    lost.symlink_to("new.txt")
    replace_file(link, b"after")
    replace_file(lost, b"made")
    assert link.is_symlink()
    assert lost.is_symlink()
    assert [(tmp_path / name).read_bytes() for name in ("real.txt", "new.txt")] == [b"after", b"made"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = b"x" * 300_000  # more than a pipe holds
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        replace_file(pipe, data)
        assert read.result(timeout=20) == data
    assert pipe.is_fifo()


def test_a_device_that_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")  # a link, so that no mistake replaces the machine's own
    with pytest.raises(StoreError, match="full cannot be written: the disk is full"):
        replace_file(tmp_path / "full", b"x")
    assert (tmp_path / "full").is_char_device()


def test_report_json_is_what_the_events_say(tmp_path: Path) -> None:
    events = tuple(qwen_scan())
    stored = (record(tmp_path / "run", events) / REPORT).read_bytes()
    assert decode(stored, Report) == fold(events).report()


def test_when_the_disk_refuses_the_events_go_on_and_the_file_stays_whole(tmp_path: Path) -> None:
    """A file size limit refuses a write in its middle, as a full disk does."""
    program = (
        "import resource, signal, sys; from pathlib import Path; from synthetic import qwen_scan;"
        "from exportdoctor.store.run_folder import RunFolder; folder = RunFolder.create(Path(sys.argv[1]));"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "print(sum(1 for _ in folder.record_all(qwen_scan())), folder.trouble)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "run"],
        env=_environment() | {"PYTHONDONTWRITEBYTECODE": "1"},  # it would be cut off, too
        capture_output=True,
        text=True,
        check=True,
    )
    events = tuple(qwen_scan())
    count, _, trouble = done.stdout.partition(" ")
    assert int(count) == len(events)
    assert "cannot be written" in trouble
    kept = read_run(tmp_path / "run").events
    assert kept == events[: len(kept)]
    assert (tmp_path / "run" / journal.NAME).read_bytes().endswith(b"\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_called_so(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / journal.NAME)
    with RunFolder.create(tmp_path) as folder:
        assert tuple(folder.record_all(PASSING)) == PASSING
    assert folder.trouble is not None
    assert "the disk is full" in folder.trouble.line()
    assert folder.trouble.exit_code == ExitCode.USAGE


# the list


def test_runs_are_listed_newest_first_with_their_verdicts(tmp_path: Path) -> None:
    record(tmp_path / "20240101-a", tuple(qwen_scan()))
    record(tmp_path / "20240102-b")
    record(tmp_path / "20240103-c", PASSING[:5])
    for age, name in enumerate(("20240103-c", "20240102-b", "20240101-a")):
        os.utime(tmp_path / name / journal.NAME, (1000 - age, 1000 - age))
    first, second, third = list_runs(tmp_path)
    assert (first.run, first.status) == ("20240103-c", "cut off")
    assert (second.run, second.status, second.parts, second.exit_code) == (
        "20240102-b",
        "finished",
        {"full": "passes"},
        0,
    )
    assert (third.parts, third.findings, third.ref) == ({"full": "fails"}, 2, "Qwen2.5-VL-3B")


def test_a_run_in_progress_is_listed_as_running(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.append(started())
        assert list_runs(tmp_path)[0].status == "running"
    assert list_runs(tmp_path)[0].status == "cut off"


@pytest.mark.parametrize(("code", "status"), [(2, "error"), (3, "error"), (4, "error"), (130, "cut off")])
def test_a_run_that_ended_with_an_error_was_not_cut_off(code: int, status: str, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.append(started())
        folder.append(ev.RunFinished(exit_code=code, seconds=1.0, complete=False, error="it ended"))
    assert list_runs(tmp_path)[0].status == status


def test_a_finished_run_stays_finished_when_a_repro_is_added_to_it(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        for event in qwen_scan():
            folder.append(event)
        folder.append(next(event for event in qwen_scan() if isinstance(event, ev.FindingMade)))
    assert (list_runs(tmp_path)[0].status, list_runs(tmp_path)[0].exit_code) == ("finished", 1)
    with RunFolder.reopen(tmp_path / "run") as folder:
        folder.append(ev.RunResumed(version="0"))
    assert list_runs(tmp_path)[0].status == "cut off"


def test_an_unreadable_run_is_listed_with_its_problem(tmp_path: Path) -> None:
    file_of(tmp_path / "foreign", b"hello\n")
    file_of(tmp_path / "empty", b"")
    assert {run.run: run.status for run in list_runs(tmp_path)} == {"foreign": "unreadable", "empty": "unreadable"}
    assert all(run.problem for run in list_runs(tmp_path))


def test_a_run_is_found_by_id_start_path_and_age(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    old = record(root / "20240101-000000-qwen-aa")
    new = record(root / "20240102-000000-tiny-bb")
    os.utime(old / journal.NAME, (1000, 1000))
    assert find_run(None, root) == new
    assert find_run("20240101", root) == old
    assert find_run("TINY", root) == new
    assert find_run(str(old), root) == old
    with pytest.raises(UsageError, match="matches 2 runs"):
        find_run("2024", root)
    with pytest.raises(UsageError, match="no run matches"):
        find_run("20250101", root)
    with pytest.raises(UsageError, match="there is no run yet"):
        find_run(None, tmp_path / "nowhere")


def test_a_run_that_is_added_to_later_is_not_the_newest_and_one_that_goes_on_is(tmp_path: Path) -> None:
    later = (msgspec.structs.replace(event, at=event.at + 1000) for event in qwen_scan())
    new = record(tmp_path / "20240102-000000-tiny-bb", tuple(later))
    old = record(tmp_path / "20240101-000000-qwen-aa", tuple(qwen_scan()))
    with RunFolder.reopen(old) as folder:
        folder.append(next(event for event in qwen_scan() if isinstance(event, ev.FindingMade)))
    assert find_run(None, tmp_path) == new
    assert [one.run for one in list_runs(tmp_path)] == [new.name, old.name]
    with RunFolder.reopen(old) as folder:
        folder.append(ev.RunResumed(version="0", at=time.time()))
    assert find_run(None, tmp_path) == old


def test_a_run_elsewhere_is_found_by_its_id_until_it_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    elsewhere = record(tmp_path / "build" / "diagnosis")
    register("20240101-000000-qwen-aa", elsewhere, root)
    assert find_run("20240101", root) == elsewhere
    assert [run.run for run in list_runs(root)] == ["20240101-000000-qwen-aa"]
    (elsewhere / journal.NAME).unlink()
    assert list_runs(root) == ()


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("Qwen2.5-VL-3B", "qwen2.5-vl-3b"),
        ("Qwen/Qwen2.5-VL-3B-Instruct", "qwen2.5-vl-3b-instruct"),
        ("/tmp/my models/tiny llama/", "tiny-llama"),
        ("fixtures/nonzero.py:build", "nonzero-build"),
        ("…", "target"),
        ("", "target"),
    ],
)
def test_a_run_is_named_after_its_target(ref: str, expected: str) -> None:
    assert slug(ref) == expected
    assert new_run_id(ref, at=0).startswith(f"19700101-000000-{expected}-")


# the caches


def test_an_unchanged_request_is_answered_by_its_run(tmp_path: Path) -> None:
    cache = RunCache(tmp_path / "cache")
    path = record(tmp_path / "run")
    cache.remember("digest", run=RUN, path=path, state=fold(PASSING))
    found = cache.find("digest")
    assert found is not None
    assert found.events == PASSING
    assert cache.find("another") is None


def test_a_variable_that_the_client_sets_for_workers_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent does not have it; torch 2.9 reads one whenever it is asked for a GPU."""
    monkeypatch.setenv("OF_MINE", "now")
    read = {VARIABLE + name: variable_identity(name, WORKER_DEFAULTS) for name in (*WORKER_DEFAULTS, "OF_MINE")}
    assert changed_sources(read) == (VARIABLE + "OF_MINE",)


def test_a_changed_source_or_a_vanished_run_is_a_miss(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("x = 1")
    events = tuple(_with_sources(PASSING, {str(source): file_digest(source)}))
    path = record(tmp_path / "run", events)
    cache = RunCache(tmp_path / "cache")
    cache.remember("digest", run=RUN, path=path, state=fold(events))
    assert cache.find("digest") is not None
    source.write_text("x = 2")
    assert changed_sources({str(source): "other"}) == (str(source),)
    assert cache.find("digest") is None
    source.write_text("x = 1")
    assert cache.find("digest") is not None
    (path / journal.NAME).unlink()
    assert cache.find("digest") is None


@pytest.mark.parametrize("status", list(KIND_OF_STATUS))
def test_answers_that_a_limit_decided_are_not_kept(tmp_path: Path, status: OutcomeStatus) -> None:
    outcome = Outcome(probe="p", status=status)
    with OutcomeCache(tmp_path / "c.sqlite") as cache:
        cache.add("key", outcome)
        assert cache.get("key") is None
    events = tuple(
        msgspec.structs.replace(event, outcome=outcome) if isinstance(event, ev.ProbeFinished) else event
        for event in PASSING
    )
    runs = RunCache(tmp_path / "cache")
    runs.remember("d", run=RUN, path=record(tmp_path / "run", events), state=fold(events))
    assert runs.find("d") is None


def test_what_could_not_be_attempted_is_kept(tmp_path: Path) -> None:
    outcome = Outcome(probe="p", status=OutcomeStatus.NOT_APPLICABLE)
    with OutcomeCache(tmp_path / "c.sqlite") as cache:
        cache.add("key", outcome)
        assert cache.get("key") == outcome
        cache.remove("key")
        assert cache.get("key") is None
    events = tuple(
        msgspec.structs.replace(event, outcome=outcome) if isinstance(event, ev.ProbeFinished) else event
        for event in PASSING
    )
    runs = RunCache(tmp_path / "cache")
    runs.remember("d", run=RUN, path=record(tmp_path / "run", events), state=fold(events))
    assert runs.find("d") is not None


def test_a_run_replay_gives_the_same_verdicts_and_says_that_they_are_old(tmp_path: Path) -> None:
    earlier = tuple(qwen_scan())
    path = record(tmp_path / "run", earlier)
    (path / "logs" / "3f2a.txt").write_text("partial graph")
    first = started(run="now")
    with RunFolder.create(tmp_path / "again") as folder:
        folder.share_logs(path)
        again = fold(tuple(replay(read_run(path), started=first, logs=folder.logs))).report()
    before = fold(earlier).report()
    assert again.run == "now"
    assert again.parts == before.parts
    assert [finding.id for finding in again.findings] == [finding.id for finding in before.findings]
    assert again.findings[0].log == str(tmp_path / "again" / "logs" / "3f2a.txt")
    assert Path(again.findings[0].log).read_text() == "partial graph"
    assert again.stats.answered_from_cache == again.stats.probes == before.stats.probes


def test_answers_outlive_the_process_and_count_as_the_question_asked(tmp_path: Path) -> None:
    outcome = Outcome(probe="p", status=OutcomeStatus.PASSED, seconds=1.5)
    with OutcomeCache(tmp_path / "c.sqlite") as cache:
        cache.add("key", outcome)
    with OutcomeCache(tmp_path / "c.sqlite") as cache:
        assert cache.get("key") == outcome
        assert cache.get("other") is None


def test_the_cache_keeps_what_was_used_last_within_its_bound(tmp_path: Path) -> None:
    file = tmp_path / "c.sqlite"
    with OutcomeCache(file, limit_mb=1) as cache:
        for number in range(40):  # each about 0.1 MiB, and not compressible
            cache.add(f"key{number}", Outcome(probe=os.urandom(50_000).hex(), status=OutcomeStatus.PASSED))
    with OutcomeCache(file, limit_mb=1) as cache:
        kept = [number for number in range(40) if cache.get(f"key{number}") is not None]
    assert kept
    assert len(kept) < 40
    assert kept == list(range(40 - len(kept), 40))


def test_a_damaged_or_unusable_cache_is_a_miss(tmp_path: Path) -> None:
    file = tmp_path / "c.sqlite"
    file.write_bytes(b"not a database at all, but long enough to look like one" * 40)
    with OutcomeCache(file) as cache:
        assert cache.get("key") is None
        cache.add("key", Outcome(probe="p", status=OutcomeStatus.PASSED))
    with OutcomeCache(file) as cache:  # begun anew
        cache.add("key", Outcome(probe="p", status=OutcomeStatus.PASSED))
        assert cache.get("key") is not None
    (tmp_path / "file").write_text("")
    with OutcomeCache(tmp_path / "file" / "c.sqlite") as cache:
        cache.add("key", Outcome(probe="p", status=OutcomeStatus.PASSED))
        assert cache.get("key") is None


@pytest.mark.slow
def test_a_digest_changes_with_everything_that_an_answer_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, probe = ScanOptions(), Probe(part="full", fqn="a")
    changes: tuple[dict[str, Any], ...] = ({"to": "onnx"}, {"shims": ("s",)}, {"dynamic": ()}, {"opaque": True})
    digests = [
        request_digest({"config": 1}, plain),
        request_digest({"config": 2}, plain),
        request_digest({"config": 1}, ScanOptions(exporter="export-strict")),
        request_digest({"config": 1}, ScanOptions(exhaustive=True)),
        request_digest({"config": 1}, ScanOptions(cure=False)),
        shared_digest({"a.py": "1"}, plain, {"factory": "a.py:one"}),
        shared_digest({"a.py": "2"}, plain, {"factory": "a.py:one"}),
        shared_digest({"a.py": "2"}, plain, {"factory": "a.py:two"}),
        probe_digest("q", probe, rest="r"),
        probe_digest("q", probe, rest="other"),
        *(probe_digest("q", msgspec.structs.replace(probe, **change), rest="r") for change in changes),
    ]
    monkeypatch.setenv("TORCH_SOMETHING", "1")
    digests.append(request_digest({"config": 1}, plain))
    assert len(set(digests)) == len(digests)


def test_a_digest_does_not_change_with_limits_and_speed() -> None:
    patient = ScanOptions(jobs=7, timeout=900.0, memory_mb=1.0, use_cache=False)
    assert request_digest({}, ScanOptions()) == request_digest({}, patient)
    probe, other = Probe(part="full", fqn="a"), Probe(part="vision", fqn="b", call=1, timeout=1.0, memory_mb=1.0)
    assert probe_digest("q", probe, rest="r") == probe_digest("q", other, rest="r")


def _with_sources(events: tuple[ev.AnyEvent, ...], sources: dict[str, str]) -> tuple[ev.AnyEvent, ...]:
    return tuple(
        ev.TargetOpened(at=event.at, opened=msgspec.structs.replace(event.opened, sources=sources))
        if isinstance(event, ev.TargetOpened)
        else event
        for event in events
    )


def _environment() -> dict[str, str]:
    """For a child process: this one's import path."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def test_answers_of_another_version_of_any_room_are_other_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the rooms that make the words of an answer, or read torch's private state for it."""
    rooms = [folder.name for folder in digest._PACKAGE.iterdir() if (folder / "__init__.py").exists()]
    files = [tmp_path / room / "inner" / "code.py" for room in rooms]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("words = 1")
    monkeypatch.setattr(digest, "_PACKAGE", tmp_path)
    seen = {request_digest({}, ScanOptions())}
    for file in files:
        file.write_text("words = 2")
        seen.add(request_digest({}, ScanOptions()))
    assert len(seen) == len(files) + 1


def test_runs_of_the_same_second_have_each_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two random letters alone are the same once in a thousand times, and the second scan ended with code 2."""
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path))
    names = []
    for _ in range(400):
        names.append(new_run_id("model.py:build", at=0.0))
        (tmp_path / "runs" / names[-1]).mkdir(parents=True)
    assert len(set(names)) == len(names)
