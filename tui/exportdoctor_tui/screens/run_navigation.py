"""The half of a run's screen that goes places: each key is one step from where the user is to where they want to be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from textual.widgets import Input

from exportdoctor_tui import navigation as browsing
from exportdoctor_tui.screens.run_commands import RunDeeds
from exportdoctor_tui.widgets.module_tree import ModuleTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from exportdoctor_tui.navigation import Browse


class RunSteps(RunDeeds):
    """Mixed into the run's screen, which holds `browse` and draws."""

    browse: Browse

    def step(self, browse: Browse) -> None:
        """The screen's."""
        raise NotImplementedError

    def draw_finding(self, *, at_once: bool = True) -> None:
        """The screen's."""
        raise NotImplementedError

    def action_filter(self) -> None:
        """Type to filter; enter keeps it, escape drops it."""
        self.query_one("#filter").display = True
        self.query_one("#filter").focus()

    def action_failure(self, step: int) -> None:
        """The next or previous failure."""
        self.step(browsing.next_failure(self.view, self.browse, step=step))

    def go_to(self, finding: str) -> None:
        """The row that a finding is about."""
        self.step(browsing.finding_shown(self.view, self.browse, finding))

    def action_part(self, step: int) -> None:
        """The next or previous part."""
        self.step(browsing.other_part(self.view, self.browse, step=step))

    def action_tab(self, tab: str) -> None:
        """Another page on the selected row."""
        self.browse = replace(self.browse, tab=tab)
        self.draw_finding()

    def action_torch_frames(self) -> None:
        """All frames or the user's; shows the stack."""
        self.browse = replace(self.browse, torch_frames=not self.browse.torch_frames, tab="stack")
        self.draw_finding()

    def action_open_all(self) -> None:
        """Open every row."""
        self.step(browsing.all_open(self.view, self.browse))

    def action_open_failing(self) -> None:
        """Open failing paths only."""
        self.step(browsing.only_failing_open(self.browse))

    def action_zoom(self) -> None:
        """One pane on the whole screen, or both."""
        self.set_class(not self.has_class("zoomed"), "zoomed")

    def action_back(self) -> None:
        """One step out of wherever the user is."""
        entry, tree = self.query_one("#filter", Input), self.query_one(ModuleTree)
        steps: tuple[tuple[bool, Callable[[], object]], ...] = (
            (bool(entry.display), self._drop_filter),
            (self.has_class("zoomed"), self.action_zoom),
            (not tree.has_focus, tree.focus),
        )
        for wanted, back in steps:
            if wanted:
                back()
                return
        self.doctor.show_runs()

    def _drop_filter(self) -> None:
        entry = self.query_one("#filter", Input)
        entry.value = ""
        entry.display = False
        self.query_one(ModuleTree).focus()
