"""What a scan is measured against: a plain in-process loop of torch.export.export over every called submodule.

`python benchmarks/plain_loop.py TARGET PART [loop|report_exportability]` prints one JSON object: verdicts and seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from typing import Any

import torch

from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.targets import build, resolve


def loop(part: Any) -> dict[str, bool]:
    """Export each module with the inputs of its first call."""
    calls: dict[str, tuple[Any, Any]] = {}

    def keep(name: str) -> Any:
        return lambda module, args, kwargs: calls.setdefault(name, (args, kwargs)) and None

    modules = dict(part.module.named_modules())
    handles = [m.register_forward_pre_hook(keep(name), with_kwargs=True) for name, m in modules.items()]
    with torch.no_grad():
        part.module(*part.args, **part.kwargs)
    for handle in handles:
        handle.remove()
    verdicts = {}
    for name, (args, kwargs) in calls.items():
        try:
            torch.export.export(modules[name], args, kwargs, strict=False)
            verdicts[name] = True
        except Exception:
            verdicts[name] = False
    return verdicts


def report_exportability(part: Any) -> dict[str, bool]:
    """torch's own tool on the same call."""
    from torch._export.tools import report_exportability as report

    found = report(part.module, part.args, part.kwargs, strict=False)
    return {name: error is None for name, error in found.items()}


def main() -> None:
    """Build, measure, print."""
    ref, name, how = sys.argv[1:4]
    options = BuildOptions(static=True)
    started = time.perf_counter()
    part = build(resolve(TargetRef(ref=ref, parts=(name,), options=options))).part(name)
    built = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        verdicts = {"loop": loop, "report_exportability": report_exportability}[how](part)
    seconds = time.perf_counter() - built
    print(json.dumps({"verdicts": verdicts, "build_seconds": built - started, "seconds": seconds}))


main()
