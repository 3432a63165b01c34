"""The repro of each finding against a hand-written minimum: lines, verified or not, candidates, seconds, memory.

    python benchmarks/repro_table.py [fixture ...] [--seconds 33] [--show]
    python benchmarks/repro_table.py --run FOLDER [--bundle FOLDER]       the findings of a run that there is

The peak is that of all processes together (PSS, GB), the seconds are of the whole command but for Python's own start.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.repro.bundle import write_bundle
from exportdoctor.repro.candidates.budget import ReductionBudget
from exportdoctor.repro.pipeline import ReproRequest, ReproResult, make_repro
from exportdoctor.repro.script import code_lines
from exportdoctor.store.runs import StoredRun, read_run

FIXTURES = Path(__file__).parents[1] / "fixtures"
LIMITS = {"hang": ("--timeout", "8"), "memory_eater": ("--memory", "1500")}
BOUND = 1.5


def literal(path: Path, name: str) -> Any:
    """The literal that a fixture assigns to `name`; None where it has none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if getattr(target, "id", "") == name and node.value is not None:
                return ast.literal_eval(node.value)
    return None


def scanned(path: Path, out: Path) -> None:
    """Scan a fixture into the folder `out`."""
    exporter = literal(path, "EXPECTED")["exporter"]
    command = [sys.executable, "-m", "exportdoctor", "scan", f"{path}:build", "--exporter", exporter, "--no-cure",
               "--no-cache", "--quiet", "--out", str(out), *LIMITS.get(path.stem, ())]  # fmt: skip
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def peak_memory() -> Iterator[list[float]]:
    """The largest sum of PSS, in GB, over this process and its descendants while the block runs, in a list of one."""
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            peak[0] = max(peak[0], sum(map(_pss, family)) / 1e9)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def rows(name: str, run: StoredRun, least: dict[str, int], given: argparse.Namespace) -> Iterator[str]:
    """One line for each finding of a run; `least` gives the length of the hand-written script of each."""
    for finding in given.findings or run.state.findings:
        began, worked = time.monotonic(), _cpu()
        with peak_memory() as peak:
            try:
                budget = ReductionBudget(seconds=given.seconds, at_most=3 * given.seconds)
                made_by = f"exportdoctor repro {run.run} {finding}"
                request = ReproRequest(run=run, finding=finding, budget=budget, made_by=made_by)
                made = make_repro(request, _tell if given.verbose else lambda text: None)
            except ExportdoctorError as error:
                yield f"{name:32} {finding:4} {'-':>5} {least.get(finding, 0):>5}  no        {error.line()[:300]}"
                continue
            cost = Cost(time.monotonic() - began, _cpu() - worked, peak[0])
        yield row(f"{name:32} {finding:4}", made, least.get(finding, 0), cost)
        if given.show:
            yield "\n".join((made.text, *made.notes))
        if given.bundle:
            write_bundle(made, run, Path(given.bundle) / finding)


@dataclass(frozen=True)
class Cost:
    """Wall seconds, seconds of the processor by all processes, and GB of memory at the peak."""

    seconds: float
    cpu: float
    peak: float


def _cpu() -> float:
    own, children = os.times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.user + own.system + children.ru_utime + children.ru_stime


def row(name: str, made: ReproResult, least: int, cost: Cost) -> str:
    """One line of the table."""
    ratio = f"{made.lines / least:5.2f}{' ' if made.lines <= BOUND * least else '!'}" if least else "     - "
    seen = "yes" if made.sighting.verified else "NO"
    return (
        f"{name} {made.lines:>5} {least:>5} {ratio} {seen:4}{made.reduction.asked:>6} "
        f"{cost.seconds:6.1f} {cost.cpu:6.1f} {cost.peak:5.2f} "
        f"{made.reduction.ended:9} {'eager' if made.eager else '-':5} {', '.join(made.imports)}"
    )


def _tell(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


def minima(path: Path) -> dict[str, int]:
    """Lines of the hand-written scripts of a fixture, by finding: MINIMUM is that of the first."""
    return {
        "F1": code_lines(literal(path, "MINIMUM") or ""),
        "F2": code_lines(literal(path, "MINIMUM_OF_SECOND") or ""),
    }


def main() -> None:
    """Print the table; rows appear as they are made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fixtures", nargs="*")
    parser.add_argument("--findings", nargs="*", help="these findings only")
    parser.add_argument("--run", type=Path, help="a run's folder instead of fixtures")
    parser.add_argument("--seconds", type=float, default=33.0)
    parser.add_argument("--show", action="store_true", help="print each script too")
    parser.add_argument("--verbose", action="store_true", help="print progress on stderr")
    parser.add_argument("--bundle", help="write a bundle of each finding below this folder")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"{'':32} {'':4} lines least ratio  verif. asked   wall    cpu    GB ended     eager imports", flush=True)
    if given.run:
        for line in rows(given.run.name, read_run(given.run), {}, given):
            print(line, flush=True)
        return
    for path in sorted(FIXTURES.glob("*.py")):
        if literal(path, "MINIMUM") and (not given.fixtures or path.stem in given.fixtures):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                scanned(path, out)
                for line in rows(path.stem, read_run(out), minima(path), given):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
