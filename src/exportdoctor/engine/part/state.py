"""What is known of one part so far: its tree of calls, its modules' verdicts, and the diseases that these show."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from exportdoctor.core.protocol.scan import Captured
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.cure.driver import CureDriver
from exportdoctor.engine.part.call_tree import call_tree, facts
from exportdoctor.engine.part.followups import FollowUps, with_own
from exportdoctor.engine.part.questions import Answer, CallSite
from exportdoctor.engine.verdicts.judge import Verdict, blaming, judge, same_bug
from exportdoctor.engine.verdicts.localise import Case, cases
from exportdoctor.engine.verdicts.same_failure import same_disease


@dataclass
class Chart:
    """Whoever asks fills `verdicts`, `open` (what was asked and has no verdict yet), `asked` and `cure`."""

    captured: Captured
    options: ScanOptions
    versions: Mapping[str, str]
    ladder: FollowUps
    cure: CureDriver | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    open: dict[str, tuple[CallSite, ...]] = field(default_factory=dict)
    asked: int = 0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.tree = call_tree(self.captured)
        self.facts = facts(self.tree)
        self.classes = {fqn: fact.class_name for fqn, fact in self.facts.items()}

    @property
    def root(self) -> Verdict | None:
        """The verdict of the part's root, once it was asked."""
        return self.verdicts.get(self.captured.prefix)

    @property
    def failing(self) -> bool:
        """Whether the part's root fails, or one of the modules that were chosen."""
        if self.options.modules:
            return any(verdict.failing for verdict in self.verdicts.values())
        return self.root is None or self.root.failing

    def diseases(self) -> list[Case]:
        """Every disease that is known: what modules show, and what lay hidden behind."""
        shown = self.shown()
        hidden = self._hidden(shown)
        if not hidden:
            return shown
        return cases([verdict for case in shown for verdict in case.verdicts] + hidden, self.classes)

    def shown(self) -> list[Case]:
        """The diseases among the failing modules of which enough is known to say whose they are."""
        return cases(with_own(self.placed_verdicts(), self.ladder.own), self.classes)

    def _hidden(self, known: list[Case]) -> list[Verdict]:
        """Failures that the search for a cure met behind the first, and that no module showed."""
        if self.cure is None or self.open:
            return []  # a module may yet show it
        exporter = self.options.exporter
        fresh = [
            outcome
            for outcome in self.cure.prescriber.hidden()
            if not any(same_disease(outcome, case.leading().outcome, exporter=exporter) for case in known)
        ]
        place = CallSite(self.captured.prefix, 0)
        return [judge(place.fqn, ((place, Answer(place, outcome)),)) for outcome in fresh]

    def placed_verdicts(self) -> list[Verdict]:
        """Of the failing modules, those of which enough is known to say whose failure it is."""
        failing = [fqn for fqn in self.facts if fqn in self.verdicts and self.verdicts[fqn].failing]
        return [verdict for fqn in failing if (verdict := self._placed(fqn)) is not None]

    def _placed(self, fqn: str) -> Verdict | None:
        """A failing module's verdict with whom to blame; None while that may still turn out to be a child.

        Where no frame says whose code failed, a child that alone fails in the same way is to blame, and so on down.
        """
        verdict = self.verdicts[fqn]
        children = list(self.tree.successors(fqn))
        if verdict.located or not children:
            return verdict
        if not all(child in self.verdicts for child in children):
            return None
        guilty = next((child for child in children if same_bug(verdict, self.verdicts[child])), None)
        if guilty is None:
            return verdict
        deeper = self._placed(guilty)
        return blaming(verdict, deeper) if deeper is not None else None
