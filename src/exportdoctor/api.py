"""`exportdoctor.scan`: the command line's scan for a module that is in memory already."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from exportdoctor.core.errors import UsageError
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.events import RunStarted
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import RunState
from exportdoctor.core.scan_options import ScanKeywords, ScanOptions
from exportdoctor.engine.scan import ScanRequest
from exportdoctor.engine.scan import scan as scan_events
from exportdoctor.engine.shim_files import check_shim_files
from exportdoctor.process.launcher import Fork
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
    shims: Sequence[str | Path] = (),
    allow_unsound: bool = False,
    out: str | Path | None = None,
    **options: Unpack[ScanKeywords],
) -> Report:
    """Try `torch.export` on `module` and, where it fails, on its submodules; returns the report.

    `args`, `kwargs` and `dynamic_shapes` are those of `torch.export.export`. `more_inputs` are `(args, kwargs)` at
    other sizes, which show the submodules' dynamic dimensions. `shims` are files with shims of your own, and unsound
    ones are tried only with `allow_unsound`. The run is kept in `out`, by default among the other runs; where the disk
    refuses, the report is returned all the same. The other keywords are those of ScanKeywords:

    - `exporter`: `export` (the default), `export-strict` or `torchscript`
    - `exhaustive`: export every distinct submodule, not only those below a failing parent
    - `audit`: also export every submodule that equals another one, and compare; else a few are drawn
    - `cure`: search for shims under which it exports and computes eager's numbers; True by default
    - `timeout`: seconds for one attempt; `memory_mb`: MiB for one attempt on top of what this process holds
    - `build_timeout`, `build_memory_mb`: the same for capturing the forward
    - `jobs`: attempts at a time; 2 by default

    Attempts are made in forks of this process, so neither the module nor torch's state is touched here. Raises
    UsageError where that cannot be, and TargetError where the eager forward fails.
    """
    _refuse_unknown_options(options)
    _refuse_unforkable()
    plan = plan_for_module(
        module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, more_inputs=more_inputs, options=BuildOptions()
    )
    scan_options = ScanOptions(
        **options,
        use_cache=False,
        shim_files=tuple(str(Path(file).absolute()) for file in shims),
        allow=("unsound",) if allow_unsound else (),
    )
    check_shim_files(scan_options.shim_files)
    target = TargetRef(ref=plan.ref, options=BuildOptions())
    run = new_run_id(plan.ref)
    with RunFolder.create(Path(out) if out else runs_root() / run) as folder:
        register(run, folder.path)
        started = RunStarted(
            at=time.time(),
            run=run,
            target=target,
            options=scan_options,
            version=version("exportdoctor"),
            title=plan.title,
        )
        folder.record(started)
        state = RunState().apply(started)
        request = ScanRequest(target=target, options=scan_options, logs=folder.logs)
        with contextlib.closing(scan_events(request, Fork(plan))) as events:
            for event in folder.record_all(events):
                state.apply(event)
        report = state.report()
        folder.record_report(report)
    if folder.trouble is not None:
        warnings.warn(f"The run could not be kept: {folder.trouble.line()}", stacklevel=2)
    return report


def _refuse_unknown_options(options: ScanKeywords) -> None:
    unknown = options.keys() - ScanKeywords.__annotations__.keys()
    if unknown:
        raise TypeError(f"scan() got an unexpected keyword argument {min(unknown)!r}")
    exporter = options.get("exporter", "export")
    if exporter not in EXPORTERS:
        raise UsageError(f"There is no exporter {exporter!r}", hint=f"Exporters: {', '.join(EXPORTERS)}")


def _refuse_unforkable() -> None:
    """A CUDA context does not survive a fork."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise UsageError(
            "This process has initialized CUDA and cannot be forked",
            hint="Write a factory that builds the module, and run: exportdoctor scan FILE.py:FACTORY --device cuda",
        )
