"""What a row of the atlas costs beside a plain script that builds, exports and translates the same.

    python benchmarks/atlas_row.py phi bros t5 [--timeout 240]

Each type is asked at fixed and at dynamic sizes: by a sweep without cures of all types together, whose node is warm,
and by a process for each type and kind of sizes. That gets the same model and inputs, runs them in eager, calls
`torch.export.export` and `torch.onnx.export` once, and stops at the first that fails: it locates nothing. Its imports
are told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_SIZES = ("static", "dynamic")
_FIRST = """
import torch
def build():
    return torch.nn.ReLU(), (torch.ones(3, 2),)
"""


def plain(folder: str, sizes: str) -> dict[str, Any]:
    """Seconds of the imports, of the rest, and how far it came."""
    begun = time.perf_counter()
    import torch
    from transformers.models.auto import modeling_auto  # noqa: F401

    from exportdoctor.core.records.target import BuildOptions, TargetRef
    from exportdoctor.targets import build, resolve

    torch.set_num_threads(1)
    imported, reached = time.perf_counter(), "nothing"
    with contextlib.suppress(Exception):
        built = build(resolve(TargetRef(ref=folder, options=BuildOptions(static=sizes == "static"))))
        part = built.part("default")
        with torch.no_grad():
            part.module(*part.args, **part.kwargs)
        reached = "eager"
        program = torch.export.export(
            part.module, part.args, part.kwargs, dynamic_shapes=part.dynamic_shapes, strict=False
        )
        reached = "export"
        torch.onnx.export(program, dynamo=True, verbose=False, optimize=False)
        reached = "onnx"
    return {"imports": imported - begun, "rest": time.perf_counter() - imported, "reached": reached}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("types", nargs="+")
    parser.add_argument("--timeout", type=float, default=240.0)
    parser.add_argument("--plain", choices=_SIZES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plain:
        print(json.dumps(plain(given.types[0], given.plain)))
        return
    from exportdoctor.sweep.sweep_targets import find_model_types
    from exportdoctor.sweep.target_task import read_answer

    with tempfile.TemporaryDirectory() as name:
        types = {one.name: one.ref for one in find_model_types("all", Path(name, "types"), sample=None, seed=0)[0]}
        Path(name, "first.py").write_text(_FIRST)
        sweep = ("sweep", f"{name}/first.py:build", *(types[one] for one in given.types), "--jobs", "1", "--no-cure",
                 "--no-cache", "--to", "onnx", "--target-timeout", str(given.timeout), "--out", f"{name}/atlas",
                 "--quiet")  # fmt: skip
        plains = {one: [_run_plain(types[one], sizes, given.timeout) for sizes in _SIZES] for one in given.types}
        subprocess.run([sys.executable, "-m", "exportdoctor", *sweep], stdout=subprocess.DEVNULL, check=False)
        print("| type | plain script, s (reached) | its imports, s | row, s | row / plain |\n|---|---|---|---|---|")
        total = [0.0, 0.0]
        for one in given.types:
            answer = read_answer(Path(name, "atlas", "runs", one))
            row = sum(run.seconds for run in answer.runs) if answer is not None else float("nan")
            seconds = sum(each["rest"] for each in plains[one])
            total = [total[0] + seconds, total[1] + row]
            reached = ", ".join(each["reached"] for each in plains[one])
            imports = sum(each["imports"] for each in plains[one])
            print(f"| {one} | {seconds:.1f} ({reached}) | {imports:.1f} | {row:.1f} | {row / seconds:.2f} |")
        print(f"| all | {total[0]:.1f} | | {total[1]:.1f} | {total[1] / total[0]:.2f} |")


def _run_plain(folder: str, sizes: str, timeout: float) -> dict[str, Any]:
    words = [sys.executable, "-W", "ignore", __file__, folder, "--plain", sizes]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=timeout, check=False)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError):
        return {"imports": 0.0, "rest": timeout, "reached": "no end"}


if __name__ == "__main__":
    main()
