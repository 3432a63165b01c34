"""The speed and memory of a scan as ratios, measured side by side in one run: `make bench`, a quarter of an hour.

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
from typing import Any

import psutil

from exportdoctor.core.codec import decode
from exportdoctor.core.report import FAILING, Report

HERE = Path(__file__).parent
EXHAUSTIVE = ("--part", "full", "--static", "--exhaustive", "--no-cure")
WITH_CURES = ("--no-cache",)
"""Every default part, with dynamic shapes and with cures: what a user types."""


def timed(*command: str, home: str) -> tuple[float, bytes, float]:
    """Wall seconds, stdout, and the largest sum of PSS over the process and its descendants, in GB."""
    environment = {**os.environ, "EXPORTDOCTOR_HOME": home}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    peak = [0.0]
    watcher = threading.Thread(target=_watch, args=(process.pid, peak), daemon=True)
    watcher.start()
    output, _ = process.communicate()
    return time.perf_counter() - started, output, peak[0]


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


def scan(ref: str, *options: str, home: str) -> tuple[float, Report, float]:
    """A whole `exportdoctor scan` as JSON."""
    seconds, output, peak = timed(
        sys.executable, "-m", "exportdoctor", "scan", ref, *options, "--json", "--quiet", home=home
    )
    return seconds, decode(output, Report), peak


def reference(ref: str, how: str, *, home: str) -> tuple[float, dict[str, Any]]:
    """The plain loop, or torch's own tool, as a whole process."""
    seconds, output, _ = timed(sys.executable, str(HERE / "plain_loop.py"), ref, "full", how, home=home)
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
    """Measure everything and print a table."""
    with tempfile.TemporaryDirectory() as home:
        plain, loop = reference("Qwen2.5-VL-3B", "loop", home=home)
        first, report, pss = scan("Qwen2.5-VL-3B", *EXHAUSTIVE, home=home)
        tool, exportability = reference("Qwen2.5-VL-3B", "report_exportability", home=home)
        second, _, _ = scan("Qwen2.5-VL-3B", *EXHAUSTIVE, home=home)
        large, _, large_pss = scan("Qwen2.5-VL-72B", *EXHAUSTIVE, "--no-cache", home=home)
        again, _, _ = scan("Qwen2.5-VL-3B", *EXHAUSTIVE, "--no-cache", home=home)
        base = (first + again) / 2
        equal = passes(report) == loop["verdicts"]
        failing = sum(not verdict for verdict in loop["verdicts"].values())
        print(f"plain loop {plain:.1f} s, scan {first:.1f} s and {again:.1f} s, second scan {second:.2f} s, "
              f"report_exportability {tool:.1f} s, 72B {large:.1f} s")  # fmt: skip
        row(f"verdicts equal to the plain loop's ({len(loop['verdicts'])} modules, {failing} fail)",
            str(equal), "True", holds=equal)  # fmt: skip
        row("exhaustive scan / plain loop", f"{base / plain:.3f}", "<= 0.15", holds=base / plain <= 0.15)
        row(f"exhaustive scan / report_exportability ({len(exportability['verdicts'])} modules)",
            f"{base / tool:.2f}", "<= 1", holds=base / tool <= 1)  # fmt: skip
        row("72B / 3B", f"{large / base:.2f}", "<= 1.5", holds=large / base <= 1.5)
        row("unchanged second scan / first", f"{second / first:.3f}", "<= 0.1", holds=second / first <= 0.1)
        row("peak memory of all processes, 3B and 72B (PSS, GB)", f"{pss:.2f} {large_pss:.2f}", "<= 1.5",
            holds=max(pss, large_pss) <= 1.5)  # fmt: skip
        known, _, known_pss = timed(sys.executable, str(HERE / "known_cures.py"), "Qwen2.5-VL-3B", home=home)
        whole, diagnosed, whole_pss = scan("Qwen2.5-VL-3B", *WITH_CURES, home=home)
        larger, other, larger_pss = scan("Qwen2.5-VL-72B", *WITH_CURES, home=home)
        cured = all(part.verdict in ("cured", "passes") for part in (*diagnosed.parts, *other.parts))
        print(f"four parts with known shims {known:.1f} s ({known_pss:.2f} GB), scan with cures {whole:.1f} s, "
              f"72B {larger:.1f} s")  # fmt: skip
        row("every part of the 3B and the 72B exports or is cured", str(cured), "True", holds=cured)
        row("scan with cures / the four parts exported with known shims", f"{whole / known:.2f}", "<= 1.5",
            holds=whole / known <= 1.5)  # fmt: skip
        row("72B / 3B, with cures", f"{larger / whole:.2f}", "<= 1.5", holds=larger / whole <= 1.5)
        row("peak memory of all processes with cures, 3B and 72B (PSS, GB)", f"{whole_pss:.2f} {larger_pss:.2f}",
            "<= 2", holds=max(whole_pss, larger_pss) <= 2)  # fmt: skip
        cpu = help_cpu()
        row("exportdoctor --help (CPU seconds)", f"{cpu:.2f}", "< 0.3", holds=cpu < 0.3)


if __name__ == "__main__":
    main()
