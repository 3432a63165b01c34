"""The driver of generators of probes: each probe is asked once, in whatever order outcomes come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.probe_driver import Lookahead, Prefetch, ProbeDriver, ProbeSteps, Request

NAMES = st.lists(st.sampled_from("abcd"), max_size=6)


def steps_over(names: Sequence[str], seen: list[str], *, ahead: Sequence[str]) -> ProbeSteps[None]:
    """Asks the names one after the other, some of them ahead; `seen` is what it was sent."""
    yield Prefetch(tuple(Probe(part="p", fqn=name) for name in ahead))
    for name in names:
        yield Lookahead("p", tuple(Probe(part="p", fqn=one) for one in names))
        outcome = yield Probe(part="p", fqn=name)
        seen.append(outcome.note)


@pytest.mark.slow
@given(st.lists(st.tuples(NAMES, NAMES), max_size=3), st.randoms())
def test_every_generator_gets_its_outcomes_in_order_and_no_probe_is_asked_twice(
    wanted: list[tuple[list[str], list[str]]], random: object
) -> None:
    driver, asked, seen = ProbeDriver(), [], [list[str]() for _ in wanted]
    waiting: list[Request] = []
    for (names, ahead), notes in zip(wanted, seen, strict=True):
        waiting += driver.start(steps_over(names, notes, ahead=ahead))
    while waiting:
        probe = waiting.pop(random.randrange(len(waiting)))  # type: ignore[attr-defined]
        if isinstance(probe, Lookahead):
            assert {one.fqn for one in probe.probes} <= {name for names, _ in wanted for name in names}
            continue
        asked.append(probe.fqn)
        outcome = Outcome(probe=probe.id, status=OutcomeStatus.PASSED, note=probe.fqn)
        assert driver.awaits(outcome)
        waiting += driver.take(outcome)
        assert not driver.awaits(outcome)
    assert seen == [names for names, _ in wanted]
    assert len(asked) == len(set(asked))
    assert set(asked) == {name for names, ahead in wanted for name in (*names, *ahead)}
