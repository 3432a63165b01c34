"""`exportdoctor.scan`: the command line's scan for a module that is in memory already."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from exportdoctor.core.errors import StoreError, UsageError
from exportdoctor.core.exporters import EXPORTERS, Exporter
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.events import RunStarted
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import RunState
from exportdoctor.core.scan_options import OPTIONS, ScanOptions
from exportdoctor.engine.scan import ScanRequest
from exportdoctor.engine.scan import scan as scan_events
from exportdoctor.engine.shim_files import check_shim_files
from exportdoctor.process.launcher import Fork
from exportdoctor.report.live.progress import Progress
from exportdoctor.scan_report import ScanReport, progress_here, refuse_unforkable
from exportdoctor.store.places import check_working_folder, new_run_id, runs_root
from exportdoctor.store.run_folder import RunFolder
from exportdoctor.store.runs import register
from exportdoctor.targets import plan_for_module
from exportdoctor.targets.built import Inputs

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.targets.factory.factory_plan import FactoryPlan


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
    exporter: Exporter = "export",
    to: Literal["export", "decomposed", "onnx", "ort"] = "export",
    exhaustive: bool = False,
    search: bool = True,
    audit: bool = False,
    cure: bool = True,
    alternatives: bool = True,
    timeout: float | None = None,
    memory_mb: float | None = None,
    build_timeout: float | None = None,
    build_memory_mb: float | None = None,
    jobs: int = 2,
    progress: bool | None = None,
) -> ScanReport:
    """Try `torch.export` on `module` and, where it fails, on its submodules; returns the report.

    `args`, `kwargs` and `dynamic_shapes` are those of `torch.export.export`. `more_inputs` are `(args, kwargs)` at
    other sizes, which show the submodules' dynamic dimensions. `shims` are files with shims of your own, and unsound
    ones are tried only with `allow_unsound`. The run is kept in `out`, by default among the other runs; where the disk
    refuses, the report is returned all the same.

    - `exporter`: `export` (the default), `export-strict` or `torchscript`
    - `to`: how far to go: `export` only, `decomposed` to run decompositions too, `onnx` to translate too, `ort` to run
      that in ONNX Runtime
    - `exhaustive`: export every distinct submodule, not only those below a failing parent
    - `search`: look for the smallest submodule that fails; else each part is exported once, as a whole
    - `audit`: also export every submodule that equals another one, and compare; else a few are drawn
    - `cure`: search for shims under which it exports and computes eager's numbers
    - `alternatives`: where a sound set of shims cures a part, also look for others that do
    - `timeout`: seconds for one attempt; `memory_mb`: MiB for one attempt on top of what this process holds
    - `build_timeout`, `build_memory_mb`: the same for capturing the forward
    - `jobs`: attempts at a time
    - `progress`: show how far it is; by default in notebooks and where stderr is a terminal

    The report shows itself in a notebook; `print(report)` is the whole text, and `report.html()` one page to send.
    `report.findings[0].explain()` says why it fails and tries rewrites of the line,
    `report.parts[0].prescription.apply()` holds the shims around an export of your own.

    Attempts are made in forks of this process, so neither the module nor torch's state is touched here. Raises
    UsageError where that cannot be, and TargetError where the eager forward fails.
    """
    for name, given, known in (("exporter", exporter, tuple(EXPORTERS)), ("to", to, OPTIONS["to"].choices)):
        if given not in known:
            raise UsageError(f"There is no {name} {given!r}", hint=f"One of: {', '.join(known)}")
    limits = {
        "timeout": timeout,
        "memory_mb": memory_mb,
        "build_timeout": build_timeout,
        "build_memory_mb": build_memory_mb,
        "jobs": jobs,
    }
    for name, limit in limits.items():
        if limit is not None and not (isinstance(limit, int | float) and 0 < limit < math.inf):
            raise UsageError(f"{name}={limit!r} is no limit", hint="Give a finite number above zero, or None")
    check_working_folder()
    if isinstance(shims, str | Path):
        raise UsageError(f"shims={str(shims)!r} is no list", hint="Give a list of files")
    plan = plan_for_module(
        module, args, kwargs, dynamic_shapes=dynamic_shapes, more_inputs=more_inputs, options=BuildOptions()
    )
    options = ScanOptions(
        exporter=exporter,
        to=to,
        exhaustive=exhaustive,
        search=search,
        audit=audit,
        cure=cure,
        alternatives=alternatives,
        timeout=timeout,
        memory_mb=memory_mb,
        build_timeout=build_timeout,
        build_memory_mb=build_memory_mb,
        jobs=jobs,
        use_cache=False,
        shim_files=tuple(str(Path(file).absolute()) for file in shims),
        allow=("unsound",) if allow_unsound else (),
    )
    check_shim_files(options.shim_files)
    folder = create_run(plan, out)
    with progress_here(shown=progress) as display:
        report = scan_plan(plan, options, folder, progress=display)
    return ScanReport.of(report, plan, options, folder.path)


def create_run(plan: FactoryPlan, out: str | Path | None = None) -> RunFolder:
    """A new run, in `out` or among the others; in a temporary folder, with a warning, where the disk refuses those.

    Raises StoreError where it refuses `out`, UsageError where that holds a run or this process cannot be forked.
    """
    refuse_unforkable()
    try:
        return RunFolder.create(Path(out) if out else runs_root() / new_run_id(plan.ref))
    except StoreError as error:
        if out:
            raise
        elsewhere = Path(tempfile.mkdtemp(prefix="exportdoctor-"))
        warnings.warn(f"The run is kept in {elsewhere}: {error.line()}", stacklevel=3)
        return RunFolder.create(elsewhere)


def scan_plan(
    plan: FactoryPlan,
    options: ScanOptions,
    folder: RunFolder,
    *,
    identity: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Scan a module that is in memory, with its run in `folder`. With `use_cache`, `identity` is all that its answers
    depend on beside itself."""
    target = TargetRef(ref=plan.ref, options=BuildOptions())
    run = folder.path.name if folder.path.absolute().parent == runs_root() else new_run_id(plan.ref)
    with folder:
        register(run, folder.path)
        started = RunStarted(
            at=time.time(), run=run, target=target, options=options, version=version("exportdoctor"), title=plan.title
        )
        folder.record(started)
        state = RunState().apply(started)
        request = ScanRequest(target=target, options=options, logs=folder.logs, identity=identity)
        with contextlib.closing(scan_events(request, Fork(plan))) as events:
            for event in folder.record_all(events):
                state.apply(event)
                if progress is not None:
                    progress.show(event, state)
        report = state.report()
        folder.record_report(report)
    if folder.trouble is not None:
        warnings.warn(f"The run could not be kept: {folder.trouble.line()}", stacklevel=3)
    return report
