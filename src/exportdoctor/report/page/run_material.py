"""What a page shows of a run beyond its report: inputs, attempts, repro scripts, logs, sources, another run.

Scripts and logs are read from the run's own folder only, and sources only where they still hold the line that ran: a
page is made to be sent, and a run that came from elsewhere must not choose which files of this machine go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exportdoctor.core.protocol.scan import ModuleFact
from exportdoctor.core.records.outcome import Frame, Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import RunState
from exportdoctor.report.comparison import Comparison, compare_runs
from exportdoctor.report.source_lines import Excerpt, Sources

_TAIL = 16_000  # bytes of a log
_LONGEST_SCRIPT = 64_000  # bytes of a repro


@dataclass(frozen=True)
class Attempt:
    """An attempt that ran: it began at `start`, in seconds since the epoch."""

    probe: Probe
    outcome: Outcome
    start: float


@dataclass(frozen=True, kw_only=True)
class RunMaterial:
    """`facts` by part and FQN; `scripts` and `logs` by the id of the finding; `build` is (start, end) in seconds."""

    facts: Mapping[tuple[str, str], ModuleFact] = field(default_factory=dict)
    axes: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    build: tuple[float, float] | None = None
    scripts: Mapping[str, str] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)
    sources: Sources | None = None
    comparison: Comparison | None = None

    def excerpt(self, frame: Frame, *, around: int) -> Excerpt:
        """The lines around a frame's own; that one alone where no Python file here is known to hold it."""
        if self.sources is None or not frame.file.endswith(".py") or not frame.source.strip():
            return Excerpt(first=frame.line, lines=(frame.source.strip(),), culprit=frame.line)
        return self.sources.excerpt(frame, around=around)


def gather_material(
    events: Iterable[ev.AnyEvent], folder: Path, *, before: RunState | None = None, sources: Sources | None = None
) -> RunMaterial:
    """What the run in `folder` has to show, and what changed since the run `before`."""
    state, attempts = RunState(), []
    begun = opened = 0.0
    for event in events:
        state.apply(event)
        if isinstance(event, ev.RunStarted):
            begun = event.at
        elif isinstance(event, ev.TargetOpened):
            opened = event.at
        elif isinstance(event, ev.ProbeFinished) and not event.cached and event.at:
            attempts.append(Attempt(event.probe, event.outcome, event.at - event.outcome.seconds))
    findings = state.findings.values()
    repros = {finding.id: finding.repro.path for finding in findings if finding.repro is not None}
    logs = {finding.id: finding.log for finding in findings if finding.log}
    return RunMaterial(
        facts={(name, fact.fqn): fact for name, part in state.parts.items() for fact in part.captured.modules},
        axes={name: part.captured.axes for name, part in state.parts.items()},
        attempts=tuple(attempts),
        build=(begun, opened) if 0 < begun < opened else None,
        scripts={name: text for name, path in repros.items() if (text := _read(folder, path, last=_LONGEST_SCRIPT))},
        logs={name: text for name, path in logs.items() if (text := _read(folder, path, last=_TAIL))},
        sources=sources or Sources(),
        comparison=compare_runs(before, state) if before is not None else None,
    )


def _read(folder: Path, name: str, *, last: int) -> str:
    """The end of a file of the run; empty where there is none."""
    path = Path(name)
    inside = folder / path.parent.name / path.name
    try:
        if not inside.resolve().is_relative_to(folder.resolve()):
            return ""
        data = inside.read_bytes()
    except (OSError, ValueError):
        return ""
    return ("…" if len(data) > last else "") + data[-last:].decode("utf-8", "replace").strip()
