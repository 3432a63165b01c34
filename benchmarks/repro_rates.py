"""How many findings on models that no test lists get a short script of their own, and how soon.

    python benchmarks/repro_rates.py [--runs FOLDER] [--only NAME ...] [--show]

Scans the modules of failing_modules.py, and makes the repro of each finding by the command line, with its defaults
(unseen.py does so for models). With `--runs` scans are kept there and not made again. A script is good if it is
verified, imports torch alone, has at most 25 lines of code and took at most 120 seconds of the processor.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from failing_modules import TARGETS

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.repro.script import code_lines
from exportdoctor.store.runs import read_run

MODULES = Path(__file__).with_name("failing_modules.py")
LINES, SECONDS = 25, 120.0
_PATIENCE = 180.0  # seconds for a scan


@dataclass(frozen=True)
class Row:
    """What became of one finding. `imports` has Python's own packages too; `why` is there where no script is."""

    name: str
    finding: str
    kind: str
    lines: int
    imports: tuple[str, ...]
    verified: bool
    cpu: float
    wall: float
    why: str

    @property
    def good(self) -> bool:
        """Whether the script is what a maintainer wants."""
        return self.verified and self.imports == ("torch",) and self.lines <= LINES and self.cpu <= SECONDS

    def __str__(self) -> str:
        mark = "good" if self.good else "    "
        verified = "yes" if self.verified else "no "
        what = self.why or ", ".join(self.imports)
        return (
            f"{mark} {self.name:28.28} {self.finding:3} {self.kind:24.24} {self.lines:>4} {verified} "
            f"{self.cpu:6.1f} {self.wall:6.1f}  {what[:160]}"
        )


def scan(target: str, out: Path, *options: str) -> list[str]:
    """The findings of a target; an earlier scan in the same folder counts."""
    if not out.is_dir():
        command = [sys.executable, "-m", "exportdoctor", "scan", target, "--no-cache", "--quiet", "--out", str(out)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*command, *options],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_PATIENCE,
                check=False,
            )
    try:
        return list(read_run(out).state.findings)
    except ExportdoctorError:
        return []


def make_row(name: str, run: Path, finding: str, scripts: Path) -> Row:
    """The row of one finding, whose script is written into the folder `scripts`."""
    path = scripts / f"{name}-{finding}.py"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "exportdoctor", "repro", str(run), finding, "--output", str(path), "--quiet"]
    began = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - began
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    kind = str(read_run(run).state.findings[finding].kind)
    source = path.read_text() if path.is_file() else ""
    return Row(
        name=name, finding=finding, kind=kind, lines=code_lines(source), imports=_imports(source),
        verified=process.returncode == 0, cpu=used.ru_utime + used.ru_stime, wall=wall, why="" if source else said,
    )  # fmt: skip


def _imports(source: str) -> tuple[str, ...]:
    """Every package that a script imports, Python's own too."""
    names = [alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return tuple(dict.fromkeys(name.partition(".")[0] for name in names))


def runs(folder: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """The name, the folder and the findings of each run that has some."""
    for name, options in TARGETS.items():
        findings = scan(f"{MODULES}:{name}", folder / "runs" / name, *options)
        if not findings:
            print(f"     {name} has no finding", file=sys.stderr)
        yield name, folder / "runs" / name, findings


def main() -> None:
    """Print the table; rows appear as they are made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="keep the scans and the scripts here")
    parser.add_argument("--only", nargs="*", help="these names, or names with their findings (Name-F1), only")
    parser.add_argument("--show", action="store_true", help="print each script too")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.runs or Path(scratch)).resolve()
        scripts = folder / "scripts"
        scripts.mkdir(parents=True, exist_ok=True)
        print(f"     {'name':28} {'':3} {'kind':24} lines ver.  cpu   wall  imports, or why there is none", flush=True)
        for name, run, findings in runs(folder):
            for finding in findings:
                if given.only and not {name, f"{name}-{finding}"} & set(given.only):
                    continue
                rows.append(make_row(name, run, finding, scripts))
                print(rows[-1], flush=True)
                if given.show and not rows[-1].why:
                    print((scripts / f"{name}-{finding}.py").read_text(), flush=True)
    if rows:
        alone = sum(row.verified and row.imports == ("torch",) for row in rows)
        print(f"{alone} of {len(rows)} verified and torch-only, {sum(row.good for row in rows)} good in all bounds")


if __name__ == "__main__":
    main()
