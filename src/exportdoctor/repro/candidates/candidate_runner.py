"""Runs candidate scripts in the process of worker/repro/candidate_server.py, one or several at a time."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.limits import CANDIDATE_MB, CANDIDATE_SECONDS
from exportdoctor.core.protocol.repro import Candidate
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.process.client import Closing, spawn
from exportdoctor.process.group import name_exit

# the candidates share the machine with us, and one thread is all that survives a fork
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class CandidateRunner(Closing):
    """A warm process that runs up to `width` candidates beside each other; a context manager that ends it.

    `timeout` is in seconds, `memory_mb` in MiB, for each candidate; `log` takes what they print.
    """

    def __init__(
        self,
        *,
        width: int = 1,
        timeout: float = CANDIDATE_SECONDS,
        memory_mb: float = CANDIDATE_MB,
        log: Path | None = None,
    ) -> None:
        self.width = width
        self.timeout = timeout
        self.memory_mb = memory_mb
        self.asked = 0
        self._log = log
        self._client = spawn("worker.repro.candidate_server", log=log, environment=ONE_THREAD)
        self._lock = threading.Lock()
        self._awaited: dict[str, Future[Outcome]] = {}
        self._lost = ""  # how the process ended
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self, source: str, *, eager: bool = False) -> Outcome:
        """The outcome of a script, which with `eager` must also run without export. Any thread may call this.

        Raises WorkerLost where the process itself has ended.
        """
        with self._lock:
            self.asked += 1
            candidate = Candidate(
                id=str(self.asked), source=source, timeout=self.timeout, memory_mb=self.memory_mb, eager=eager
            )
            awaited = self._awaited[candidate.id] = Future()
            if self._lost:
                self._fail_awaited()
            self._client.send(candidate)
        return awaited.result()

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the process and of the candidates that have ended, in seconds; 0 where it is not known."""
        return self._client.cpu_seconds()

    def _listen(self) -> None:
        """Hand each outcome to the thread that waits for it."""
        for outcome in self._client.listen(Outcome):
            awaited = self._awaited.pop(outcome.probe, None)
            if awaited is not None:
                awaited.set_result(outcome)
        end = name_exit(self._client.wait())
        with self._lock:
            self._lost = end
            self._fail_awaited()

    def _fail_awaited(self) -> None:
        while self._awaited:
            _, awaited = self._awaited.popitem()
            hint = f"Its output: {self._log}" if self._log else ""
            awaited.set_exception(
                WorkerLost(f"The process that runs candidate scripts has ended ({self._lost})", hint=hint)
            )

    def close(self) -> None:
        """End the process and what it runs; a thread that waits for an outcome gets WorkerLost."""
        self._client.close()
