"""Runs real scans for tests, without a run's folder.

Workers are forked from the test's own process, which has torch in memory: a scan then costs a second less or two. The
command line's tests start theirs as users do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.events import AnyEvent, RunStarted
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.scan import ScanRequest, scan
from exportdoctor.process.launcher import Fork
from exportdoctor.targets import resolve


def _warm_up() -> None:
    """Import once what every worker would import again: torch's tracer, and transformers' largest model here."""
    from transformers import Qwen2_5_VLForConditionalGeneration  # noqa: F401

    module, shapes = torch.nn.Linear(2, 2), ({0: torch.export.Dim.DYNAMIC},)
    torch.export.export(module, (torch.zeros(3, 2),), dynamic_shapes=shapes, strict=False)


_warm_up()


def events_of(
    ref: str, *, build: BuildOptions | None = None, parts: tuple[str, ...] = (), **how: Any
) -> list[AnyEvent]:
    """All events of a scan of `ref`, its first one included; `how` are fields of ScanOptions."""
    options = ScanOptions(**{"use_cache": False, "cure": False, **how})
    target = TargetRef(ref=ref, parts=parts, options=build or BuildOptions())
    torch.set_num_threads(1)  # the threads of a parallel region do not survive a fork
    with tempfile.TemporaryDirectory() as folder:
        request = ScanRequest(target=target, options=options, logs=Path(folder))
        started = RunStarted(run="test", target=target, options=options, version="0")
        return [started, *scan(request, Fork(resolve(target)))]


def scan_ref(ref: str, **how: Any) -> Report:
    """The report of a scan of `ref`. No finding hides itself, and those that hide others are in the report."""
    report = fold(events_of(ref, **how)).report()
    known = {finding.id for finding in report.findings}
    assert all(finding.behind in known - {finding.id} for finding in report.findings if finding.behind)
    return report


def scan_file(path: Path, *, factory: str = "build", **how: Any) -> Report:
    """The report of a scan of `path:factory`."""
    return scan_ref(f"{path}:{factory}", **how)
