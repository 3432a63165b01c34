"""What can be done from a run's screen. One row here is one thing to do; nothing else needs to know of it.

Each runs a verb of the command line as a process of its own and is offered only where that verb exists, so that
its results are events of a run like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from exportdoctor.cli.verbs import VERBS
from exportdoctor.store.places import new_run_id, runs_root
from exportdoctor_tui.commands import Command, resume, scan_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from exportdoctor_tui.pages.selection import Selection
    from exportdoctor_tui.view import RunView


@dataclass(frozen=True, kw_only=True)
class Deed:
    """A command ready to start. `opens`: the folder of the new run that it makes; None = it adds to this one."""

    title: str
    command: Command
    opens: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Action:
    """`make` gives the deed for what is selected, or None where it makes no sense there."""

    verb: str
    make: Callable[[RunView, Selection | None], Deed | None]


def _resume(view: RunView, _selection: Selection | None) -> Deed | None:
    if view.status != "cut off" or view.started is None:
        return None
    return Deed(title=f"Resume {view.run}", command=resume(Path(view.path)))


def _rescan_part(view: RunView, selection: Selection | None) -> Deed | None:
    if selection is None or view.started is None:
        return None
    part = selection.part.record.name
    out = runs_root() / new_run_id(view.target.ref)
    return Deed(
        title=f"Rescan {part}, as a new run", command=scan_again(view.started, parts=(part,), out=out), opens=out
    )


def _rescan(view: RunView, _selection: Selection | None) -> Deed | None:
    if view.started is None:
        return None
    out = runs_root() / new_run_id(view.target.ref)
    command = scan_again(view.started, parts=view.started.target.parts, out=out)
    return Deed(title="Rescan everything, as a new run", command=command, opens=out)


ACTIONS = (
    Action(verb="scan", make=_resume),
    Action(verb="scan", make=_rescan_part),
    Action(verb="scan", make=_rescan),
)


def deeds(view: RunView, selection: Selection | None) -> tuple[Deed, ...]:
    """What can be done now."""
    verbs = {verb.name for verb in VERBS}
    made = (action.make(view, selection) for action in ACTIONS if action.verb in verbs)
    return tuple(deed for deed in made if deed is not None)
