"""What `numbers` costs: a pass over two stages as a multiple of a plain run of both, and the memory of a whole ladder.

    python benchmarks/numbers_cost.py                 # time: 12 layers of width 384
    python benchmarks/numbers_cost.py 1024 4 384 48   # of other widths and numbers of layers
    python benchmarks/numbers_cost.py --verification  # beside torch.onnx's own check with intermediates: minutes
    python benchmarks/numbers_cost.py --memory        # peak memory, 8 layers of width 1024

Time: for each stage the least, median and largest ratio of a pass in which every value is compared, with its runs
beside eager, to a plain run of this stage and of the one before, which runs before and after each pass. On one thread.

Memory: the largest PSS of a process that climbs the ladder, beside that of one that runs the module and of one that
runs the file; from each is taken what the same process needs for a model of width 64: imports, torch.onnx's tables. The
plain file, which the ladder has as its third stage, is as translated: it transposes all weights before it uses them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exportdoctor.core.protocol.numbers_ladder import LadderRequest
from exportdoctor.core.records.target import TargetRef
from exportdoctor.shims import call_for_part, export_program
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.eager import run_calls
from exportdoctor.worker.numbers.comparer import Comparer
from exportdoctor.worker.numbers.numbers_server import climb
from exportdoctor.worker.numbers.rung import Rung, file_rung, program_rung
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.translate.onnx_program import translate
from exportdoctor.worker.translate.onnx_session import OnnxSession

WIDTH, LAYERS, ROUNDS = 384, 12, 5
LARGE, SMALL, DEEP = 1024, 64, 8


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (one.unsqueeze(1) for one in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(query, key, value).squeeze(1))
        return x + self.down(nn.functional.gelu(self.up(self.other(x))))


def stack(width: int, layers: int, *, batch: int = 4, length: int = 128) -> tuple[nn.Module, torch.Tensor]:
    """Layers of this width, and an input."""
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(width) for _ in range(layers))).eval(), torch.randn(batch, length, width)


def build() -> dict[str, Any]:
    """The target of the processes that measure memory."""
    module, x = stack(int(os.environ["WIDTH"]), DEEP, batch=1, length=64)
    return {"module": module, "args": (x,)}


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes once."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure_time(width: int, layers: int, *, verification: bool) -> None:
    """Print the ratios of each stage."""
    torch.set_num_threads(1)
    module, x = stack(width, layers)
    example: Any = ((x,), {})
    part = BuiltPart(name="stack", title="", module=module, prefix="", args=example[0], kwargs={}, dynamic_shapes=None)
    call = call_for_part(part)
    first = InputSet(title="example", kind="example", calls=(example,), results=run_calls(module, [example]))
    comparer = Comparer(part=part, call=call, sets=[first], doing=lambda _: None)
    print(f"{layers} layers of width {width}")
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        path, better, final = (Path(folder) / f"{name}.onnx" for name in ("plain", "better", "final"))
        program = export_program(call)
        made = translate(export_program(call), optimise=False).made
        made.save(str(path), external_data=True)
        decomposed = program_rung("decomposed", made.exported_program)
        eager = Rung(name="eager", run=lambda given: module(*given[0]))
        if verification:
            began = time.perf_counter()
            from torch.onnx.verification import verify_onnx_program

            found = verify_onnx_program(made, example[0], compare_intermediates=True)
            print(f"  torch.onnx.verification: {len(found)} values in {time.perf_counter() - began:.2f} s")
        makers = [
            lambda: program_rung("exported program", program),
            lambda: decomposed,
            lambda: file_rung("ONNX", path, program, optimise=False),
            lambda: file_rung("ONNX optimised", better, program, optimise=False),
            lambda: file_rung("ONNX Runtime", final, program, optimise=True, given=better),
        ]
        before = eager
        passes = runs = 0.0
        for make in makers:
            if before.name == "ONNX":
                made.optimize()
                made.save(str(better), external_data=True)
            ratios, took = [], 0.0
            for _ in range(ROUNDS):
                rung, fresh = make(), make()  # a pass reads its file anew
                plain = [seconds(lambda: before.run(example)) + seconds(lambda: rung.run(example))]  # noqa: B023
                took = seconds(lambda: stages.append(comparer.stage(None if before is eager else before, fresh)))  # noqa: B023
                plain.append(seconds(lambda: before.run(example)) + seconds(lambda: rung.run(example)))  # noqa: B023
                ratios.append(2 * took / sum(plain))
                passes, runs = passes + took, runs + sum(plain) / 2
            stage = stages[-1]
            print(f"  {rung.name:18} {len(stage.values):4} values  least {min(ratios):.2f}, median "
                  f"{statistics.median(ratios):.2f}, most {max(ratios):.2f} plain runs  (a pass {took:.2f} s)  "
                  f"{'agrees' if stage.holds else 'differs'}")  # fmt: skip
            before = rung
        print(f"  all stages together {passes / runs:.2f} plain runs")


stages: list[Any] = []


@contextmanager
def watch_memory() -> Iterator[Callable[[], float]]:
    """The largest PSS of this process so far, in MiB, which is looked at every 20 ms."""
    peak, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            peak[0] = max(peak[0], *(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: peak[0]
    finally:
        over.set()
        thread.join()


def run_alone(what: str, file: str) -> None:
    """One process of `--memory`: prints its peak."""
    if what == "make":
        given = build()
        program = torch.onnx.export(given["module"], given["args"], dynamo=True, verbose=False)
        assert program is not None
        program.save(file)
        plain = translate(torch.export.export(given["module"], given["args"]), optimise=False).made
        plain.save(file.replace(".onnx", ".plain.onnx"), external_data=True)
        return
    with watch_memory() as peak, torch.no_grad():
        if what == "module":
            given = build()
            given["module"](*given["args"])
        elif what in ("file", "plain file"):
            _, x = stack(int(os.environ["WIDTH"]), 0, batch=1, length=64)
            path = Path(file if what == "file" else file.replace(".onnx", ".plain.onnx"))
            OnnxSession(path, optimise=what == "file").run([x])
        else:
            against = file if what == "against" else ""
            ref = TargetRef(ref=f"{__file__}:build")
            result = climb(LadderRequest(target=ref, part="", against=against, seconds=0.3), lambda _: None)
            assert result.verdict == "agrees", result.verdict
        time.sleep(0.1)
        print(peak())


def measure_memory() -> None:
    """Print what a ladder needs beside what the two models need."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for width in (SMALL, LARGE):
            file = str(Path(folder) / f"{width}.onnx")
            for what in ("make", "module", "file", "plain file", "ladder", "against"):
                command = [sys.executable, "-W", "ignore", __file__, "--alone", what, file]
                environment = {**os.environ, "WIDTH": str(width)}
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                if what != "make":
                    sign = 1 if width == LARGE else -1
                    found[what] = found.get(what, 0.0) + sign * float(done.stdout.split()[-1])
    module, _ = stack(LARGE, DEEP, batch=1, length=64)
    weights = sum(one.numel() * one.element_size() for one in module.parameters()) / 2**20
    print(f"{DEEP} layers of width {LARGE}, {weights:.0f} MiB of weights; MiB above those of width {SMALL}:")
    for what in ("module", "file", "plain file"):
        print(f"  {what:36} {found[what]:5.0f}")
    for what, title, file in (
        ("ladder", "numbers TARGET", "plain file"), ("against", "numbers TARGET --against FILE.onnx", "file")
    ):  # fmt: skip
        both = found["module"] + found[file]
        print(f"  {title:36} {found[what]:5.0f}  {found[what] / both:.2f} times module and {file} (at most 1.20)")


def main() -> None:
    """Measure and print."""
    match sys.argv[1:]:
        case ["--alone", what, file]:
            run_alone(what, file)
        case ["--memory"]:
            measure_memory()
        case ["--verification"]:
            measure_time(WIDTH, LAYERS, verification=True)
        case []:
            measure_time(WIDTH, LAYERS, verification=False)
        case sizes:
            numbers = [int(one) for one in sizes]
            for width, layers in zip(numbers[::2], numbers[1::2], strict=True):
                measure_time(width, layers, verification=False)


if __name__ == "__main__":
    main()
