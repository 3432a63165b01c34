"""Reduces a draft to the smallest script that still shows the same bug.

What is returned was seen to fail with the wanted signature, whenever and however the search ends.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from exportdoctor.core.protocol.repro import CANDIDATE_FILE
from exportdoctor.reduce import (
    Ended,
    JudgedCandidate,
    ParallelOracle,
    Search,
    SearchLimits,
    SearchResult,
    Verdict,
    drive,
    reduce_source,
    source_distance,
    source_size,
    steps,
)
from exportdoctor.reduce.source.passes.aliases import drop_aliases
from exportdoctor.reduce.source.passes.backward_slice import slice_backward
from exportdoctor.reduce.source.passes.inline_modules import inline_modules
from exportdoctor.reduce.source.passes.inlining import inline_single_calls
from exportdoctor.reduce.source.passes.leaps import replace_with_ones, share_sizes
from exportdoctor.reduce.source.passes.parameters import drop_unread_parameters
from exportdoctor.reduce.source.passes.script_sizes import (
    offer_eager_sizes,
    return_last_values,
    shrink_sizes,
    widen_dynamic_sizes,
)
from exportdoctor.reduce.source.passes.tidy import drop_idle_statements, name_inputs, rename_exported_class
from exportdoctor.report import wording
from exportdoctor.repro.candidates.budget import LONG, BudgetClock
from exportdoctor.repro.candidates.candidate_judge import CandidateJudge
from exportdoctor.repro.candidates.closest_variant import draw_near
from exportdoctor.repro.script import code_lines

Tell = Callable[[str], None]
"""Shows a line of progress."""

_INTERRUPTED = "interrupted"
_PAUSE = 2.0  # seconds between two lines of progress
_TRIES = 90
_TRIES_AT_LEAST = 15
_CONFIRMATIONS = 2
_ONES = 0.25  # of the budget, for tensors of ones in place of what is computed
_POLISHING = 0.35  # of the budget, so that it is not all spent before sizes that run in eager are looked for


@dataclass(frozen=True)
class ReductionResult:
    """The result of a reduction.

    `closest` passes; `eager`: both run without export; `trail`: what was the same bug on the way, the largest first.
    `ended` is a value of reduce.Ended, or "interrupted". `same` of the last `runs` runs of `source` were the same bug:
    with fewer than all the bug is flaky.
    """

    source: str
    closest: str | None = None
    asked: int = 0
    ended: str = Ended.FINISHED.value
    eager: bool = False
    same: int = 0
    runs: int = 0
    trail: tuple[str, ...] = ()

    @property
    def flaky(self) -> bool:
        """Whether the same script was seen to fail so and not to."""
        return self.same < self.runs

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.ended == _INTERRUPTED


@dataclass(frozen=True)
class Reducer:
    """Reduces drafts of one bug until the time of `clock` is over. Ctrl-C keeps the best so far."""

    judge: CandidateJudge
    clock: BudgetClock
    tell: Tell

    def reduce(self, source: str) -> ReductionResult:
        """The smallest version of `source` that is still the same bug."""
        draft = source
        try:
            source = slice_by_stack(self.judge, source, self.tell)
            inlined = inline_single_calls(source)
            if inlined != source and self.judge(inlined) is Verdict.YES:
                source = slice_by_stack(self.judge, inlined, self.tell)
            limits = SearchLimits[str](size=source_size, should_stop=lambda: self.clock.is_over(_ONES))
            for leap in (share_sizes, replace_with_ones):
                found = drive(leap(source), self.judge, start=source, limits=limits)
                answer = found.answer or found.smallest
                if answer and answer != source:
                    source = slice_by_stack(self.judge, answer, self.tell)
        except KeyboardInterrupt:
            return ReductionResult(source, ended=_INTERRUPTED, eager=self.judge.eager)
        result = self._drive(_all_passes, source, share=1 - _POLISHING, candidates=self.clock.budget.candidates)
        result = replace(result, trail=(draft, *result.trail))
        return self.cut_again(result) if code_lines(result.source) > LONG else result

    def cut_again(self, found: ReductionResult) -> ReductionResult:
        """The same without what only statements needed that are gone by now, where it is long or its time was over."""
        if found.interrupted or (found.ended == Ended.FINISHED.value and code_lines(found.source) <= LONG):
            return found
        try:
            source = slice_by_stack(self.judge.with_eager(found.eager), found.source, self.tell)
        except KeyboardInterrupt:
            return replace(found, ended=_INTERRUPTED)
        return replace(found, source=source, trail=(*found.trail, source))

    def polish(self, found: ReductionResult) -> ReductionResult:
        """The same, as small as can be, with sizes and results that run in eager mode too; else what last ran in it.

        The closest variant that exports then runs in eager mode as well. Unchanged where nothing ran in eager mode.
        """
        strict = replace(self, judge=self.judge.with_eager(True))
        try:
            source = strict._find_eager_sizes(found.source) or find_last(found.trail, strict._is_interesting)
        except KeyboardInterrupt:
            return replace(found, ended=_INTERRUPTED)
        if source is None:
            return found
        candidates = max(0, self.clock.budget.candidates - found.asked)
        again = strict._drive(reduce_source, source, share=1.0, candidates=candidates)
        return replace(
            again,
            closest=again.closest or found.closest,
            asked=again.asked + found.asked,
            ended=found.ended if again.ended == Ended.FINISHED.value else again.ended,
        )

    def _find_eager_sizes(self, source: str) -> str | None:
        starts = tuple(dict.fromkeys((source, return_last_values(source))))
        sized: Iterator[str] = itertools.chain.from_iterable(zip(*map(offer_eager_sizes, starts), strict=True))
        offered = itertools.chain(starts, itertools.islice(sized, _TRIES))
        for number, tried in enumerate(offered):
            if number > _TRIES_AT_LEAST and self.clock.is_over():
                break
            if self.judge(tried) is Verdict.YES:
                return tried
        return None

    def _is_interesting(self, source: str) -> bool:
        return self.judge(source) is Verdict.YES

    def tidy(self, found: ReductionResult) -> ReductionResult:
        """The same without idle statements; its closest passing variant has the same class name."""
        judge = self.judge.with_eager(found.eager)
        closest = tidy_script(judge, found.closest, like=Verdict.NO) if found.closest else None
        source = tidy_script(judge, found.source)
        if closest is not None:
            closest = draw_near(source, closest, lambda variant: judge(variant) is Verdict.NO)
        return replace(found, source=source, closest=closest)

    def widen(self, found: ReductionResult) -> ReductionResult:
        """The same with sizes of which torch takes each as dynamic, if it fails so too."""
        source = widen_dynamic_sizes(found.source)
        same = source != found.source and self.judge.with_eager(found.eager)(source) is Verdict.YES
        return replace(found, source=source) if same else found

    def confirm(self, found: ReductionResult) -> ReductionResult:
        """Run the result again, because a bug may come and go."""
        judge = self.judge.with_eager(found.eager)
        same = sum(judge.rerun(found.source) is Verdict.YES for _ in range(_CONFIRMATIONS))
        return replace(found, same=same, runs=_CONFIRMATIONS)

    def _drive(
        self, search: Callable[[str], Search[str, str]], source: str, *, share: float, candidates: int
    ) -> ReductionResult:
        width = self.judge.runner.width
        with ThreadPoolExecutor(width) as threads:
            oracle: ParallelOracle[str] = ParallelOracle(lambda one: threads.submit(self.judge, one), width=width)
            smallest = [source]
            limits = SearchLimits[str](
                candidates=candidates,
                should_stop=lambda: self.clock.is_over(share, source=smallest[-1]),
                size=source_size,
                distance=source_distance,
            )
            try:
                found = self._follow(steps(search(source), oracle, start=source, limits=limits), smallest)
                return replace(found, eager=self.judge.eager, trail=tuple(smallest))
            finally:
                oracle.close()

    def _follow(
        self, course: Generator[JudgedCandidate[str], None, SearchResult[str, str]], smallest: list[str]
    ) -> ReductionResult:
        """The course's end. What was accepted is added to `smallest`, in which the script itself is."""
        closest, asked = None, 0
        shown = time.monotonic()
        try:
            while True:
                step = next(course)
                asked = step.asked
                if step.accepted:
                    smallest.append(step.candidate)
                elif step.verdict is Verdict.NO:
                    closest = step.candidate
                if time.monotonic() - shown >= _PAUSE:
                    shown = time.monotonic()
                    self.tell(wording.repro_progress(code_lines(smallest[-1]), asked))
        except StopIteration as end:
            result: SearchResult[str, str] = end.value
            return ReductionResult(
                source=result.answer or result.smallest, closest=result.closest, asked=result.asked,
                ended=result.ended.value,
            )  # fmt: skip
        except KeyboardInterrupt:
            return ReductionResult(smallest[-1], closest, asked, _INTERRUPTED)


