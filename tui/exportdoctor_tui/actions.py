"""What can be done from a run's screen. One row here is one thing to do; nothing else needs to know of it.

Each runs a verb of the command line as a process of its own and is offered only where that verb exists, so that
its results are events of a run like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from exportdoctor.cli.verbs import VERBS
from exportdoctor.store.places import new_run_id, runs_root, slug
from exportdoctor_tui import commands
from exportdoctor_tui.commands import Command

if TYPE_CHECKING:
    from exportdoctor.core.events import RunStarted
    from exportdoctor_tui.pages.selection import Selection
    from exportdoctor_tui.view import RunView

Needs = Literal["", "shims", "shim", "run"]
"""What the user still has to choose: nothing, a set of shims, one, another run."""


@dataclass(frozen=True, kw_only=True)
class Deed:
    """A command ready to start, once what it `needs` is chosen: `command` makes it of the choice.

    `opens`: the folder of the new run that it makes; None = it adds to this one. `shows`: its output is the result.
    """

    title: str
    command: Callable[[tuple[str, ...]], Command]
    opens: Path | None = None
    shows: bool = False
    needs: Needs = ""


@dataclass(frozen=True, kw_only=True)
class Action:
    """`make` gives the deeds for what is selected: none where it makes no sense there."""

    verb: str
    make: Callable[[RunView, Selection | None], Iterator[Deed]]


def _resume(view: RunView, _selection: Selection | None) -> Iterator[Deed]:
    if view.status == "cut off" and view.started is not None:
        yield Deed(title=f"Resume {view.run}", command=lambda _: commands.resume(Path(view.path)))


def _repro(view: RunView, selection: Selection | None) -> Iterator[Deed]:
    finding = selection.finding if selection else None
    if finding is None or not finding.id or view.status == "running":
        return
    run, which = Path(view.path), finding.id
    again = "Make and verify the repro of" if finding.repro is None else "Verify and go on reducing the repro of"
    yield Deed(title=f"{again} {which}", command=lambda _: commands.make_repro(run, which))
    yield Deed(
        title=f"Write {which} as an issue: script, text, log",
        command=lambda _: commands.make_repro(run, which, bundle=run / "bundles" / which),
    )


def _try(view: RunView, selection: Selection | None) -> Iterator[Deed]:
    started = view.started
    if selection is None or started is None:
        return
    part = selection.part.record.name
    yield Deed(
        title=f"Try shims on {part} …",
        command=lambda shims: commands.try_shims(started, shims, part=part, run=Path(view.path)),
        shows=True,
        needs="shims",
    )
    yield Deed(
        title="Show what a shim changes …",
        command=lambda shims: commands.show_shim(shims[0], started.options),
        shows=True,
        needs="shim",
    )


def _export(view: RunView, selection: Selection | None) -> Iterator[Deed]:
    started = view.started
    if selection is None or started is None or selection.part.record.verdict == "fails":
        return
    part = selection.part.record
    if not part.complete:
        return
    yield _exported(started, part.name, "pt2", Path(f"{slug(view.target.ref)}-{part.name}.pt2"))
    yield _exported(started, part.name, "onnx", Path(f"{slug(view.target.ref)}-{part.name}.onnx"))


def _exported(started: RunStarted, part: str, to: str, out: Path) -> Deed:
    return Deed(
        title=f"Export {part} to ./{out}",
        command=lambda _: commands.export_part(started, part=part, to=to, out=out),
        shows=True,
    )


def _rescan(view: RunView, selection: Selection | None) -> Iterator[Deed]:
    started = view.started
    if started is None:
        return
    out = runs_root() / new_run_id(view.target.ref)
    if selection is not None:
        where, module = selection.part.record.name, selection.row.fqns[0]
        if module:
            yield Deed(
                title=f"Rescan {module}, as a new run",
                command=lambda _: commands.scan_again(started, parts=(where,), out=out, module=module),
                opens=out,
            )
    if selection is not None and len(view.parts) > 1:
        part = selection.part.record.name
        yield Deed(
            title=f"Rescan {part}, as a new run",
            command=lambda _: commands.scan_again(started, parts=(part,), out=out),
            opens=out,
        )
    parts = started.target.parts
    yield Deed(
        title="Rescan everything, as a new run",
        command=lambda _: commands.scan_again(started, parts=parts, out=out),
        opens=out,
    )


def _compare(view: RunView, _selection: Selection | None) -> Iterator[Deed]:
    if view.started is not None:
        yield Deed(
            title="Tell what changed since another run …",
            command=lambda runs: commands.compare(Path(runs[0]), Path(view.path)),
            shows=True,
            needs="run",
        )


ACTIONS = (
    Action(verb="scan", make=_resume),
    Action(verb="repro", make=_repro),
    Action(verb="shims", make=_try),
    Action(verb="export", make=_export),
    Action(verb="scan", make=_rescan),
    Action(verb="compare", make=_compare),
)


def deeds(view: RunView, selection: Selection | None) -> tuple[Deed, ...]:
    """What can be done now."""
    verbs = {verb.name for verb in VERBS}
    return tuple(deed for action in ACTIONS if action.verb in verbs for deed in action.make(view, selection))
