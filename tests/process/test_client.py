"""Whatever a worker process does, a caller that waits gets a reply or an error that the process has ended."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from exportdoctor.core.protocol.repro import Candidate
from exportdoctor.core.protocol.scan import Open, Opened, Ready, ScanReply
from exportdoctor.core.records.target import TargetRef
from exportdoctor.process.client import LineClient, spawn
from exportdoctor.process.group import name_exit
from exportdoctor.process.launcher import Fork, Spawn, SpawnAhead

FIXTURES = Path(__file__).parents[2] / "fixtures"

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
REQUEST = Candidate(id="1", source="pass")


@contextmanager
def client_of(code: str) -> Iterator[LineClient]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with LineClient(process.pid, process.stdin, process.stdout, process) as client:
        yield client


def test_a_reply_is_what_the_process_wrote() -> None:
    with client_of(ECHO) as client:
        assert client.ask(REQUEST, Candidate) == REQUEST


def test_garbage_between_replies_is_left_out() -> None:
    with client_of("print('garbage\\n{\"id\":', flush=True)\n" + ECHO) as client:
        assert client.ask(REQUEST, Candidate) == REQUEST


def test_a_process_that_only_prints_garbage_gives_no_reply() -> None:
    with client_of("print('garbage')") as client:
        assert client.ask(REQUEST, Candidate) is None
        assert client.wait() == 0


def test_a_process_that_dies_gives_no_reply_and_its_signal() -> None:
    with client_of("import os, sys; sys.stdin.readline(); os.abort()") as client:
        assert client.ask(REQUEST, Candidate) is None
        assert name_exit(client.wait()) == "SIGABRT"
        assert client.ask(REQUEST, Candidate) is None


def test_closing_frees_the_thread_that_waits_for_a_process_that_never_answers() -> None:
    heard: list[object] = []
    with client_of("import time; time.sleep(60)") as client:
        waiting = threading.Thread(target=lambda: heard.append(client.ask(REQUEST, Candidate)))
        waiting.start()
        client.close()
        waiting.join(timeout=10)
        client.close()
    assert heard == [None]


@pytest.mark.slow
def test_closing_kills_what_the_process_has_started() -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n{ECHO}"
    with client_of(code) as client:
        assert client.ask(REQUEST, Candidate) == REQUEST
        (child,) = psutil.Process(client.pid).children()
    _, alive = psutil.wait_procs([child], timeout=10)
    assert all(one.status() == psutil.STATUS_ZOMBIE for one in alive)


def test_a_process_without_further_requests_may_end_by_itself() -> None:
    with client_of(ECHO) as client:
        client.finish()
        assert list(client.listen(Candidate)) == []
        assert client.wait() == 0


def test_what_a_spawned_process_prints_is_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with spawn("no_such_worker", log=log) as client:
        assert client.ask(REQUEST, Candidate) is None
    assert "no_such_worker" in log.read_text()


def test_a_client_of_a_forked_process_knows_how_it_ended() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(reader)
    client = LineClient(pid, os.fdopen(writer, "wb"), io.BytesIO())
    assert name_exit(client.wait()) == "SIGKILL"
    assert name_exit(client.wait()) == "SIGKILL"


def test_what_a_process_leaves_in_its_group_ends_when_its_end_is_seen() -> None:
    """And not when the client is closed: its number may be that of another group by then."""
    with client_of("import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)") as client:
        assert client.wait() == 0
        pid = int(client._replies.readline())
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(10)


@pytest.mark.long
@pytest.mark.parametrize("launcher", [Spawn(), Fork(None)], ids=["spawn", "fork"])
def test_a_worker_outlives_the_thread_that_started_it(launcher: Spawn | Fork) -> None:
    """The kernel's parent of a process is a thread: a worker was killed where the one that had replaced it ended."""
    with ThreadPoolExecutor(1) as threads:
        client = threads.submit(launcher.start, log=None).result()
        request = Open(target=TargetRef(ref=f"{FIXTURES / 'tolist_loop.py'}:build"))
        first = threads.submit(client.ask, request, ScanReply).result()
    with client:
        assert isinstance(first, Ready)
        assert isinstance(next(client.listen(ScanReply)), Opened)
        client.finish()
        assert client.wait() == 0


def test_a_worker_started_ahead_is_the_first_to_be_had_and_ends_if_nobody_takes_it() -> None:
    launcher = SpawnAhead(first := Spawn().start(log=None))
    with launcher.start(log=None) as taken:
        assert taken is first
        with launcher.start(log=None) as second:
            assert second.pid != first.pid
        launcher.close()
        assert psutil.pid_exists(first.pid)
    unused = Spawn().start(log=None)
    SpawnAhead(unused).close()
    assert unused.wait() == -signal.SIGKILL
