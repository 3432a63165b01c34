"""Workers as an executor: submit a probe, get a future of its outcome.

The pool schedules: which probe goes to which worker, what is attempted again when a worker is lost. An attempt ends at
its limits, and no process outlives the pool.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

import msgspec

from exportdoctor.core.errors import MORE_PROCESSES, ExportdoctorError, TargetError, WorkerLost
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.scan import Capture, Captured, Command, Open, Opened, Prepare, Prepared, ScanReply
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.pool.running_probe import RunningProbe
from exportdoctor.engine.pool.worker_client import WorkerClient
from exportdoctor.process.group import name_exit
from exportdoctor.process.launcher import Launcher
from exportdoctor.process.supervise import TICK, Limits, build_limits

_LOSSES_ALLOWED = 3


class Pool:
    """`jobs` attempts at a time. `opening` is each worker's first command; `log` takes what workers print.

    Attempts measured `by_cpu_time` may take longer on a busy machine: the limit is on their processor time.
    `building` is what a worker may take while it builds or captures.
    `has_cut_log`: something printed too much to be kept.
    """

    def __init__(
        self,
        launcher: Launcher,
        opening: Open,
        *,
        jobs: int,
        log: Path | None,
        by_cpu_time: bool,
        building: Limits | None = None,
    ) -> None:
        self.launcher = launcher
        self.opening = opening
        self.building = building or build_limits()
        self.jobs = jobs
        self.log = log
        self.by_cpu_time = by_cpu_time
        self.isolation = opening.isolation
        self.started: queue.SimpleQueue[tuple[Probe, int]] = queue.SimpleQueue()
        self.captures: dict[str, Capture] = {}
        self.has_cut_log = False
        self._workers: list[WorkerClient] = []
        self._waiting: deque[RunningProbe] = deque()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._watch_limits, name="limits", daemon=True)
        self._watch.start()

    def _watch_limits(self) -> None:
        while not self._closed.wait(TICK):
            with self._lock:
                supervisors = [one.supervisor for worker in self._workers for one in worker.running.values()]
                supervisors += [worker.supervisor for worker in self._workers]
            for supervisor in filter(None, supervisors):
                supervisor.look()

    # --- opening and capturing: the first worker replies, later ones repeat it

    def open(self) -> Opened:
        """Start the first worker and build the target in it, once more where it is killed from outside.

        Raises UsageError, TargetError, WorkerLost.
        """
        reply = _accept(self._ask_twice(self._start_one, self.opening))
        assert isinstance(reply, Opened)
        self.isolation = reply.isolation
        return reply

    def capture_part(self, command: Capture) -> Captured:
        """Capture a part, once more where the worker is killed from outside.

        Without forks every part must be captured before the first attempt. Raises TargetError, also where the part's
        forward ends the process or exceeds the limits.
        """
        captured = _accept(self._ask_twice(self._opened_worker, command))
        assert isinstance(captured, Captured)
        self.captures[command.part] = command
        with self._lock:
            self._mark_ready()
        return captured

    def _ask_twice(self, find_worker: Callable[[], WorkerClient], command: Command) -> ScanReply:
        """The reply. A second SIGKILL is the target's doing: TargetError. Raises WorkerLost before torch is there."""
        try:
            return self._ask(find_worker(), command)
        except WorkerLost:
            worker = find_worker()
        try:
            return self._ask(worker, command)
        except WorkerLost as error:
            if not worker.imported:
                raise
            raise TargetError(error.message, hint=error.hint) from error

    def _mark_ready(self) -> None:
        for worker in self._workers:
            worker.ready = worker.opened

    def _opened_worker(self) -> WorkerClient:
        """A worker that has the target open, if need be a new one."""
        with self._lock:
            worker = next((worker for worker in self._workers if worker.opened), None)
            if worker is not None:
                return worker
            worker = self._start()
        self._bring_up(worker)
        return worker

    def _start_one(self) -> WorkerClient:
        with self._lock:
            return self._start()

    def _start(self) -> WorkerClient:
        """Raises WorkerLost where the system starts no further process or thread."""
        try:
            client = self.launcher.start(log=self.log)
        except OSError as error:
            raise _no_process(error) from error
        worker = WorkerClient(client)
        try:
            threading.Thread(target=self._read, args=(worker,), name="replies", daemon=True).start()
        except RuntimeError as error:
            worker.kill()
            raise _no_process(error) from error
        self._workers.append(worker)
        return worker

    def _bring_up(self, worker: WorkerClient) -> None:
        """Repeat what the first worker was asked. Raises WorkerLost."""
        for command in (self.opening, *self.captures.values()):
            reply = self._ask(worker, command)
            if isinstance(reply, Refused):
                raise WorkerLost(f"A new worker could not open the model again: {reply.message}")

    def _ask(self, worker: WorkerClient, command: Command) -> ScanReply:
        try:
            return worker.ask(command, log=self.log, limits=self.building)
        finally:
            self.has_cut_log |= worker.has_cut_log

    # --- early attempts

    def attempt_early(self, command: Prepare, template: Probe) -> tuple[Prepared, RunningProbe] | None:
        """Attempt a part's root, with `template`, while the part is captured. None where the part cannot be prepared.

        The attempt counts once it is adopted (`adopt`); else it is to be thrown away with `abandon`.
        """
        try:
            reply = self._ask(self._opened_worker(), command)
        except ExportdoctorError:  # its capture says why
            return None
        if not isinstance(reply, Prepared):
            return None
        probe = msgspec.structs.replace(template, fqn=reply.prefix)
        running = RunningProbe(probe, Future(), self.by_cpu_time, early=True, root=True)
        with self._lock:
            self._mark_ready()
            self._waiting.append(running)
            self._dispatch()
        return reply, running

    def adopt(self, running: RunningProbe, probe: Probe) -> Future[Outcome] | None:
        """Let an early attempt answer `probe`, its own with the limits known by now; None where it was lost."""
        with self._lock:
            if not running.is_abandoned:
                if running.future.done() and running.future.exception() is not None:
                    return None
                running.adopt(probe)
                if running.pid is not None:
                    self.started.put((probe, running.pid))
                return running.future
        self.abandon(running)
        return None

    def attempt_spare(self, probe: Probe) -> RunningProbe | None:
        """Attempt a probe that may be needed, where a processor idles; None where none does. As `attempt_early`."""
        with self._lock:
            free = next((worker for worker in self._workers if worker.ready), None)
            if free is None or not self.has_idle_job:
                return None
            running = RunningProbe(probe, Future(), self.by_cpu_time, early=True, urgent=True, spare=True)
            free.attempt(running)
        return running

    @property
    def has_idle_job(self) -> bool:
        """Whether attempts share a worker, and one more may run than there are."""
        with self._lock:
            running = sum(len(worker.running) for worker in self._workers)
            return self.isolation == "fork" and not self._waiting and running < self.jobs

    def discard(self, running: RunningProbe) -> None:
        """End an early attempt that is not needed, and remove what it printed."""
        self.abandon(running)
        if log := self._log_of(running.probe):
            Path(log).unlink(missing_ok=True)

    def abandon(self, running: RunningProbe) -> None:
        """End an early attempt; the same probe may be submitted again afterwards."""
        with self._lock:
            if running in self._waiting:
                self._waiting.remove(running)
                return
        while not running.future.done():
            running.abandon()
            wait((running.future,), timeout=TICK)

    # --- attempts

    def submit(self, probe: Probe, *, root: bool = False, urgent: bool = False) -> Future[Outcome]:
        """Queue a probe. Part roots go first, then urgent ones, while one processor is left to the others."""
        running = RunningProbe(probe, Future(), self.by_cpu_time, root=root, urgent=urgent)
        with self._lock:
            if self._closed.is_set():
                raise WorkerLost("The pool is closed")
            self._waiting.append(running)
            self._dispatch()
        return running.future

    def _dispatch(self) -> None:
        """Hand waiting probes to workers that have room; call with the lock held."""
        forking = self.isolation == "fork"
        jobs = self.jobs if forking else 1  # the accelerator's memory holds the model once
        while self._waiting and sum(len(worker.running) for worker in self._workers) < jobs:
            free = [worker for worker in self._workers if worker.ready and (forking or not worker.running)]
            if not free:
                if not any(not worker.ready for worker in self._workers):
                    self._replace_worker()
                return
            free[0].attempt(self._take_next(jobs))
        spare = [one for worker in self._workers for one in worker.running.values() if one.spare]
        kept = [one for one in spare if not one.is_abandoned]
        for one in kept[: max(0, len(self._waiting) - (len(spare) - len(kept)))]:
            one.abandon()

    def _take_next(self, jobs: int) -> RunningProbe:
        """The next probe: part roots first, then urgent ones unless enough of these run, else the oldest."""
        begun = [running for worker in self._workers for running in worker.running.values()]
        busy = sum(running.urgent and not running.spare for running in begun)
        wanted = busy < max(1, jobs - 1)
        running = min(self._waiting, key=lambda one: (not one.root, one.urgent != wanted))
        self._waiting.remove(running)
        return running

    def _replace_worker(self) -> None:
        """Bring up another worker in the background. Where none can be started, what waits for one fails."""

        def bring_up() -> None:
            try:
                self._bring_up(worker)
            except ExportdoctorError as error:
                self._fail_waiting(error)
                return
            with self._lock:
                worker.ready = True
                self._dispatch()

        try:
            worker = self._start()
            threading.Thread(target=bring_up, name="bring-up", daemon=True).start()
        except WorkerLost as error:
            self._fail_waiting(error)
        except RuntimeError as error:
            self._fail_waiting(_no_process(error))

    def _fail_waiting(self, error: ExportdoctorError) -> None:
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for running in waiting:
            running.future.set_exception(error)

    # --- replies: each worker has a thread that reads them

    def _read(self, worker: WorkerClient) -> None:
        worker.listen(
            on_started=lambda probe, pid: self._on_started(worker, probe, pid),
            on_finished=lambda outcome, spoiled: self._on_finished(worker, outcome, spoiled=spoiled),
        )
        if not self._closed.is_set():
            self._on_lost(worker)

    def _on_started(self, worker: WorkerClient, probe: str, pid: int) -> None:
        with self._lock:
            running = worker.running.get(probe)
            if running is None:
                return
            running.on_started(pid, worker=worker.client.pid, log=self._log_of(running.probe))
            if not running.early:
                self.started.put((running.probe, pid))

    def _on_finished(self, worker: WorkerClient, outcome: Outcome, *, spoiled: bool) -> None:
        with self._lock:
            running = worker.running.pop(outcome.probe, None)
            if running is not None and running.supervisor is not None:
                running.supervisor.cut_log()
                self.has_cut_log |= running.supervisor.has_cut_log
            if spoiled:
                self._retire(worker)
            if running is not None and _was_killed_from_outside(running, outcome):
                running.losses += 1
                self._waiting.appendleft(running)
                running = None
            self._dispatch()
        if running is not None:
            running.future.set_result(running.on_finished(outcome))

    def _on_lost(self, worker: WorkerClient) -> None:
        """Requeue the probes of a dead worker; one that has lost several workers is answered as crashed."""
        end = name_exit(worker.client.wait())
        worker.client.close()  # what it has started may live on
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)
            for running in worker.running.values():
                if running.early:  # no other worker knows its part
                    running.future.set_exception(WorkerLost("The worker ended"))
                elif not self._requeue(running):
                    running.future.set_result(running.on_finished(self._crash_outcome(running, end)))
            worker.running.clear()
            self._dispatch()

    def _requeue(self, running: RunningProbe) -> bool:
        """Let a probe wait again whose worker is gone; False where it is not to be asked again."""
        running.losses += 1
        alone = self.isolation != "fork"
        if running.kill_reason is not None or alone or running.losses >= _LOSSES_ALLOWED:
            return False
        self._waiting.appendleft(running)
        return True

    def _crash_outcome(self, running: RunningProbe, end: str) -> Outcome:
        probe = running.probe
        return Outcome(
            probe=probe.id,
            status=OutcomeStatus.CRASHED,
            signal=end,
            seconds=time.monotonic() - running.started,
            log=self._log_of(probe),
        )

    def _log_of(self, probe: Probe) -> str | None:
        logs = self.opening.logs
        return os.path.join(logs, f"{probe.id}.log") if logs else None

    def _retire(self, worker: WorkerClient) -> None:
        """Let a spoiled worker end; call with the lock held."""
        if worker in self._workers:
            self._workers.remove(worker)
        worker.client.finish()

    # --- the end

    def close(self) -> None:
        """Kill whatever runs and forget whatever waits."""
        self._closed.set()
        with self._lock:
            workers, self._workers = self._workers, []
            waiting, self._waiting = list(self._waiting), deque()
        for running in waiting:
            running.future.cancel()
        for worker in workers:
            worker.kill()
        self._watch.join(timeout=5)


def _no_process(error: Exception) -> WorkerLost:
    return WorkerLost(f"A worker cannot be started: {error}", hint=MORE_PROCESSES)


def _accept(reply: ScanReply) -> ScanReply:
    """The reply. Raises the error that a refusal stands for."""
    if isinstance(reply, Refused):
        raise reply.to_error()
    return reply


def _was_killed_from_outside(running: RunningProbe, outcome: Outcome) -> bool:
    """Whether someone else killed the attempt: SIGKILL without a reason of ours. It is then repeated once."""
    return outcome.signal == "SIGKILL" and running.kill_reason is None and not running.losses
