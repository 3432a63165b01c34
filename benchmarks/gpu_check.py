"""The CUDA path, end to end, with no package beyond what scanning needs: `make gpu-check`.

Also meant for torch 2.11, transformers 5.17 and Python 3.12. Without a CUDA device it says so and ends with 0 for the
CPU part: the same scans run with workers that attempt probes in their own process, as they must beside a CUDA context.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE / "src"), os.environ.get("PYTHONPATH"))))


def check(name: str, found: object, wanted: object) -> bool:
    """One line of the result."""
    print(f"{'ok  ' if found == wanted else 'FAIL'} {name}: {found}", flush=True)
    return found == wanted


def main() -> int:
    """Scan fixtures and the tiny twin on the device; on CUDA the full 3B with fake weights too."""
    import torch
    import transformers

    from exportdoctor.core.records.target import BuildOptions, TargetRef
    from exportdoctor.core.run.events import RunStarted
    from exportdoctor.core.run.report import Report
    from exportdoctor.core.run.run_state import fold
    from exportdoctor.core.scan_options import ScanOptions
    from exportdoctor.engine.scan import ScanRequest, scan

    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"python {sys.version.split()[0]}, {versions}, {device}")

    def report_of(
        ref: str, *, parts: tuple[str, ...] = (), weights: str = "fake", static: bool = True, cure: bool = False
    ) -> Report:
        began = time.perf_counter()
        target = TargetRef(ref=ref, parts=parts, options=BuildOptions(device=device, weights=weights, static=static))
        options = ScanOptions(use_cache=False, isolation="process", cure=cure)
        with tempfile.TemporaryDirectory() as logs:
            request = ScanRequest(target=target, options=options, logs=Path(logs))
            started = RunStarted(run="gpu", target=target, options=options, version="0")
            report = fold([started, *scan(request)]).report()
        print(f"     {ref}: {report.stats.probes} attempts, {time.perf_counter() - began:.0f} s", flush=True)
        return report

    good = True
    for fixture, kind in (("data_dependent_int", "data_dependent_value"), ("segfault", "crash")):
        found = report_of(f"{HERE / 'fixtures' / fixture}.py:build")
        good &= check(fixture, [finding.kind for finding in found.findings], [kind])
    good &= check("passing", report_of(f"{HERE / 'fixtures' / 'passing.py'}:build").parts[0].verdict, "passes")
    twin = report_of("Qwen2.5-VL-3B-tiny", parts=("vision",), weights="random")
    good &= check("tiny twin, vision", twin.parts[0].verdict, "fails")
    good &= check("device", twin.target.device.partition(":")[0], device)
    cured = report_of("Qwen2.5-VL-3B-tiny", parts=("vision",), weights="random", static=False, cure=True).parts[0]
    good &= check("tiny twin, vision, with cures", cured.verdict, "cured")
    if cured.prescription is not None and cured.prescription.proof is not None:
        print(f"     {' + '.join(cured.prescription.shims)}: {cured.prescription.proof}")
    if cuda:
        full = report_of("Qwen2.5-VL-3B", parts=("full",))
        lines = sorted({(f.function or "").rpartition(".")[2] for f in full.findings})
        wanted = ["get_vision_window_index", "sdpa_attention_forward"]  # what else lies behind differs by version
        good &= check("3B, full, fake weights", [line for line in lines if line in wanted], wanted)
    else:
        print("no CUDA device: the CUDA path itself was not run")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
