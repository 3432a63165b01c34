"""What `matrix` costs beside plain runs of its script, on lanes that exist: `python benchmarks/lane_cost.py 4.57.1`.

The script is a repro that imports torch and transformers. Plain runs and cells alternate; the whole command, with its
own start, is timed beside as many plain runs as it has cells. Seconds are by the clock, in brackets of the processor:
on a busy machine only the latter can be compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from exportdoctor.lanes.ask_in_lane import ask_script
from exportdoctor.lanes.lane import Lane, here, spec_of
from exportdoctor.lanes.lane_maker import make_lane

ROUNDS = 3
SCRIPT = """import torch
from transformers import DynamicCache


class Model(torch.nn.Module):
    def forward(self, x, cache):
        return x + 1


torch.export.export(Model(), (torch.ones(2), DynamicCache()))
"""


class Cost(NamedTuple):
    """Seconds by the clock and of the processor, ours and our children's."""

    wall: float
    cpu: float


def cost_of(run: Callable[[], object]) -> Cost:
    """What a call takes."""
    started, before = time.perf_counter(), os.times()
    run()
    after = os.times()
    return Cost(time.perf_counter() - started, sum(after[:4]) - sum(before[:4]))


def middle(costs: list[Cost]) -> Cost:
    """Median of each."""
    return Cost(median(one.wall for one in costs), median(one.cpu for one in costs))


def compare(title: str, plain: Cost, found: Cost) -> None:
    """Print both and their ratios."""
    ratios = f"ratio {found.wall / plain.wall:.2f} ({found.cpu / plain.cpu:.2f})"
    print(
        f"{title}: plain {plain.wall:.2f} s ({plain.cpu:.2f}), {found.wall:.2f} s ({found.cpu:.2f}), {ratios}",
        flush=True,
    )


def run_plainly(path: Path, lane: Lane) -> None:
    """The script as a user runs it in that lane."""
    environment = {**os.environ, **lane.environment}
    subprocess.run([lane.python, str(path)], env=environment, capture_output=True, check=False)


def main(versions: list[str]) -> None:
    """Print the ratios."""
    lanes = [here(), *(make_lane(spec_of({"transformers": one}), print) for one in versions)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "repro.py"
        path.write_text(SCRIPT)
        plains: list[Cost] = []
        for lane in lanes:
            plain, cells = [], []
            for _ in range(ROUNDS):
                plain.append(cost_of(lambda lane=lane: run_plainly(path, lane)))
                cells.append(cost_of(lambda lane=lane: ask_script(SCRIPT, lane, keep=True, again=True)))
            plains.append(middle(plain))
            compare(lane.spec.title, plains[-1], middle(cells))
        words = ["matrix", str(path), "--transformers", ",".join(versions), "--jobs", "1", "-q"]
        command = [sys.executable, "-m", "exportdoctor", *words]
        whole = cost_of(lambda: subprocess.run(command, capture_output=True, check=False))
        compare(f"the whole command, {len(lanes)} cells", Cost(*map(sum, zip(*plains))), whole)


if __name__ == "__main__":
    main(sys.argv[1:] or ["4.57.1"])
