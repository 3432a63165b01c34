"""What a sweep costs beside its scans: 300 targets that are refused at once, and a few trivial ones for comparison.

    python benchmarks/sweep_overhead.py [--targets 300] [--jobs 1]

A target's time is what its scan took by its own clock; the overhead is the rest of the sweep's, on each of its nodes.
Also the processor time of the cluster's own processes while nothing is asked, as a share of one core each.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import psutil

from exportdoctor.sweep.cluster import ask_all, open_cluster
from exportdoctor.sweep.target_task import SweepAnswer, SweepTask

_TRIVIAL = """
import torch
def build():
    return torch.nn.Linear(2, 2).eval(), (torch.ones(3, 2),)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--targets", type=int, default=300)
    parser.add_argument("--scans", type=int, default=5, help="trivial targets that are really scanned")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, open_cluster(jobs=given.jobs, memory_mb=4000) as client:
        folder = Path(name)
        (folder / "trivial.py").write_text(_TRIVIAL)
        scans = [_task(folder, f"scan-{number}", f"{folder}/trivial.py:build") for number in range(given.scans)]
        refused = [_task(folder, f"none-{number}", f"{folder}/none.py:build") for number in range(given.targets)]
        ask_all(client, refused[:1], lambda _: None)  # the node imports what it needs
        scan_seconds, _ = _measure(client, scans)
        _, overhead = _measure(client, refused[1:])
        idle = _idle_shares()
    each = scan_seconds / len(scans)
    print(f"{len(refused)} targets on {given.jobs} node(s): {1000 * overhead:.1f} ms of overhead for each")
    print(f"the cluster's processes, idle: {', '.join(f'{share:.1%}' for share in idle)} of a core")
    print(f"a trivial scan takes {each:.2f} s: the overhead is {overhead / (overhead + each):.2%} of it")


def _idle_shares(seconds: float = 20.0) -> list[float]:
    """For this process and those of the cluster that use a processor at all, which share of one."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    before = [sum(one.cpu_times()[:2]) for one in processes]
    time.sleep(seconds)
    used = (sum(one.cpu_times()[:2]) - then for one, then in zip(processes, before, strict=True))
    return [share / seconds for share in used if share > 0]


def _measure(client: object, tasks: list[SweepTask]) -> tuple[float, float]:
    """Seconds that the scans took, and the overhead in seconds for each target."""
    answers: list[SweepAnswer] = []
    begun = time.monotonic()
    ask_all(client, tasks, answers.append)
    wall = time.monotonic() - begun
    assert sorted(answer.name for answer in answers) == sorted(task.name for task in tasks)
    asked = sum(run.seconds for answer in answers for run in answer.runs)
    nodes = len(client.nthreads())  # type: ignore[attr-defined]
    return asked, (wall * nodes - asked) / len(tasks)


def _task(folder: Path, name: str, ref: str) -> SweepTask:
    return SweepTask(
        name=name, ref=ref, folder=str(folder / "runs" / name), sizes=("static",), words=("--no-cure",), timeout=120,
        memory_mb=4000, key=name, session=os.urandom(4).hex(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
