"""What `matrix` costs beside plain runs of its script, on lanes that exist: `python benchmarks/lane_cost.py 4.57.1`.

The script is a repro that imports torch and transformers. Plain runs and cells alternate; the whole command, with its
own start, is timed beside as many plain runs as it has cells.
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

from exportdoctor.lanes.lane import Lane, here, spec_of
from exportdoctor.lanes.lane_maker import make_lane
from exportdoctor.lanes.lane_questions import ask_script

ROUNDS = 5
SCRIPT = """import torch
from transformers import DynamicCache


class Model(torch.nn.Module):
    def forward(self, x, cache):
        return x + 1


torch.export.export(Model(), (torch.ones(2), DynamicCache()))
"""


def seconds(run: Callable[[], object]) -> float:
    """Wall seconds."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


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
        everything = 0.0
        for lane in lanes:
            plain, cells = [], []
            for _ in range(ROUNDS):
                plain.append(seconds(lambda lane=lane: run_plainly(path, lane)))
                cells.append(seconds(lambda lane=lane: ask_script(SCRIPT, lane, keep=True, again=True)))
            everything += median(plain)
            ratio = median(cells) / median(plain)
            print(f"{lane.spec.title}: plain {median(plain):.2f} s, cell {median(cells):.2f} s, ratio {ratio:.2f}")
        words = ["matrix", str(path), "--transformers", ",".join(versions), "--jobs", "1", "-q"]
        command = [sys.executable, "-m", "exportdoctor", *words]
        whole = seconds(lambda: subprocess.run(command, capture_output=True, check=False))
        print(f"the whole command with {len(lanes)} cells: {whole:.2f} s, ratio {whole / everything:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["4.57.1"])
