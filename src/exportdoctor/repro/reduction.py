"""Drives the reducer over a draft: every candidate runs on the bench, and only the same bug counts as interesting.

Law: what is returned was seen to fail with the wanted trait, whenever and however the search ends.
"""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from exportdoctor.core.outcome import Outcome
from exportdoctor.reduce import (
    Ended,
    NotInteresting,
    Reduced,
    Search,
    Terms,
    Verdict,
    reduce_source,
    source_distance,
    source_size,
    steps,
)
from exportdoctor.repro.backward import sliced
from exportdoctor.repro.bench import CANDIDATE_FILE, Bench
from exportdoctor.repro.eager import mended
from exportdoctor.repro.flatten import flattened
from exportdoctor.repro.sameness import Trait, trait_of, verdict
from exportdoctor.repro.sizes import shrink_sizes
from exportdoctor.repro.verdict_log import VerdictLog

Told = Callable[[str], None]
_PAUSE = 2.0
_TRIES = 150


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a reduction may cost: wall seconds, and candidates."""

    seconds: float = 60.0
    questions: int = 2000


@dataclass
class Reduction:
    """What came of it. `others` maps other failures that were met to how often."""

    source: str
    closest: str | None = None
    asked: int = 0
    seconds: float = 0.0
    ended: str = Ended.FINISHED.value
    flaky: bool = False
    others: dict[str, int] = field(default_factory=dict)


@dataclass
class Reducer:
    """Reduces drafts of one bug. With `eager` a candidate must also run without export, as the user's model does.

    `tell` gets a line now and then; `log` makes it resumable.
    """

    bench: Bench
    wanted: Trait
    exporter: str
    budget: Budget
    tell: Told
    log: VerdictLog
    others: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False
    kept: Callable[[str], bool] = lambda text: True
    eager: bool = False
    _begun: float = field(default_factory=time.monotonic)

    def judge(self, source: str) -> Verdict:
        """The verdict of one candidate."""
        key = f"{self.eager} {source}"
        known = self.log.known(key)
        if known is not None:
            return known
        outcome = self.bench.run(source, eager=self.eager)
        found = verdict(self.wanted, outcome, exporter=self.exporter)
        if found is Verdict.UNKNOWN:
            self._note(outcome)
        self.log.note(key, found)
        return found

    def _note(self, outcome: Outcome) -> None:
        """Another failure of an export is worth telling; a candidate that is no program is not."""
        trait = trait_of(outcome, exporter=self.exporter)
        if outcome.failure is not None and outcome.failure.stage == "capture":
            return
        if trait is not None and trait.kind not in ("python_error", self.wanted.kind):
            text = f"{trait.kind}: {trait.message[:160]}"
            self.others[text] = self.others.get(text, 0) + 1

    def slice(self, source: str) -> str:
        """`source` cut by data flow, as often as that helps."""
        while True:
            cut = sliced(source, self.bench.run(source).failure, file=CANDIDATE_FILE)
            if len(cut) >= len(source) or self.judge(cut) is not Verdict.YES:
                return source
            self.tell(f"{code_lines(cut)} lines by data flow")
            source = cut

    def reduce(self, source: str) -> Reduction:
        """The smallest version of `source` that is still the same bug. Ctrl-C keeps the best so far."""
        self._begun = time.monotonic()
        try:
            source = self.slice(source)
        except KeyboardInterrupt:
            return Reduction(source, ended="interrupted")
        course = steps(
            _all_passes(source, self.kept),
            lambda candidate, ahead: self.judge(candidate),
            start=source,
            terms=Terms(
                questions=self.budget.questions,
                should_stop=self._over,
                size=source_size,
                distance=source_distance,
                confirmations=0,
            ),
        )
        return self._followed(course, source)

    def tidy(self, source: str) -> str:
        """`source` without statements that do nothing, which a search that was cut off leaves behind."""
        tree = ast.parse(source)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and not isinstance(node, ast.Module):
                node.body = [one for one in body if not _is_idle(one)] or [ast.Pass()]  # type: ignore[attr-defined]
        text = ast.unparse(tree)
        return text if text != source and self.judge(text) is Verdict.YES else source

    def mend(self, source: str) -> str:
        """`source` with sizes that run in eager too, where a few tries find some; `eager` then says so."""
        self.eager = True
        for tried in itertools.chain((source,), itertools.islice(mended(source), _TRIES)):
            if self.judge(tried) is Verdict.YES:
                return tried
        self.eager = False
        return source

    def _over(self) -> bool:
        return time.monotonic() - self._begun > self.budget.seconds

    def _followed(self, course: Iterator[object], source: str) -> Reduction:
        best, closest, told, asked = source, None, time.monotonic(), 0
        began = time.monotonic()
        try:
            while True:
                step = next(course)
                asked = step.asked  # type: ignore[attr-defined]
                if step.accepted:  # type: ignore[attr-defined]
                    best = step.candidate  # type: ignore[attr-defined]
                elif step.verdict is Verdict.NO:  # type: ignore[attr-defined]
                    closest = step.candidate  # type: ignore[attr-defined]
                if time.monotonic() - told >= _PAUSE:
                    told = time.monotonic()
                    self.tell(f"{code_lines(best)} lines after {asked} candidates")
        except StopIteration as end:
            result: Reduced[str, str] = end.value
            return Reduction(
                source=result.answer or result.smallest, closest=result.closest, asked=result.asked,
                seconds=time.monotonic() - began, ended=result.ended.value, flaky=result.flaky is not None,
                others=self.others,
            )  # fmt: skip
        except KeyboardInterrupt:
            self.interrupted = True
            return Reduction(best, closest, asked, time.monotonic() - began, "interrupted", False, self.others)
        except NotInteresting:
            raise


def _is_idle(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.Name)
    )


def _all_passes(source: str, kept: Callable[[str], bool]) -> Search[str, str]:
    """Sizes first, then statements and expressions, then whole modules, with what that makes possible."""

    def reduce(text: str) -> Search[str, str]:
        return reduce_source(text, kept=kept)

    source = yield from shrink_sizes(source)
    source = yield from reduce(source)
    return (yield from flattened(source, reduce))


def code_lines(source: str) -> int:
    """Lines of code: neither empty ones nor comments."""
    return sum(1 for line in source.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def first_interesting(sources: Iterator[tuple[str, str]], reducer: Reducer) -> tuple[str, str] | None:
    """The first of (what, source) that is the same bug."""
    for what, source in sources:
        if reducer.judge(source) is Verdict.YES:
            return what, source
    return None


def log_at(folder: Path, name: str) -> VerdictLog:
    """The log of verdicts of a finding."""
    return VerdictLog(folder / f"{name}.verdicts.jsonl")
