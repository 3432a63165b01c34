"""The repro of each fixture's findings against its hand-written minimum: lines, verified or not, candidates, seconds.

python benchmarks/repro_table.py [fixture ...] [--seconds 60]
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.repro.making import Made, Order, make
from exportdoctor.repro.reduction import Budget, code_lines
from exportdoctor.store.runs import read_run

FIXTURES = Path(__file__).parents[1] / "fixtures"
LIMITS = {"hang": ("--timeout", "8"), "memory_eater": ("--memory", "1500")}


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


def row(path: Path, finding: str, made: Made | str, seconds: float) -> str:
    """One line of the table."""
    least = code_lines(literal(path, "MINIMUM") or "")
    if isinstance(made, str):
        return f"{path.stem:32} {finding:4} {'-':>5} {least:>5}  no        {made[:300]}"
    ratio = made.lines / least if least else 0.0
    seen = "yes" if made.sighting.verified else "NO"
    return (
        f"{path.stem:32} {finding:4} {made.lines:>5} {least:>5} {ratio:5.2f}  {seen:4}"
        f"{made.reduction.asked:>6} {seconds:6.1f}s  {made.reduction.ended:9} {', '.join(made.imports)}"
    )


def main() -> None:
    """Print the table; rows appear as they are made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fixtures", nargs="*")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--show", action="store_true", help="print each script too")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(
        f"{'fixture':32} {'':4} {'lines':>5} {'least':>5} ratio  verified asked   time  ended     imports", flush=True
    )
    for path in sorted(FIXTURES.glob("*.py")):
        if literal(path, "MINIMUM") and (not given.fixtures or path.stem in given.fixtures):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                scanned(path, out)
                run = read_run(out)
                for name in run.state.findings:
                    began = time.monotonic()
                    made: Made | str
                    try:
                        made = make(
                            Order(run=run, finding=name, budget=Budget(seconds=given.seconds)), lambda text: None
                        )
                    except ExportdoctorError as error:
                        made = error.line()
                    print(row(path, name, made, time.monotonic() - began), flush=True)
                    if given.show and not isinstance(made, str):
                        print(made.text, *made.notes, sep="\n", flush=True)


if __name__ == "__main__":
    main()
