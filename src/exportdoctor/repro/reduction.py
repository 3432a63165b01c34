"""Drives the reducer over a draft: every candidate runs on a bench, and only the same bug counts as interesting.

Law: what is returned was seen to fail with the wanted trait, whenever and however the search ends.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from exportdoctor.reduce import (
    Ended,
    ParallelOracle,
    Reduced,
    Search,
    Step,
    Terms,
    Verdict,
    drive,
    reduce_source,
    source_distance,
    source_size,
    steps,
)
from exportdoctor.reduce.source.passes.backward_slice import slice_backward
from exportdoctor.reduce.source.passes.inline_modules import inline_modules
from exportdoctor.reduce.source.passes.replace_with_ones import replace_with_ones
from exportdoctor.reduce.source.passes.script_sizes import offer_eager_sizes, shrink_sizes
from exportdoctor.reduce.source.passes.tidy import drop_idle_statements, rename_exported_class
from exportdoctor.repro.candidate_runner import CANDIDATE_FILE, Bench
from exportdoctor.repro.incidental_failures import Met
from exportdoctor.repro.repro_signature import Trait, verdict
from exportdoctor.repro.script import code_lines
from exportdoctor.repro.verdict_log import VerdictLog

Told = Callable[[str], None]
_PAUSE = 2.0
_BUSY = 0.9  # seconds of the processor that candidates get in a second of a quiet machine, at least
_TRIES = 90
_TRIES_AT_LEAST = 15
_CONFIRMATIONS = 2
_POLISHING = 0.35  # of the budget, so that it is not all spent before sizes that run in eager are looked for


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a reduction may cost: wall seconds, and candidates.

    On a machine that does other things too it may take up to `at_most` wall seconds, until the candidates have had as
    much of the processor as `seconds` give them on a quiet one.
    """

    seconds: float = 60.0
    questions: int = 2000
    at_most: float = 0.0


@dataclass
class Reduction:
    """What came of it.

    `same` of the last `runs` runs of `source` were the same bug: with fewer than all the bug is flaky.
    """

    source: str
    closest: str | None = None
    asked: int = 0
    seconds: float = 0.0
    ended: str = Ended.FINISHED.value
    same: int = 0
    runs: int = 0

    @property
    def flaky(self) -> bool:
        """Whether the same script was seen to fail so and not to."""
        return self.same < self.runs

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.ended == "interrupted"


