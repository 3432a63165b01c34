"""Failures that shims cure, in a part without a model, and a search for a cure that is run to its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import msgspec
from hypothesis import strategies as st

from exportdoctor.core.records.outcome import Agreement, ExceptionFact, Failure, Frame, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.cure.search import CureSearch
from exportdoctor.engine.probe_driver import Lookahead, ProbeDriver, Request
from exportdoctor.shims import SOUNDNESS, Cure, Shim

ROOT, SMALL = Probe(part="full", fqn=""), Probe(part="full~twin", fqn="")
RIGHT = (Agreement(inputs="2 x 3", max_abs=1e-7, tolerance=1e-4), Agreement(inputs="4 x 3", tolerance=1e-4))
WRONG = (RIGHT[0], Agreement(inputs="4 x 3", max_abs=3.0, tolerance=1e-4))
REFUSED = (RIGHT[0], Agreement(inputs="4 x 3", trouble="AssertionError: Guard failed", refused=True))

SOUND = tuple(kind for kind in SOUNDNESS if kind != "specialised")

Part = Callable[[Probe], Outcome]
Cures = dict[str, int] | dict[str, frozenset[int]]


def failing(nth: int) -> Outcome:
    """It stops at that line, later ones after more has been traced."""
    fact = ExceptionFact(type="builtins.RuntimeError", message=f"failure {nth}.")
    frame = Frame(file="model.py", line=nth, function="forward", source=f"step{nth}()", module="", user=True)
    failure = Failure(stage="export", exceptions=(fact,), frames=(frame,), traced=10 * nth)
    return Outcome(probe="", status=OutcomeStatus.FAILED, failure=failure)


def shim(name: str, *failures: int, soundness: Any = "exact") -> Shim:
    cures = tuple(Cure(message=rf"failure {nth}\.") for nth in failures)
    return Shim(id=name, title=name, soundness=soundness, enter=nullcontext, cures=cures)


def failing_part(failures: int, cures: Cures, numbers: Callable[[frozenset[str]], Any] | None = None) -> Part:
    """What fails at its first failure that no shim given cures."""

    def answer(probe: Probe) -> Outcome:
        cured = frozenset().union(*(_several(cures[name]) for name in probe.shims if name in cures))
        left = [nth for nth in range(1, failures + 1) if nth not in cured]
        if left:
            return failing(left[0])
        rows = (numbers(frozenset(probe.shims)) if numbers else RIGHT) if probe.to == "run" else ()
        rows = RIGHT[:1] if probe.to == "compare" else rows
        status = OutcomeStatus.PASSED if all(row.holds for row in rows) else OutcomeStatus.FAILED
        return Outcome(probe="", status=status, numbers=rows)

    return answer


def run_search(
    answer: Part,
    shims: tuple[Shim, ...],
    *,
    small: bool = False,
    values: bool = True,
    to: str = "export",
    goal: str = "",
    alternatives: bool = True,
    see: Callable[[list[Probe]], object] = len,
    look: Callable[[Lookahead], object] = id,
) -> CureSearch:
    """A search at its end; `see` is called with the probes that wait for an answer at the same time, `look` with each
    that may be needed next."""
    root, small_root = (msgspec.structs.replace(one, to=to) for one in (ROOT, SMALL))
    search = CureSearch(
        root=root,
        first=answer(root),
        small=small_root if small else None,
        values=values,
        shims=shims,
        versions={"torch": "2.13.0"},
        goal=goal or to,
        alternatives=alternatives,
    )
    driver = ProbeDriver()
    waiting = _probes(driver.start(search.steps()), look)
    while waiting:  # the newest first: what was asked ahead may be answered late
        see(waiting)
        probe = waiting.pop()
        outcome = msgspec.structs.replace(answer(probe), probe=probe.id)
        assert driver.awaits(outcome)
        waiting += _probes(driver.take(outcome), look)
    assert search.done
    return search


def _probes(requests: Iterable[Request], look: Callable[[Lookahead], object]) -> list[Probe]:
    """Those that an answer is needed of."""
    found = list(requests)
    for one in found:
        if isinstance(one, Lookahead):
            look(one)
    return [one for one in found if isinstance(one, Probe)]


def _several(failures: int | frozenset[int]) -> frozenset[int]:
    return frozenset({failures}) if isinstance(failures, int) else failures


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, tuple[Shim, ...], dict[str, int]]:
    """Failures one behind the other, and shims of every soundness; not every failure has one that works."""
    failures = draw(st.integers(1, 4))
    shims, cures = [], {}
    for number in range(draw(st.integers(0, 8))):
        nth, works = draw(st.integers(1, failures)), draw(st.booleans())
        name = f"s{number}"
        shims.append(shim(name, nth, soundness=draw(st.sampled_from(SOUND))))
        if works:
            cures[name] = nth
    return failures, tuple(shims), cures


@st.composite
def situations_at_odds(draw: st.DrawFn) -> tuple[int, tuple[Shim, ...], dict[str, int], frozenset[frozenset[str]]]:
    """Each failure has up to three shims that cure it, some of which spoil what another one does."""
    failures = draw(st.integers(2, 3))
    cures = {f"s{nth}{place}": nth for nth in range(1, failures + 1) for place in range(draw(st.integers(1, 3)))}
    allowed = [kind for kind in SOUND if kind != "unsound"]
    shims = tuple(shim(name, nth, soundness=draw(st.sampled_from(allowed))) for name, nth in cures.items())
    pairs = [frozenset(pair) for pair in itertools.combinations(cures, 2) if len({cures[name] for name in pair}) == 2]
    return failures, shims, cures, frozenset(draw(st.lists(st.sampled_from(pairs), max_size=4)))


@st.composite
def situations_with_broad_shims(draw: st.DrawFn) -> tuple[int, tuple[Shim, ...], dict[str, frozenset[int]]]:
    """Each shim cures some of the failures that it fits."""
    failures = draw(st.integers(1, 3))
    shims, cures = [], {}
    for number in range(draw(st.integers(0, 8))):
        fits = draw(st.frozensets(st.integers(1, failures), min_size=1))
        name = f"s{number}"
        shims.append(shim(name, *fits, soundness=draw(st.sampled_from(SOUND))))
        cures[name] = frozenset(nth for nth in fits if draw(st.booleans()))
    return failures, tuple(shims), cures


def failing_later(nth: int) -> Outcome:
    """The program exports, and torch.onnx stops at that line."""
    found = failing(nth)
    assert found.failure is not None
    failure = msgspec.structs.replace(found.failure, stage="translate")
    return msgspec.structs.replace(found, failure=failure, stages={"export": "pass", "translate": "fail"})


@st.composite
def situations_behind(draw: st.DrawFn) -> tuple[int, int, tuple[Shim, ...], dict[str, int]]:
    """As `situations`, where the last failures are of the translation; each of the export's has a shim."""
    exports, later = draw(st.integers(1, 2)), draw(st.integers(0, 2))
    shims, cures = [], {}
    for nth in range(1, exports + later + 1):
        for number in range(draw(st.integers(int(nth <= exports), 2))):
            name = f"s{nth}{number}"
            soundness = draw(st.sampled_from([one for one in SOUND if one != "unsound"]))
            shims.append(shim(name, nth, soundness=soundness))
            if draw(st.booleans()) or (nth <= exports and number == 0):
                cures[name] = nth
    return exports, later, tuple(draw(st.permutations(shims))), cures
