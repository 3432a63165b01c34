"""`exportdoctor.scan`: the command line's scan for a module that is in memory already."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from exportdoctor.core.errors import UsageError
from exportdoctor.core.events import RunStarted
from exportdoctor.core.exporters import Exporter
from exportdoctor.core.report import Report
from exportdoctor.core.run_state import RunState
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.core.target import BuildOptions, TargetRef
from exportdoctor.engine.pool.launch import Fork
from exportdoctor.engine.scan import scan as scan_events
from exportdoctor.engine.scan_request import ScanRequest
from exportdoctor.shims import registry
from exportdoctor.store.places import new_run_id, runs_root
from exportdoctor.store.run_folder import RunFolder
from exportdoctor.store.runs import register
from exportdoctor.targets import plan_for_module

if TYPE_CHECKING:
    from torch import nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def scan(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    more_inputs: Sequence[Inputs] = (),
    exporter: Exporter = "export",
    exhaustive: bool = False,
    cure: bool = True,
    shims: Sequence[str | Path] = (),
    allow_unsound: bool = False,
    timeout: float | None = None,
    memory_mb: float | None = None,
    jobs: int = 2,
    out: str | Path | None = None,
) -> Report:
    """Try `torch.export` on `module` and, where it fails, on its submodules; returns the report.

    `args`, `kwargs` and `dynamic_shapes` are those of `torch.export.export`. `more_inputs` are `(args, kwargs)` at
    other sizes, which tell the submodules' dynamic dimensions. With `cure`, shims are sought under which it exports and
    computes eager's numbers; `shims` are files with shims of your own, and unsound ones are tried only with
    `allow_unsound`. `timeout` is in seconds for one attempt, `memory_mb` in MiB on top of what this process holds. The
    run is kept in `out`, by default among the other runs; where the disk refuses, the report is returned all the same.

    Attempts are made in forks of this process, so neither the module nor torch's state is touched here. Raises
    UsageError where that cannot be, and TargetError where the eager forward fails.
    """
    if exporter not in get_args(Exporter):
        raise UsageError(f"There is no exporter {exporter!r}", hint=f"Exporters: {', '.join(get_args(Exporter))}")
    _refuse_unforkable()
    plan = plan_for_module(
        module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, more_inputs=more_inputs, options=BuildOptions()
    )
    options = ScanOptions(
        exporter=exporter,
        exhaustive=exhaustive,
        timeout=timeout,
        memory_mb=memory_mb,
        jobs=jobs,
        use_cache=False,
        cure=cure,
        shim_files=tuple(str(Path(file).absolute()) for file in shims),
        allow=("unsound",) if allow_unsound else (),
    )
    registry(options.shim_files)  # a file that cannot be used is refused now
    target = TargetRef(ref=plan.ref, options=BuildOptions())
    run = new_run_id(plan.ref)
    with RunFolder.create(Path(out) if out else runs_root() / run) as folder:
        register(run, folder.path)
        started = RunStarted(
            at=time.time(), run=run, target=target, options=options, version=version("exportdoctor"), title=plan.title
        )
        folder.record(started)
        state = RunState().apply(started)
        request = ScanRequest(run=run, target=target, options=options, logs=folder.logs)
        with contextlib.closing(scan_events(request, Fork(plan))) as events:
            for event in folder.record_all(events):
                state.apply(event)
        report = state.report()
        folder.record_report(report)
    if folder.trouble is not None:
        warnings.warn(f"The run could not be kept: {folder.trouble.line()}", stacklevel=2)
    return report


def _refuse_unforkable() -> None:
    """A CUDA context does not survive a fork."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise UsageError(
            "This process has used CUDA and cannot be forked",
            hint="Write a factory that builds the module and run: exportdoctor scan FILE.py:FACTORY --device cuda",
        )
