"""The speed and memory of a scan as ratios, measured side by side in one run: `make bench`, half an hour.

`python benchmarks/run.py without-cures` (or `with-cures`, `help`) measures one of its parts.

Whole processes are timed, imports and builds included. Absolute seconds depend on the machine and its neighbours; the
ratios are what counts.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from exportdoctor.core.codec import decode
from exportdoctor.core.run.report import FAILING, Report

HERE = Path(__file__).parent
EXHAUSTIVE = ("--part", "full", "--static", "--exhaustive", "--no-cure")
WITH_CURES = ("--no-cache",)
"""Every default part, with dynamic shapes and with cures: what a user types."""


def timed(*command: str, home: str) -> tuple[float, bytes]:
    """Wall seconds and stdout."""
    started = time.perf_counter()
    process = _start(*command, home=home)
    output, _ = process.communicate()
    return time.perf_counter() - started, output


def _start(*command: str, home: str) -> subprocess.Popen[bytes]:
    # an installed exportdoctor has its bytecode, as torch has
    environment = {**os.environ, "EXPORTDOCTOR_HOME": home, "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)


def peak_memory(ref: str, *options: str, home: str) -> float:
    """The largest sum of PSS over all processes of a scan, in GB. To watch them takes a tenth of two processors, so
    that such a scan is not timed."""
    process = _start(*scan_command(ref, *options), home=home)
    peak = [0.0]
    watcher = threading.Thread(target=_watch, args=(process.pid, peak), daemon=True)
    watcher.start()
    process.communicate()
    return peak[0]


def _watch(pid: int, peak: list[float]) -> None:
    while psutil.pid_exists(pid):
        try:
            family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        except psutil.Error:
            return
        peak[0] = max(peak[0], sum(_pss(process) for process in family) / 1e9)
        time.sleep(0.25)


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def scan_command(ref: str, *options: str) -> tuple[str, ...]:
    """A whole `exportdoctor scan` as JSON."""
    return (sys.executable, "-m", "exportdoctor", "scan", ref, *options, "--json", "--quiet")


def scan(ref: str, *options: str, home: str) -> tuple[float, Report]:
    """Wall seconds of a scan, and its report."""
    seconds, output = timed(*scan_command(ref, *options), home=home)
    return seconds, decode(output, Report)


def reference(ref: str, how: str, *, home: str) -> tuple[float, dict[str, Any]]:
    """The plain loop, or torch's own tool, as a whole process."""
    seconds, output = timed(sys.executable, str(HERE / "plain_loop.py"), ref, "full", how, home=home)
    return seconds, json.loads(output)


def passes(report: Report) -> dict[str, bool]:
    """Verdicts of the called modules."""
    return {m.fqn: m.status not in FAILING for m in report.parts[0].modules if m.status != "not_called"}


def help_cpu() -> float:
    """The median CPU seconds of `exportdoctor --help` over nine runs."""
    costs = []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "exportdoctor", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return sorted(costs)[4]


def row(what: str, value: str, bound: str, *, holds: bool) -> None:
    """One line of the result."""
    print(f"{what:<66} {value:>16}   {bound:<14} {'holds' if holds else 'DOES NOT HOLD'}", flush=True)


def main() -> None:
    """Measure everything, or the parts that are named, and print a table."""
    parts = {"without-cures": without_cures, "with-cures": with_cures, "help": help_alone}
    with tempfile.TemporaryDirectory() as home:
        for name in sys.argv[1:] or parts:
            parts[name](home)


def help_alone(_: str) -> None:
    """What every call of the command line costs at least."""
    cpu = help_cpu()
    row("exportdoctor --help (CPU seconds)", f"{cpu:.2f}", "< 0.3", holds=cpu < 0.3)


