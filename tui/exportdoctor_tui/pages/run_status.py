"""The lines around a run's tree: what was scanned, how far it is, the attempts in progress, the background job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual.content import Content

from exportdoctor.core.errors import ExitCode
from exportdoctor.core.run.report import Report
from exportdoctor.report import wording
from exportdoctor_tui.sanitize import fit, line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.core.failure.finding import Finding
    from exportdoctor_tui.actions.background_job import BackgroundJob
    from exportdoctor_tui.state.run_view import PartView, RunningAttempt, RunView

_BAR = 12
_JOB_COLOURS = {
    "running": "$text-primary",
    "done": "$text-success",
    "failed": "$text-error",
    "cancelled": "$text-warning",
}
_CLOCK = re.compile(r"^\d+(?:\.\d+)? ?s\s+")  # the job's own, beside ours
_NAMED = 2  # parts that are named; the tabs show the rest


def head(view: RunView) -> Content:
    """The target, and the versions it was scanned with."""
    first, *rest = view.headline
    return Content.assemble((line(first), "bold $text-accent"), ("  " + line(" · ".join(rest)), "$foreground 75%"))


def status(view: RunView, now: float, width: int) -> Content:
    """How far the scan is, and its notes, cut at `width` cells; several lines while it runs. `now`: Unix time."""
    notes = (Content.styled(fit(f"· {line(note)}", width), "$foreground 75%") for note in view.notes[:2])
    return Content("\n").join((*_status(view, now, width), *notes))


def _status(view: RunView, now: float, width: int) -> Iterator[Content]:
    if view.status == "running":
        yield from _progress(view, now, width)
    elif view.status == "finished":
        cost = wording.cost(Report(target=view.target, stats=replace(view.stats, peak_rss_mb=0)))
        found = wording.different_findings(_report(view))
        yield Content.assemble(("finished  ", "bold $text-success"), f"{found} · {cost}")
    elif view.finished is not None and view.finished.exit_code in (ExitCode.USAGE, ExitCode.TARGET):
        yield Content.styled("ended with an error", "bold $text-error")
    else:
        text = "This run was interrupted; its findings so far are shown. To continue: a, then Resume"
        yield Content.assemble(("cut off  ", "bold $text-warning"), text)
    if view.problem:
        yield Content.assemble(("▲ ", "bold $text-error"), line(view.problem))


def _progress(view: RunView, now: float, width: int) -> Iterator[Content]:
    began = view.started.at if view.started else now
    elapsed = max(0.0, now - began)
    pieces = [wording.duration(elapsed)]
    searches = view.started is None or view.started.options.cure
    steps = 3 if searches else 2
    if not view.parts:
        first = f"1/{steps} build: {line(view.step or 'starting')} · {pieces[0]}"
        yield Content.assemble(("running  ", "bold $text-primary"), first)
        return
    judged, called = (sum(numbers) for numbers in zip(*((part.judged, part.record.called) for part in view.parts)))
    share = judged / max(1, called)
    searching = searches and share >= 1
    left = wording.time_left_of_share(share, elapsed, searches=searches)
    if left:
        pieces.append(left)
    full, far = round(share * _BAR), f"{judged}/{called}"
    bar = () if searching else (("━" * full, "$text-success"), ("━" * (_BAR - full), "$foreground 25%"), "  ")
    phase = f"{steps}/{steps} cure: " if searching else f"2/{steps} diagnose "
    said = " · ".join((wording.shim_sets_tried(view.sets_tried) if searching else far, *pieces))
    running = ("running  ", "bold $text-primary")
    whole = Content.assemble(running, phase, *bar, f"{_activity(view, share)} ", said)
    yield whole if whole.cell_length <= width else Content.assemble(running, phase, said)
    yield from (_attempt(attempt, now) for attempt in view.attempts[:4])


def _activity(view: RunView, share: float) -> str:
    """The parts being scanned; once every module has its verdict, those for which a cure is searched."""
    cures = [attempt.part for attempt in view.attempts if attempt.cures]
    if share >= 1 and cures:
        return f"trying shims on {line(', '.join(dict.fromkeys(cures)))} ·"
    left = [part.record.name for part in view.parts if not part.record.complete]
    return wording.count(len(left), "part") if len(left) > _NAMED else line(", ".join(left)) or "finishing"


def _attempt(attempt: RunningAttempt, now: float) -> Content:
    since = f"{wording.duration(max(0.0, now - attempt.since)):>7}" if attempt.since else "       "
    return Content.assemble(
        (f"  {since}  ", "$foreground 75%"),
        fit(f"{line(attempt.part)} ", 8) + line(wording.module_name(attempt.fqn)),
        (f"  {line(attempt.how)}", "$text-warning") if attempt.how else (f"  process {attempt.pid}", "$foreground 75%"),
    )


def part_title(part: PartView, findings: int) -> tuple[str, str]:
    """A part's title in the line of tabs, and its colour."""
    record = part.record
    if not record.complete:
        return f"{line(record.name)} {wording.SYMBOLS['not_asked']} {part.judged}/{record.called}", "$text-primary"
    status = wording.VERDICT_STATUS[record.verdict]
    colour = {"pass": "$text-success", "cured": "$text-warning"}.get(status, "$text-error")
    return f"{line(record.name)} {wording.SYMBOLS[status]}{f' {findings}' if findings else ''}", colour


def first_step(view: RunView) -> str:
    """What stands beside an empty tree while a scan begins."""
    return (
        f"{line(view.step) or 'starting'}\n\n"
        "torch is imported and the model is built, which takes 10 seconds or more. Then its submodules appear here.\n\n"
        f"What is found is kept in {line(view.path)}."
    )


def _report(view: RunView) -> Report:
    parts = tuple(part.record for part in view.parts)
    return Report(target=view.target, parts=parts, findings=tuple(view.findings.values()))


def finding_title(finding: Finding, view: RunView) -> str:
    """A finding in the list of findings: where it is, or which one it is the same as."""
    report = _report(view)
    same = wording.same_as_earlier(finding, report)
    return f"{finding.id}  {same}" if same else wording.title(finding, report)


def job_line(job: BackgroundJob, now: float) -> Content:
    """The state of a job; while it runs its last line, once it has ended what there is, or why it failed."""
    state, code = job.state, job.code
    since = f" · {wording.duration(max(0.0, now - job.begun))}" if state == "running" else ""
    ended = f" · exit code {code}" if state == "failed" else ""
    if state == "running" or (state == "failed" and not job.shows) or (state == "done" and code and not job.shows):
        said = _CLOCK.sub("", job.last_line()).removeprefix("exportdoctor: ")
    else:  # the output of a job that shows it is on the screen; its last line alone says nothing
        said = job.done if state == "done" else ""
    return Content.assemble(
        (f"{state}  ", f"bold {_JOB_COLOURS[state]}"),
        line(job.title) + since + ended,
        (f"  {line(said)}" if said else "", "$foreground 75%"),
        ("  x cancels · o output" if state == "running" else "  o output", "$foreground 75%"),
    )
