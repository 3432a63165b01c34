"""What `numbers` costs: a pass over two stages as a multiple of a plain run of both, beside torch.onnx's own check.

    python benchmarks/numbers_cost.py

Prints for each stage the seconds of a pass with every value compared, those of a plain run of this stage and of the
one before, and their ratio; then the same for torch.onnx.verification with intermediates. Memory is the process's peak.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exportdoctor.shims import call_for_part, export_program
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.eager import run_calls
from exportdoctor.worker.numbers.comparer import Comparer, Rung, file_rung, program_rung
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.translate.onnx_program import translate

WIDTH, LENGTH, LAYERS = 384, 128, 12


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (one.unsqueeze(1) for one in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(query, key, value).squeeze(1))
        return x + self.down(nn.functional.gelu(self.up(self.other(x))))


def time_of(work: Callable[[], Any], times: int = 3) -> float:
    """The least seconds of some runs."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = nn.Sequential(*(Layer() for _ in range(LAYERS))).eval()
    example = ((torch.randn(4, LENGTH, WIDTH),), {})
    part = BuiltPart(name="stack", title="", module=module, prefix="", args=example[0], kwargs={}, dynamic_shapes=None)
    call = call_for_part(part)
    first = InputSet(title="example", kind="example", calls=(example,), results=run_calls(module, [example]))
    comparer = Comparer(part=part, call=call, sets=[first], doing=lambda _: None)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        program = export_program(call)
        path = Path(folder) / "stack.onnx"
        made = translate(export_program(call), optimise=False).made
        made.save(str(path))
        rungs: list[tuple[Rung | None, Rung]] = []
        one = program_rung("exported program", program)
        two = program_rung("decomposed", made.exported_program)
        rungs = [(None, one), (one, two), (two, file_rung("ONNX", path, program, optimise=False))]
        for before, rung in rungs:
            plain = time_of(lambda: module(*example[0]) if before is None else before.run(example))  # noqa: B023
            plain += time_of(lambda: rung.run(example))  # noqa: B023
            took = time_of(lambda: comparer.stage(before, rung))  # noqa: B023
            stage = comparer.stage(before, rung)
            print(f"{rung.name:18} {len(stage.values):4} values  pass {took:6.2f} s  plain {plain:6.2f} s  "
                  f"{took / plain:5.1f} times  {'agrees' if stage.holds else 'differs'}")  # fmt: skip
        print(f"peak memory {peak_mib():.0f} MiB, weights {weights_mib(module):.0f} MiB")
        began = time.perf_counter()
        from torch.onnx.verification import verify_onnx_program

        found = verify_onnx_program(made, example[0], compare_intermediates=True)
        print(f"torch.onnx.verification: {len(found)} values in {time.perf_counter() - began:.2f} s, "
              f"peak memory {peak_mib():.0f} MiB")  # fmt: skip


def peak_mib() -> float:
    """The process's largest memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)


def weights_mib(module: nn.Module) -> float:
    """The parameters' memory."""
    return sum(one.numel() * one.element_size() for one in module.parameters()) / 2**20


if __name__ == "__main__":
    main()
