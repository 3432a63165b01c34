"""What exportdoctor does on a GPU, in one table: `make gpu-check`, or `python benchmarks/gpu_check.py [STEP ...]`.

Each step is a process of its own with a time-out, so that one that fails or hangs loses no other; the scans of large
models run side by side, and all together end within six minutes. It needs torch, transformers and what a scan imports:
networkx, msgspec, click, rich, filelock, platformdirs, psutil, pyyaml, jinja2, packaging. Where no registry can be
reached, carry those on PYTHONPATH in a folder made with `pip install --target carried --only-binary=:all:
--python-version 3.12 --no-deps networkx ...`: msgspec, psutil and pyyaml are compiled for one Python. Without a GPU the
steps that need one say so, and the scans run on fake CUDA tensors. SECONDS_IN_ALL is another limit for all of it; the
events of each scan are written to the folder OUT, where that is set.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

FULL = "Qwen2.5-VL-3B"
HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE / "src"), os.environ.get("PYTHONPATH"))))
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
IN_ALL = float(os.environ.get("SECONDS_IN_ALL", "345"))
"""Seconds for all steps: under six minutes with what starting them takes."""

Row = tuple[str, str, str]
"""What was looked at, what it is, and `ok`, `FAIL` or `-` where nothing is asserted."""


def row(what: str, found: object, good: bool | None = None) -> None:
    """A line of a step's answer."""
    print(json.dumps((what, str(found), "-" if good is None else "ok" if good else "FAIL")), flush=True)


def versions() -> None:
    """What it was measured with."""
    import torch
    import transformers

    from exportdoctor.process.graphics_cards import visible_cards

    row("python, torch, transformers", f"{sys.version.split()[0]}, {torch.__version__}, {transformers.__version__}")
    cards = visible_cards()
    row("cards (NVML)", ", ".join(f"{one.name}, {one.free_mb:,.0f} of {one.total_mb:,.0f} MiB free" for one in cards))
    row("CUDA is opened by looking", torch.cuda.is_initialized(), not torch.cuda.is_initialized())
    row("processors", os.cpu_count())


def parent() -> None:
    """A worker with the model, its parts captured, has no context; its children open one."""
    import torch

    from exportdoctor.core.protocol.scan import Capture, Open
    from exportdoctor.core.records.probe import Probe
    from exportdoctor.core.records.target import BuildOptions, TargetRef
    from exportdoctor.worker.child import fork
    from exportdoctor.worker.open_target import OpenTarget
    from exportdoctor.worker.placement import ChildPlacement

    target = OpenTarget()
    options = BuildOptions(device="cuda", weights="random")
    opened = target.open(Open(target=TargetRef(ref="Qwen2.5-VL-3B-tiny", options=options)))
    row("attempts are", opened.isolation, opened.isolation == "fork")
    for name in ("vision", "text"):
        target.capture(Capture(part=name))
    row("context of the parent after two captures", torch.cuda.is_initialized(), not torch.cuda.is_initialized())
    placement = target.placement
    if placement is None or not placement.cards:
        row("children", "no GPU: not looked at")
        return
    part = target.parts["vision"]

    def seconds(probe: Probe) -> float:
        def work(_: int) -> bytes:
            began = time.perf_counter()
            try:
                ChildPlacement(placement).place(part, probe)
                torch.cuda.synchronize()
            except Exception as error:
                return f"{type(error).__name__}: {error}".encode()
            return f"{time.perf_counter() - began:.2f} s".encode()

        began = time.perf_counter()
        end = fork(work).wait()
        told = end.data.decode() or f"died with {end.code}"
        row(f"  in the child alone ({probe.to})", told[:300], told.endswith(" s"))
        return time.perf_counter() - began

    for to in ("run", "run"):
        taken = seconds(Probe(part="vision", fqn=part.prefix, to=to))
        row("an attempt's overhead with values on the card: fork, context, moving, end", f"{taken:.2f} s", taken <= 0.5)
    row("context of the parent after its children", torch.cuda.is_initialized(), not torch.cuda.is_initialized())