@dataclass
class Reducer:
    """Reduces drafts of one bug. With `eager` a candidate must also run without export, as the user's model does.

    `tell` gets a line now and then; `log` makes it resumable; `met` collects the other failures.
    """

    bench: Bench
    wanted: Trait
    exporter: str
    budget: Budget
    tell: Told
    log: VerdictLog
    met: Met | None = None
    eager: bool = False
    _begun: float = field(default_factory=time.monotonic)
    _worked: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def judge(self, source: str) -> Verdict:
        """The verdict of one candidate; from the log where it has one. Any thread may ask."""
        key = f"{self.eager} {source}"
        with self._lock:
            known = self.log.known(key)
        if known is not None:
            return known
        found = self.seen(source)
        with self._lock:
            self.log.note(key, found)
        return found

    def seen(self, source: str) -> Verdict:
        """The verdict of one run of a candidate, whatever was said of it before."""
        outcome = self.bench.run(source, eager=self.eager)
        found = verdict(self.wanted, outcome, exporter=self.exporter)
        if found is Verdict.UNKNOWN and self.met is not None:
            self.met.note(source, outcome)
        return found

    def slice(self, source: str) -> str:
        """`source` cut by data flow, as often as that helps."""
        while True:
            failure = self.bench.run(source).failure
            lines = {frame.line for frame in failure.frames if frame.file == CANDIDATE_FILE} if failure else set()
            cut = slice_backward(source, lines)
            if len(cut) >= len(source) or self.judge(cut) is not Verdict.YES:
                return source
            self.tell(f"{code_lines(cut)} lines by data flow")
            source = cut

    def stand_in(self, source: str) -> str:
        """`source` with plain tensors for what a few questions show that they may stand for."""
        found = drive(replace_with_ones(source), self.judge, start=source, terms=Terms(size=source_size))
        return found.answer or source

    def reduce(self, source: str) -> Reduction:
        """The smallest version of `source` that is still the same bug. Ctrl-C keeps the best so far."""
        self._begun, self._worked = time.monotonic(), self.bench.worked()
        try:
            source = self.slice(source)
            stood_in = self.stand_in(source)
            source = source if stood_in == source else self.slice(stood_in)
        except KeyboardInterrupt:
            return Reduction(source, ended="interrupted")
        return self._driven(_all_passes, source, share=1 - _POLISHING, asked=self.budget.questions)

    def polish(self, found: Reduction) -> Reduction:
        """The same with sizes that run in eager too where a few tries find some, as small as that can be.

        `eager` then says so, and the closest variant that exports runs in eager as well.
        """
        try:
            source = self.mend(found.source)
        except KeyboardInterrupt:
            self.eager = False
            return replace(found, ended="interrupted")
        if not self.eager:
            return found
        asked = max(0, self.budget.questions - found.asked)
        again = self._driven(_statements, source, share=1.0, asked=asked)
        again.closest = again.closest or found.closest
        again.asked, again.seconds = again.asked + found.asked, again.seconds + found.seconds
        again.ended = found.ended if again.ended == Ended.FINISHED.value else again.ended
        return again

    def tidied(self, found: Reduction) -> Reduction:
        """The same without idle statements; its closest passing variant has the same class name."""
        closest = self.tidy(found.closest, like=Verdict.NO) if found.closest else None
        return replace(found, source=self.tidy(found.source), closest=closest)

    def tidy(self, source: str, *, like: Verdict = Verdict.YES) -> str:
        """`source` without statements that do nothing, which a search that was cut off leaves behind, as `Model`."""
        tidy = drop_idle_statements(source)
        for text in (rename_exported_class(tidy, "Model"), tidy):
            if text != source and self.judge(text) is like:
                return text
        return source

    def mend(self, source: str) -> str:
        """`source` with sizes that run in eager too, where a few tries find some; `eager` then says so."""
        self.eager = True
        for number, tried in enumerate(itertools.chain((source,), itertools.islice(offer_eager_sizes(source), _TRIES))):
            if number > _TRIES_AT_LEAST and self._is_late(1.0):
                break
            if self.judge(tried) is Verdict.YES:
                return tried
        self.eager = False
        return source

    def confirm(self, found: Reduction) -> None:
        """Run the result again: a bug that comes and goes must not be sold as one that stays."""
        for _ in range(_CONFIRMATIONS):
            found.runs += 1
            found.same += self.seen(found.source) is Verdict.YES

    def _is_late(self, share: float) -> bool:
        """Whether that share of the time is over."""
        seconds, taken = share * self.budget.seconds, time.monotonic() - self._begun
        if taken <= seconds:
            return False
        return taken > share * self.budget.at_most or self.bench.worked() - self._worked > seconds * _BUSY

    def _driven(self, search: Callable[[str], Search[str, str]], source: str, *, share: float, asked: int) -> Reduction:
        with ThreadPoolExecutor(self.bench.width) as threads:
            oracle: ParallelOracle[str] = ParallelOracle(
                lambda one: threads.submit(self.judge, one), width=self.bench.width, key=str
            )
            terms = Terms[str](
                questions=asked,
                should_stop=lambda: self._is_late(share),
                size=source_size,
                distance=source_distance,
            )
            try:
                return self._followed(steps(search(source), oracle, start=source, terms=terms), source)
            finally:
                oracle.close()

    def _followed(self, course: Generator[Step[str], None, Reduced[str, str]], source: str) -> Reduction:
        best, closest, asked = source, None, 0
        began = told = time.monotonic()
        try:
            while True:
                step = next(course)
                asked = step.asked
                if step.accepted:
                    best = step.candidate
                elif step.verdict is Verdict.NO:
                    closest = step.candidate
                if time.monotonic() - told >= _PAUSE:
                    told = time.monotonic()
                    self.tell(f"{code_lines(best)} lines after {asked} candidates")
        except StopIteration as end:
            result: Reduced[str, str] = end.value
            return Reduction(
                source=result.answer or result.smallest, closest=result.closest, asked=result.asked,
                seconds=time.monotonic() - began, ended=result.ended.value,
            )  # fmt: skip
        except KeyboardInterrupt:
            seconds = time.monotonic() - began
            return Reduction(best, closest, asked, seconds, "interrupted")


def _all_passes(source: str) -> Search[str, str]:
    """Sizes first, then statements and expressions, then whole modules, with what that makes possible."""
    source = yield from shrink_sizes(source)
    source = yield from _statements(source)
    return (yield from inline_modules(source, _statements))


def _statements(source: str) -> Search[str, str]:
    return reduce_source(source)
