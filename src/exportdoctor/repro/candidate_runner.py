"""Runs candidate scripts in the process of worker/repro/candidate_server.py, one or several at a time."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from types import TracebackType

from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.limits import CANDIDATE, CANDIDATE_MB
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.protocol.repro import Candidate
from exportdoctor.process.client import spawn

# the candidates share the machine with us, and one thread is all that survives a fork
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class CandidateRunner:
    """A warm process that runs up to `width` candidates beside each other; a context manager that ends it.

    `timeout` is in seconds, `memory_mb` in MiB, for each candidate; `log` takes what they print.
    """

    def __init__(
        self, *, width: int = 1, timeout: float = CANDIDATE, memory_mb: float = CANDIDATE_MB, log: Path | None = None
    ) -> None:
        self.width = width
        self.timeout = timeout
        self.memory_mb = memory_mb
        self.asked = 0
        self._log = log
        self._client = spawn("worker.repro.candidate_server", log=log, environment=ONE_THREAD)
        self._lock = threading.Lock()
        self._awaited: dict[str, queue.SimpleQueue[Outcome | None]] = {}
        self._lost = False
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self, source: str, *, eager: bool = False) -> Outcome:
        """The outcome of a script, which with `eager` must also run without export. Any thread may call this.

        Raises WorkerLost where the process itself has ended.
        """
        reply: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        with self._lock:
            self.asked += 1
            candidate = Candidate(
                id=str(self.asked), source=source, timeout=self.timeout, memory_mb=self.memory_mb, eager=eager
            )
            if self._lost:
                reply.put(None)
            else:
                self._awaited[candidate.id] = reply
                self._client.send(candidate)
        outcome = reply.get()
        if outcome is None:
            raise WorkerLost("The process that runs candidate scripts has ended", hint=f"Its output: {self._log}")
        return outcome

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the process and of the candidates that have ended, in seconds; 0 where it is not known."""
        return self._client.cpu_seconds()

    def _listen(self) -> None:
        """Hand each outcome to the thread that waits for it, and None to all that wait when the process ends."""
        for outcome in self._client.listen(Outcome):
            awaited = self._awaited.pop(outcome.probe, None)
            if awaited is not None:
                awaited.put(outcome)
        with self._lock:
            self._lost = True
            while self._awaited:
                self._awaited.popitem()[1].put(None)

    def close(self) -> None:
        """End the process and what it runs; a thread that waits for an outcome gets WorkerLost."""
        self._client.close()

    def __enter__(self) -> CandidateRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