def faults() -> None:
    """Each fault costs its child; the next one computes."""
    import torch

    from exportdoctor.process.graphics_cards import visible_cards
    from exportdoctor.worker.child import fork
    from exportdoctor.worker.placement import ChildPlacement, Placement

    cards = visible_cards() if torch.version.cuda else ()
    if not cards:
        row("faults of the device", "no GPU: not looked at")
        return

    def told(what: Callable[[], object], limit_mb: float | None = None) -> str:
        def work(_: int) -> bytes:
            try:
                ChildPlacement(Placement(cards=cards, alone=len(cards) == 1, limit_mb=limit_mb))._open(with_values=True)
                return str(what()).encode()
            except Exception as error:
                return f"{type(error).__name__}: {str(error).splitlines()[0]}".encode()

        end = fork(work).wait()
        return end.data.decode() or f"died with {end.code}"

    def clean() -> object:
        return torch.ones(3, device="cuda").sum().item()

    def asserts() -> object:
        return torch.zeros(3, device="cuda")[torch.tensor([7], device="cuda")].sum().item()

    def reads_beyond() -> object:
        nowhere = torch._C._construct_storage_from_data_pointer(1 << 8, torch.device("cuda:0"), 4)
        return torch.empty(0, device="cuda").set_(nowhere, 0, (1,), (1,)).sum().item()

    def takes_too_much() -> object:
        return torch.empty(4 << 30, dtype=torch.uint8, device="cuda").numel()

    for name, fault, limit, words in (
        ("device-side assert", asserts, None, "device-side assert"),
        ("--gpu-memory 2048, 4 GiB wanted", takes_too_much, 2048.0, "out of memory"),
        ("illegal access", reads_beyond, None, "illegal memory access"),
    ):
        found = told(fault, limit)
        row(name, found[:110], words in found)
        after = told(clean)
        row("  the next child", after, after == "3.0")

    held, free_mb = os.pipe(), cards[0].free_mb

    def hold(_: int) -> bytes:
        ChildPlacement(Placement(cards=cards))._open(with_values=True)
        kept = torch.empty(int((free_mb - 3072) * 2**20), dtype=torch.uint8, device="cuda")
        os.write(held[1], b"x")
        time.sleep(20)
        return str(kept.numel()).encode()

    holder = fork(hold)
    os.close(held[1])
    os.read(held[0], 1)
    found = told(takes_too_much)
    row("another process holds the card", found[:110], "out of memory" in found)
    os.kill(holder.pid, 9)
    holder.wait()
    after = told(clean)
    row("  the next child", after, after == "3.0")


def scan_of(ref: str, device: str, *, to: Any = "export", **how: Any) -> tuple[Any, float]:
    """The report of a scan with cures, and its seconds. Its events are kept in the folder OUT, where that is set."""
    from exportdoctor.core.records.target import BuildOptions, TargetRef
    from exportdoctor.core.run.events import RunStarted
    from exportdoctor.core.run.run_state import fold
    from exportdoctor.core.scan_options import ScanOptions
    from exportdoctor.engine.scan import ScanRequest, scan

    parts = how.pop("parts", ())
    target = TargetRef(ref=ref, parts=parts, options=BuildOptions(device=device, **how))
    options = ScanOptions(use_cache=False, jobs=min(8, os.cpu_count() or 2), to=to)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as logs:
        request = ScanRequest(target=target, options=options, logs=Path(logs))
        started = RunStarted(run="gpu", target=target, options=options, version="0")
        events = list(_kept(chain((started,), scan(request)), f"{Path(ref.partition(':')[0]).stem}-{device}-{to}"))
    return fold(events).report(), time.perf_counter() - began


def _kept(events: Iterable[Any], name: str) -> Iterator[Any]:
    """The events, each also written to a file in the folder OUT as it comes, where that is set."""
    import msgspec

    folder = os.environ.get("OUT")
    with open(Path(folder, f"{name}-{os.getpid()}.jsonl") if folder else os.devnull, "ab", buffering=0) as file:
        for event in events:
            file.write(msgspec.json.encode(event) + b"\n")
            yield event


