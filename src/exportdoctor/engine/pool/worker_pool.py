"""Workers as an executor: submit a probe, get a future of its outcome.

The pool keeps the laws that a torch process cannot keep itself: an attempt ends at its deadline or its memory limit,
a lost worker is replaced and its probes are asked again, and no process outlives the pool.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections import deque
from concurrent.futures import Future, wait
from pathlib import Path

import msgspec

from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.outcome import Outcome, OutcomeStatus
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.scan import (
    Capture,
    Captured,
    Command,
    Open,
    Opened,
    Prepare,
    Prepared,
    ScanReply,
)
from exportdoctor.engine.pool.crash import death
from exportdoctor.engine.pool.launch import Launcher
from exportdoctor.engine.pool.running_probe import TICK, Flight, enforce
from exportdoctor.engine.pool.worker_client import Worker

_LOSSES_ALLOWED = 3


class Pool:
    """`jobs` attempts at a time. `opening` is what every worker is told first; `log` takes what workers print.

    A `patient` pool forgives a busy machine: an attempt that computes is measured by its processor time.
    """

    def __init__(self, launcher: Launcher, opening: Open, *, jobs: int, log: Path | None, patient: bool) -> None:
        self.launcher = launcher
        self.opening = opening
        self.jobs = jobs
        self.log = log
        self.patient = patient
        self.isolation = opening.isolation
        self.started: queue.SimpleQueue[tuple[Probe, int]] = queue.SimpleQueue()
        self.captures: dict[str, Capture] = {}
        self._workers: list[Worker] = []
        self._waiting: deque[Flight] = deque()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._watch_limits, name="limits", daemon=True)
        self._watch.start()

    def _watch_limits(self) -> None:
        while not self._closed.wait(TICK):
            with self._lock:
                flights = [f for w in self._workers for f in w.flights.values() if f.pid and f.fate is None]
            for flight in flights:
                enforce(flight, patient=self.patient)

    # --- opening and capturing: the first worker answers, later ones repeat it

    def open(self) -> Opened | Refused:
        """Start the first worker and build the target in it; it says whether it may fork."""
        with self._lock:
            worker = self._start()
        reply = self._ask(worker, self.opening)
        if isinstance(reply, Opened):
            self.isolation = reply.isolation
        return reply  # type: ignore[return-value]

    def attempt_early(self, command: Prepare, template: Probe) -> tuple[Prepared, Flight] | None:
        """Attempt a part's root, with `template`, while the part is captured. None where the part cannot be prepared.

        The flight counts once it is `adopted`; else it is to be thrown away with `abandon`.
        """
        try:
            reply = self._ask(self._first(), command)
        except WorkerLost:
            return None
        if not isinstance(reply, Prepared):
            return None
        flight = Flight(msgspec.structs.replace(template, fqn=reply.prefix), Future(), early=True)
        with self._lock:
            for worker in self._workers:
                worker.ready = worker.opened
            self._waiting.append(flight)
            self._dispatch()
        return reply, flight

    def adopt(self, flight: Flight, probe: Probe) -> Future[Outcome] | None:
        """An early flight answers `probe`, its own with the limits that are known by now; None where it was lost."""
        with self._lock:
            if flight.future.done() and flight.future.exception() is not None:
                return None
            flight.probe, flight.early = probe, False
            if flight.pid is not None:
                self.started.put((probe, flight.pid))
        return flight.future

    def abandon(self, flight: Flight) -> None:
        """End an early flight; the same probe may be submitted again afterwards."""
        with self._lock:
            if flight in self._waiting:
                self._waiting.remove(flight)
                return
        while not flight.future.done():
            if flight.pid is not None:
                flight.fate = (OutcomeStatus.CRASHED, "SIGKILL", "abandoned")
                with contextlib.suppress(OSError):
                    os.killpg(flight.pid, signal.SIGKILL)
            wait((flight.future,), timeout=TICK)

    def capture(self, command: Capture) -> Captured | Refused:
        """Capture a part; where the worker dies of it, once more in another, for it may have been killed from outside.

        Without forks every part must be captured before the first attempt.
        """
        try:
            reply = self._ask(self._first(), command)
        except WorkerLost:
            reply = self._ask(self._first(), command)
        if isinstance(reply, Captured):
            self.captures[command.part] = command
            with self._lock:
                for worker in self._workers:
                    worker.ready = worker.opened
        return reply  # type: ignore[return-value]

    def _first(self) -> Worker:
        """The worker that is told to capture: one that has the target open."""
        with self._lock:
            worker = next((worker for worker in self._workers if worker.opened), None)
            if worker is not None:
                return worker
            worker = self._start()
        for told in (self.opening, *self.captures.values()):
            reply = self._ask(worker, told)
            if isinstance(reply, Refused):
                raise WorkerLost(f"A new worker could not open the target again: {reply.message}")
        return worker

    def _start(self) -> Worker:
        worker = Worker(self.launcher.start(log=self.log))
        self._workers.append(worker)
        threading.Thread(target=self._read, args=(worker,), name="replies", daemon=True).start()
        return worker

    def _ask(self, worker: Worker, command: Command) -> ScanReply:
        return worker.ask(command, log=self.log)

    # --- attempts

    def submit(self, probe: Probe, *, urgent: bool = False) -> Future[Outcome]:
        """Queue a probe. Urgent ones go first, while one processor is left to the others."""
        flight = Flight(probe, Future(), urgent=urgent)
        with self._lock:
            if self._closed.is_set():
                raise WorkerLost("The pool is closed")
            self._waiting.append(flight)
            self._dispatch()
        return flight.future

    def _dispatch(self) -> None:
        """Hand waiting probes to workers that have room; call with the lock held."""
        forking = self.isolation == "fork"
        jobs = self.jobs if forking else 1  # the accelerator's memory holds the model once
        while self._waiting and sum(len(w.flights) for w in self._workers) < jobs:
            free = [w for w in self._workers if w.ready and (forking or not w.flights)]
            if not free:
                if not any(not w.ready for w in self._workers):
                    self._replace()
                return
            flight = self._next(jobs)
            flight.started = time.monotonic()
            free[0].attempt(flight)

    def _next(self, jobs: int) -> Flight:
        """A part's root, which decides what else is asked; else the first of the urgent ones or of the others."""
        busy = sum(flight.urgent for worker in self._workers for flight in worker.flights.values())
        wanted = busy < max(1, jobs - 1)
        flight = min(self._waiting, key=lambda one: (not one.early, one.urgent != wanted))
        self._waiting.remove(flight)
        return flight

    def _replace(self) -> None:
        """Bring up another worker in the background and give it what the first one was told."""
        worker = self._start()

        def bring_up() -> None:
            try:
                replies = [self._ask(worker, c) for c in (self.opening, *self.captures.values())]
                refused = next((reply for reply in replies if isinstance(reply, Refused)), None)
                if refused is not None:
                    raise WorkerLost(f"A new worker could not open the target again: {refused.message}")
            except WorkerLost as error:
                self._give_up(error)
                return
            with self._lock:
                worker.ready = True
                self._dispatch()

        threading.Thread(target=bring_up, name="bring-up", daemon=True).start()

    def _give_up(self, error: WorkerLost) -> None:
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for flight in waiting:
            flight.future.set_exception(error)

    def _read(self, worker: Worker) -> None:
        """Reader thread of one worker: runs until its replies end."""
        worker.listen(
            started=lambda probe, pid: self._took_off(worker, probe, pid),
            finished=lambda outcome, spoiled: self._landed(worker, outcome, spoiled=spoiled),
        )
        if not self._closed.is_set():
            self._lost(worker)

    def _took_off(self, worker: Worker, probe: str, pid: int) -> None:
        with self._lock:
            flight = worker.flights.get(probe)
            if flight is None:
                return
            flight.took_off(pid, worker=worker.channel.pid)
            if not flight.early:
                self.started.put((flight.probe, pid))

    def _landed(self, worker: Worker, outcome: Outcome, *, spoiled: bool) -> None:
        with self._lock:
            flight = worker.flights.pop(outcome.probe, None)
            if spoiled:
                self._drop(worker)
            if flight is not None and self._killed_from_outside(flight, outcome):
                self._waiting.appendleft(flight)
                flight = None
            self._dispatch()
        if flight is not None:
            flight.future.set_result(flight.ended(outcome))

    @staticmethod
    def _killed_from_outside(flight: Flight, outcome: Outcome) -> bool:
        """SIGKILL that neither we nor the kernel's memory killer sent says nothing of the module: ask once more."""
        if outcome.signal != "SIGKILL" or flight.fate is not None or flight.losses:
            return False
        flight.losses += 1
        return True

    def _lost(self, worker: Worker) -> None:
        """A worker is gone: ask its probes again elsewhere, unless one of them is what kills workers."""
        status = worker.channel.reap()
        failed: list[tuple[Flight, Outcome]] = []
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)
            for flight in worker.flights.values():
                if flight.early:  # no other worker knows its part
                    flight.future.set_exception(WorkerLost("The worker ended"))
                    continue
                flight.losses += 1
                alone = self.isolation != "fork"
                if flight.fate is not None or alone or flight.losses >= _LOSSES_ALLOWED:
                    outcome = Outcome(
                        probe=flight.probe.id, status=OutcomeStatus.CRASHED, signal=death(status),
                        seconds=time.monotonic() - flight.started, log=_log_of(self.opening, flight.probe),
                    )  # fmt: skip
                    failed.append((flight, outcome))
                else:
                    self._waiting.appendleft(flight)
            worker.flights.clear()
            self._dispatch()
        for flight, outcome in failed:
            flight.future.set_result(flight.ended(outcome))

    def _drop(self, worker: Worker) -> None:
        """Retire a spoiled worker; call with the lock held."""
        if worker in self._workers:
            self._workers.remove(worker)
        worker.dismiss()

    # --- the end

    def close(self) -> None:
        """Kill whatever runs and forget whatever waits."""
        self._closed.set()
        with self._lock:
            workers, self._workers = self._workers, []
            waiting, self._waiting = list(self._waiting), deque()
        for flight in waiting:
            flight.future.cancel()
        for worker in workers:
            worker.kill()
        self._watch.join(timeout=5)


def _log_of(opening: Open, probe: Probe) -> str | None:
    return os.path.join(opening.logs, f"{probe.id}.log") if opening.logs else None
