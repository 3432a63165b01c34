"""Starts or resumes a scan: its events come from an earlier run that is still valid, or from the engine."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from exportdoctor.cli.follow_scan import OutputOptions, follow, print_result
from exportdoctor.cli.packages import version
from exportdoctor.core.errors import UsageError
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import RunState, fold
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.process.interpreter import handed_over
from exportdoctor.process.launcher import WORKER_LOG, Spawn, SpawnAhead
from exportdoctor.store.digest import name_changes, request_digest, sources_of
from exportdoctor.store.places import new_run_id, runs_root
from exportdoctor.store.run_cache import RunCache, replay
from exportdoctor.store.run_folder import RunFolder
from exportdoctor.store.runs import find_run, register, require_target

Events = Generator[ev.AnyEvent]


def start(
    target: TargetRef, options: ScanOptions, *, output: OutputOptions, out: Path | None, command: tuple[str, ...]
) -> int:
    """Scan `target` into the folder `out` (None: a new one among the runs); returns the exit code.

    Raises what prevents the run from starting.
    """
    from exportdoctor.targets import resolve

    plan = resolve(target)
    digest = request_digest(plan.identity(), options)
    run = out.name if out and out.absolute().parent == runs_root() else new_run_id(target.ref)
    first = ev.RunStarted(
        at=time.time(),
        run=run,
        target=target,
        options=options,
        version=version(),
        command=command,
        title=plan.title,
        python=handed_over(),
    )
    earlier = RunCache().find(digest) if options.use_cache else None
    with RunFolder.create(out or runs_root() / run) as folder:
        folder.note_request(digest)
        register(run, folder.path)
        if earlier is not None:
            folder.share_logs(earlier.path)
            events = replay(earlier, started=first, logs=folder.logs)
        else:
            events = _engine_events(first, folder, answers={})
        state, code = follow(events, folder, RunState(), output=output)
    _remember(digest, folder.path, state)
    return code


def resume(which: str, *, output: OutputOptions, limits: dict[str, Any]) -> int:
    """Continue the run that `which` names, with new `limits` of ScanOptions; known results are not computed again."""
    from exportdoctor.targets import resolve

    with RunFolder.reopen(find_run(which)) as folder:
        state = fold(folder.events)
        if state.started is None:
            raise UsageError(f"the run in {folder.path} was cut off before its first event", hint="Scan again")
        if state.finished is not None and state.finished.complete:
            print_result(state, folder.path, output=output)
            return output.check.judge(state, state.finished.exit_code)
        require_target(state.started)
        digest = request_digest(resolve(state.started.target).identity(), state.started.options)
        _refuse_changed(folder, digest)
        options = msgspec.structs.replace(state.started.options, **limits)
        events = _resumed_events(msgspec.structs.replace(state.started, options=options), folder, state)
        state, code = follow(events, folder, state, output=output)
    _remember(digest, folder.path, state)
    return code


def _resumed_events(first: ev.RunStarted, folder: RunFolder, state: RunState) -> Events:
    """RunResumed, then the engine's events."""
    yield ev.RunResumed(at=time.time(), version=version())
    engine = _engine_events(first, folder, answers=dict(state.answers))
    next(engine)  # the run's first event, which is recorded already
    yield from engine


def _engine_events(first: ev.RunStarted, folder: RunFolder, *, answers: dict[str, Any]) -> Events:
    """The run's first event, then the engine's."""
    yield first
    with closing(SpawnAhead(Spawn().start(log=folder.logs / WORKER_LOG))) as launcher:
        from exportdoctor.engine.scan import ScanRequest, scan

        request = ScanRequest(target=first.target, options=first.options, logs=folder.logs, answers=answers)
        yield from scan(request, launcher)  # closing this closes that, which ends its processes


def _refuse_changed(folder: RunFolder, digest: str) -> None:
    """Results from before and after a change must not mix in one report."""
    changed = name_changes(sources_of(folder.events))
    if not changed and folder.noted_request() in {digest, ""}:
        return
    what = ", ".join(changed[:3]) or "the model, a package or exportdoctor"
    raise UsageError(
        f"{folder.path.name} cannot be resumed: {what} has changed since",
        hint="Scan again; results that are still valid come from the cache",
    )


def _remember(digest: str, path: Path, state: RunState) -> None:
    """Let this run answer the same request next time."""
    if state.started is not None and state.finished is not None:
        RunCache().remember(digest, run=state.started.run, path=path, state=state)