def tell_scan(report: Any, seconds: float) -> None:
    """The verdicts of a scan, its cures and their proofs."""
    row("  seconds, attempts", f"{seconds:.0f} s, {report.stats.probes}")
    row("  device", report.target.device)
    for part in report.parts:
        row(f"  {part.name}", f"{part.verdict}; unknown: {sum(one.status == 'unknown' for one in part.modules)}")
        cure = part.prescription
        if part.numbers is not None:
            proof = part.numbers.proof
            compared = f", {proof.inputs_tried} input sets, max difference {proof.max_abs_diff}" if proof else ""
            row("    numbers", f"{part.numbers.verdict}{compared} {part.numbers.note}"[:200])
        if cure is not None and cure.proof is not None:
            proof = cure.proof
            compared = f"max difference {proof.max_abs_diff}, tolerance {proof.tolerance}, on {proof.on or 'itself'}"
            row("    cure", f"{' + '.join(cure.shims)}: {proof.inputs_tried} input sets, {compared}")
    for finding in report.findings:
        row("  finding", f"{finding.kind} {finding.function} {finding.module}")
    for note in report.notes:
        row("  note", note[:160])


def both() -> None:
    """The 3B with fake weights and cures, on the CPU and on the card of the same machine, side by side."""
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        (report, on_cpu), (again, on_card) = pool.map(scan_of, (FULL, FULL), ("cpu", "cuda"))
    for device, one, seconds in (("cpu", report, on_cpu), ("cuda", again, on_card)):
        row(f"scan {FULL} --device {device}, beside the other", "")
        tell_scan(one, seconds)
    row("seconds, cuda beside cpu", f"{on_card / on_cpu:.2f} times", on_card <= 1.3 * on_cpu)
    row("seconds, cuda", f"{on_card:.0f}", on_card <= 60)

    def lines(one: Any) -> list[tuple[str, str]]:
        return sorted((finding.kind, finding.module) for finding in one.findings)

    row("the same findings", lines(report) == lines(again), lines(report) == lines(again))
    verdicts = [[part.verdict for part in one.parts] for one in (report, again)]
    row("verdicts", verdicts, verdicts[0] == verdicts[1])


def tiny() -> None:
    """Proof on the card: the tiny twin's vision tower with random weights, in float32 and bfloat16."""
    for dtype in ("float32", "bfloat16"):
        report, seconds = scan_of("Qwen2.5-VL-3B-tiny", "cuda", weights="random", dtype=dtype, parts=("vision",))
        verdict = report.parts[0].verdict
        row(f"tiny, vision, random weights, {dtype}", verdict, verdict == "cured")
        tell_scan(report, seconds)


def fixtures() -> None:
    """A crash, a failure, a mismatch of devices."""
    for name, kind in (
        ("data_dependent_int", "data_dependent_value"), ("segfault", "crash"), ("device_mismatch", "device_mismatch"),
    ):  # fmt: skip
        report, seconds = scan_of(f"{HERE / 'fixtures' / name}.py:build", "cuda")
        found = [str(finding.kind) for finding in report.findings]
        row(f"fixture {name}", f"{found}, {seconds:.0f} s", found == [kind])


ONLY_CUDA = """
import torch
from torch import nn

library = torch.library.Library("gpu_check", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CUDA")

class Twice(nn.Module):
    def forward(self, x):
        return torch.ops.gpu_check.twice(x)

class OnCuda(nn.Module):
    def forward(self, x):
        if not x.is_cuda:
            raise ValueError("wants a GPU")
        return x + 1

class Model(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.linear, self.inner = nn.Linear(4, 4), inner
    def forward(self, x):
        return self.inner(self.linear(x))

def operator():
    return Model(Twice()), (torch.ones(2, 4),)

def check():
    return Model(OnCuda()), (torch.ones(2, 4),)
"""


def captured() -> None:
    """Models that compute on CUDA alone: captured in a child. An operator with a CUDA kernel alone, and no fake one."""
    from exportdoctor.process.graphics_cards import visible_cards

    if not visible_cards():
        row("models that compute on CUDA alone", "no GPU: not looked at")
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "only_cuda.py")
        file.write_text(ONLY_CUDA)
        for factory, kinds, culprit in (("check", [], None), ("operator", ["missing_fake_kernel"], "inner")):
            report, seconds = scan_of(f"{file}:{factory}", "cuda")
            found = [(str(finding.kind), finding.module) for finding in report.findings]
            what = f"{found}, {report.parts[0].verdict}, {seconds:.0f} s"
            row(f"only on CUDA: {factory}", what, found == [(kind, culprit) for kind in kinds])
            tell_scan(report, seconds)