def _all_passes(source: str) -> Search[str, str]:
    """Sizes first, then statements and expressions, then whole modules, with what that makes possible."""
    named = name_inputs(source)
    if named != source and (yield (named,)) is not None:
        source = named
    source = yield from shrink_sizes(source)
    source = yield from reduce_source(source)
    return (yield from inline_modules(source, reduce_source))


def find_last(trail: tuple[str, ...], holds: Callable[[str], bool]) -> str | None:
    """A late one of `trail` that holds, found by steps that double from the end, then halved; None if none is found."""
    late, step = len(trail), 1
    early = late - 1
    while early >= 0 and not holds(trail[early]):
        late, step = early, 2 * step
        early = max(0, early - step) if early else -1
    while early >= 0 and late - early > 1:
        middle = (early + late) // 2
        if holds(trail[middle]):
            early = middle
        else:
            late = middle
    return trail[early] if early >= 0 else None


def slice_by_stack(judge: CandidateJudge, source: str, tell: Tell) -> str:
    """`source` cut by data flow to what the lines of its failing stack need, as often as that helps.

    First with the calls on the stack alone, each naming the function that ran next, and without what no function reads
    then. A violated dimension has no stack: there it is the line of the guard.
    """
    while True:
        failure = judge.runner.run(source).failure
        frames = [frame for frame in failure.frames if frame.file == CANDIDATE_FILE] if failure else []
        lines = {frame.line for frame in frames}
        if failure is not None and failure.guard is not None and failure.guard.file == CANDIDATE_FILE:
            lines.add(failure.guard.line)
        calls = {frame.line or 0: frame.expression for frame in frames[:-1] if frame.expression}
        called = {frame.line: after.function for frame, after in itertools.pairwise(frames) if frame.line in calls}
        cuts = (
            drop_unread_parameters(slice_backward(source, lines, calls, called)),
            drop_unread_parameters(slice_backward(source, lines, calls)),
            slice_backward(source, lines),
        )
        cut = next((cut for cut in dict.fromkeys(cuts) if len(cut) < len(source) and judge(cut) is Verdict.YES), None)
        if cut is None:
            return source
        tell(wording.repro_sliced(code_lines(cut)))
        source = cut


def tidy_script(judge: CandidateJudge, source: str, *, like: Verdict = Verdict.YES) -> str:
    """`source` without what does nothing, is not used or has two names, and with `Model` for the exported class."""
    tidy = drop_idle_statements(source)
    used = drop_idle_statements(slice_backward(tidy, set()))
    one_name = drop_aliases(used)
    for text in dict.fromkeys((*(rename_exported_class(one, "Model") for one in (one_name, used, tidy)), tidy)):
        if text != source and judge(text) is like:
            return text
    return source
