"""The Dask cluster of a sweep: local processes, or any that a scheduler's address names.

No more tasks are submitted at a time than there are threads, so that the loss of a node touches only what it ran.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from exportdoctor.core.errors import UsageError
from exportdoctor.core.exception_text import summary
from exportdoctor.sweep.target_task import (
    HASH_SEED,
    AnswerStatus,
    SweepAnswer,
    SweepTask,
    answer_without_run,
    ask_target,
)

MEMORY = "memory_mb"
"""The resource that a worker declares: `dask worker --resources memory_mb=16000`."""
_CONNECT = 5.0
_NO_NODE = 60.0
_LOOK = 0.5
_RARE_LOOKS = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "10s",
}
"""By default each of Dask's processes looks at itself up to a hundred times a second, beside the scans: 3 to 7 % of a
core each. Nobody sees a dashboard of a local cluster."""


def default_memory_mb(jobs: int) -> float:
    """The share of the memory that is available for one of `jobs` targets, in MiB."""
    return float(psutil.virtual_memory().available) / 2**20 / jobs * 0.9


@contextmanager
def open_cluster(*, jobs: int, memory_mb: float, scheduler: str = "") -> Iterator[Any]:
    """A Dask client whose workers have our versions. Raises UsageError where there is no such cluster."""
    import dask
    from distributed import Client, LocalCluster
    from distributed.comm.addressing import resolve_address

    for name in ("distributed", "distributed.client", "distributed.scheduler", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    dask.config.set({"distributed.comm.timeouts.connect": f"{_CONNECT:g}s"})
    if scheduler:
        try:
            resolve_address(scheduler)  # a client of what is no address complains when it is collected
            client = Client(scheduler, timeout=_CONNECT, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise UsageError(
                f"the scheduler {scheduler!r} cannot be reached: {type(error).__name__}",
                hint="Start one with: dask scheduler",
            ) from error
        with client:
            _refuse_other_versions(client)
            _refuse_too_little_memory(client, memory_mb)
            yield client
        return
    with (
        _hash_seed_kept(),
        dask.config.set(_RARE_LOOKS),
        LocalCluster(
            n_workers=jobs,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
            resources={MEMORY: memory_mb},
            preload=["exportdoctor.sweep.cluster"],
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def dask_setup(worker: Any) -> None:
    """Dask calls this in each process of a local cluster. Ctrl-C reaches them, too; what becomes of it is decided by
    the process that has started them.

    A function that does nothing, and not `SIG_IGN`, which scans would inherit.
    """
    signal.signal(signal.SIGINT, lambda *_: None)


@contextmanager
def _hash_seed_kept() -> Iterator[None]:
    """Dask gives its processes a PYTHONHASHSEED, and leaves it in ours, where digests of later runs would see it."""
    before = os.environ.get(HASH_SEED)
    try:
        yield
    finally:
        os.environ.pop(HASH_SEED, None)
        os.environ |= {HASH_SEED: before} if before is not None else {}


def _refuse_other_versions(client: Any) -> None:
    """Answers of two versions must not mix in one atlas."""
    try:
        client.wait_for_workers(1, timeout=_CONNECT)
    except TimeoutError as error:
        raise UsageError("the scheduler has no workers", hint="Start one with: dask worker ADDRESS") from error
    ours = {name: found for name, found in child_environment().items() if name != "folder"}
    try:
        environments = client.run(child_environment)
    except Exception as error:  # no exportdoctor there, say, or another Dask
        raise UsageError(
            f"a worker cannot run exportdoctor: {summary(error)}", hint="Use the same environment on all nodes"
        ) from error
    for worker, theirs in environments.items():
        for name in sorted({*ours, *theirs} - {"folder"}):
            if ours.get(name) != theirs.get(name):
                here, there = ours.get(name) or "none", theirs.get(name) or "none"
                raise UsageError(
                    f"the worker {worker} has {name} {there}, and this process {name} {here}",
                    hint="Use the same environment on all nodes",
                )


def ask_all(client: Any, tasks: Sequence[SweepTask], tell: Callable[[SweepAnswer], None]) -> None:
    """Ask each task once, and once more where its node was lost; `tell` is called with each answer as it comes.

    Raises UsageError where the scheduler goes away, or no node is left.
    """
    waiting, again = list(reversed(tasks)), set[str]()
    running: dict[Any, SweepTask] = {}
    last_node = time.monotonic()
    nodes, needs_memory = set[str](), False
    ended = threading.Event()
    while waiting or running:
        threads = client.nthreads() if client.status == "running" else {}
        if threads and nodes != threads.keys():
            nodes, needs_memory = set(threads), bool(_declared_memory(client))
        slots = sum(threads.values())
        if slots:
            last_node = time.monotonic()
        elif client.status in ("closed", "closing") or time.monotonic() - last_node > _NO_NODE:
            raise _cluster_gone("the cluster has no node left")
        while waiting and len(running) < slots:
            task = waiting.pop()
            future = _submit(client, task, needs_memory=needs_memory)
            running[future] = task
            future.add_done_callback(lambda _: ended.set())
        ended.wait(_LOOK)
        ended.clear()
        for future in [future for future in running if future.done() or future.cancelled()]:
            task = running.pop(future)
            answer = _result(future)
            if answer is None and task.name not in again:
                again.add(task.name)
                waiting.append(task)
            else:
                tell(answer or answer_without_run(task, AnswerStatus.LOST, "the node that asked was lost twice"))


def _submit(client: Any, task: SweepTask, *, needs_memory: bool) -> Any:
    needs = {"resources": {MEMORY: task.memory_mb}} if needs_memory else {}
    return client.submit(ask_target, task, key=f"{task.name}-{os.urandom(4).hex()}", pure=False, retries=0, **needs)


def _declared_memory(client: Any) -> list[float]:
    """What the workers that declare memory have, in MiB."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return [float(one["resources"][MEMORY]) for one in workers if MEMORY in one.get("resources", {})]


def _refuse_too_little_memory(client: Any, memory_mb: float) -> None:
    """A target that needs more than any worker has would wait for ever."""
    declared = _declared_memory(client)
    if declared and max(declared) < memory_mb:
        raise UsageError(
            f"a target may take {memory_mb:.0f} MiB, and no worker declares more than {max(declared):.0f}",
            hint=f"Give --target-memory {max(declared):.0f}",
        )


def _result(future: Any) -> SweepAnswer | None:
    """The answer; None where the node was lost. Raises what the task raised; UsageError if the scheduler has gone."""
    from distributed import KilledWorker

    if future.status == "finished":
        answer: SweepAnswer = future.result()
        return answer
    if future.status != "error":
        raise _cluster_gone("the scheduler has gone")
    error = future.exception()
    if isinstance(error, KilledWorker):
        return None
    raise error


def _cluster_gone(what: str) -> UsageError:
    return UsageError(what, hint="The same command with the same --out asks what is left")


def child_environment() -> dict[str, str]:
    """What answers depend on, of the process in which this runs."""
    import platform

    from exportdoctor.core.versions import installed_versions

    names = ("exportdoctor", "torch", "transformers", "onnx", "onnxscript", "onnxruntime", "dask", "distributed")
    return {"python": platform.python_version(), **installed_versions(names), "folder": os.getcwd()}