def real() -> None:
    """The 3B with random weights in bfloat16: proofs at full size on the card."""
    report, seconds = scan_of(FULL, "cuda", weights="random", dtype="bfloat16")
    row(f"scan {FULL} --device cuda --weights random --dtype bfloat16", f"{seconds:.0f} s", seconds <= 90)
    tell_scan(report, seconds)


def onnx() -> None:
    """Which ONNX Runtime is there, what it really loads, and programs that it runs on the card."""
    try:
        import onnxruntime

        from exportdoctor.worker.translate.onnx_session import runtime_package
    except ImportError as error:
        row("ONNX Runtime", f"not installed: {error}")
        return
    offered = onnxruntime.get_available_providers()
    row("ONNX Runtime", f"{runtime_package()}: {', '.join(offered)}")
    for name in ("shared_module", "data_dependent_int"):
        report, seconds = scan_of(f"{HERE / 'fixtures' / name}.py:build", "cuda", to="onnx")
        part = report.parts[0]
        row(f"scan {name} --to onnx --device cuda", f"{part.verdict}, {seconds:.0f} s", part.verdict != "unknown")
        tell_scan(report, seconds)
        row("  numbers", part.numbers)


STEPS: dict[str, tuple[Callable[[], None], float]] = {
    "versions": (versions, 40),
    "parent": (parent, 60),
    "both": (both, 260),
    "real": (real, 260),
    "onnx": (onnx, 90),
    "tiny": (tiny, 160),
    "fixtures": (fixtures, 90),
    "captured": (captured, 90),
    "faults": (faults, 90),
}
"""Each with its most seconds."""
ORDER = ((("versions", "parent"),), (("both",), ("real",), ("onnx", "tiny", "fixtures", "captured")), (("faults",),))
"""One group after the other; in a group all rows of steps at once. `faults` takes all memory of the card."""


def run_step(name: str, limit: float) -> list[Row]:
    """Its rows; one more where it failed or was stopped, with the end of what it printed."""
    command = [sys.executable, __file__, "--step", name]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=limit)
            ended = f"ended with {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            ended = f"stopped after {limit:.0f} s"
        errors.seek(0)
        last = " | ".join(errors.read().strip().splitlines()[-4:])[-400:]
    rows: list[Row] = [tuple(json.loads(line)) for line in output.splitlines() if line.startswith("[")]
    if ended:
        rows.append((f"step {name}", f"{ended}: {last}", "FAIL"))
    return [*rows, (f"step {name}", f"{time.monotonic() - began:.0f} s", "-")]


def main(chosen: list[str]) -> int:
    """Run the steps, and print their rows as they come and as one table."""
    began, rows = time.monotonic(), list[Row]()

    def run_steps(names: tuple[str, ...]) -> list[Row]:
        found: list[Row] = []
        for name in names:
            left = IN_ALL - (time.monotonic() - began)
            if chosen and name not in chosen:
                continue
            made = run_step(name, min(STEPS[name][1], left)) if left > 10 else [(f"step {name}", "no time", "-")]
            print("\n".join(f"{good:5}{what}: {told}" for what, told, good in made), flush=True)
            found += made
        return found

    with ThreadPoolExecutor() as pool:
        for group in ORDER:
            rows += [one for made in pool.map(run_steps, group) for one in made]
    print(f"\n| what | found | holds |\n|---|---|---|\n{chr(10).join(f'| {a} | {b} | {c} |' for a, b, c in rows)}")
    print(f"\n{time.strftime('%Y-%m-%d')}, {time.monotonic() - began:.0f} s in all")
    return int(any(good == "FAIL" for _, _, good in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        STEPS[sys.argv[2]][0]()
    else:
        sys.exit(main(sys.argv[1:]))