def without_cures(home: str) -> None:
    """Every module of the part `full`. Scans stand before and after each other measurement, for the machine drifts."""
    first, report = scan("Qwen2.5-VL-3B", *EXHAUSTIVE, home=home)
    again, _ = scan("Qwen2.5-VL-3B", *EXHAUSTIVE, home=home)

    def scan_twice() -> list[float]:
        return [scan("Qwen2.5-VL-3B", *EXHAUSTIVE, "--no-cache", home=home)[0] for _ in range(2)]

    before = scan_twice()
    plain, loop = reference("Qwen2.5-VL-3B", "loop", home=home)
    after = scan_twice()
    scans, larger = [*before, *after], []
    tool, exportability = reference("Qwen2.5-VL-3B", "report_exportability", home=home)
    for _ in range(3):
        scans.append(scan("Qwen2.5-VL-3B", *EXHAUSTIVE, "--no-cache", home=home)[0])
        larger.append(scan("Qwen2.5-VL-72B", *EXHAUSTIVE, "--no-cache", home=home)[0])
    scans.append(scan("Qwen2.5-VL-3B", *EXHAUSTIVE, "--no-cache", home=home)[0])
    equal = passes(report) == loop["verdicts"]
    failing = sum(not verdict for verdict in loop["verdicts"].values())
    print(
        f"scan {first:.1f} s, unchanged {again:.2f} s; more scans {listed(scans)}; plain loop after two {plain:.1f} s"
    )
    print(f"report_exportability after two more {tool:.1f} s; 72B between the others {listed(larger)}")
    row(f"verdicts equal to the plain loop's ({len(loop['verdicts'])} modules, {failing} fail)",
        str(equal), "True", holds=equal)  # fmt: skip
    bounded("exhaustive scan / plain loop", mean(before + after) / plain, 0.15)
    bounded(f"exhaustive scan / report_exportability ({len(exportability['verdicts'])} modules)",
            mean(after) / tool, 1)  # fmt: skip
    bounded("72B / 3B", mean(larger) / mean(scans[4:]), 1.5)
    bounded("unchanged second scan / first", again / first, 0.1)
    for ref in ("Qwen2.5-VL-3B", "Qwen2.5-VL-72B"):
        memory = peak_memory(ref, *EXHAUSTIVE, "--no-cache", home=home)
        bounded(f"peak memory of all processes, {ref} (PSS, GB)", memory, 1.5)


def with_cures(home: str) -> None:
    """The price of a diagnosis: what a user types, beside one export of each part with the right shims known."""
    known, whole, larger, cured = [], [], [], True
    for _ in range(2):
        known.append(timed(sys.executable, str(HERE / "known_cures.py"), "Qwen2.5-VL-3B", home=home)[0])
        for ref, found in (("Qwen2.5-VL-3B", whole), ("Qwen2.5-VL-72B", larger)):
            seconds, report = scan(ref, *WITH_CURES, home=home)
            found.append(seconds)
            cured = cured and all(part.verdict in ("cured", "passes") for part in report.parts)
    print(f"four parts with known shims {listed(known)}; scan with cures {listed(whole)}; 72B {listed(larger)}")
    row("every part of the 3B and the 72B exports or is cured", str(cured), "True", holds=cured)
    bounded("scan with cures / the four parts exported with known shims", mean(whole) / mean(known), 1.5)
    bounded("72B / 3B, with cures", mean(larger) / mean(whole), 1.5)
    for ref in ("Qwen2.5-VL-3B", "Qwen2.5-VL-72B"):
        memory = peak_memory(ref, *WITH_CURES, home=home)
        bounded(f"peak memory of all processes with cures, {ref} (PSS, GB)", memory, 2)


def listed(seconds: list[float]) -> str:
    """Durations one after the other, as they were measured."""
    return f"{' '.join(f'{one:.1f}' for one in seconds)} s"


def bounded(what: str, value: float, bound: float) -> None:
    """A line whose value may not be above its bound."""
    row(what, f"{value:.3f}", f"<= {bound}", holds=value <= bound)


if __name__ == "__main__":
    main()
