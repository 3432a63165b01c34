"""The searches and texts of the follow-ups, without torch."""

from __future__ import annotations

import itertools
from collections.abc import Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.core.axis_names import group_derived
from exportdoctor.core.protocol.scan import CallFact, InputFact
from exportdoctor.core.records.outcome import (
    ExceptionFact,
    Failure,
    Frame,
    GraphSlice,
    Outcome,
    OutcomeStatus,
    SliceNode,
)
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.part.dimensions import Dimensions, smallest_dimensions
from exportdoctor.report.slice_text import as_dot, as_mermaid, as_text

NAMES = ("batch", "sequence", "patches", "windows", "heads")
PROBE = Probe(part="default", fqn="")
ROOT = CallFact(question="q", group="k", inputs=tuple(InputFact(path=n, kind="int64", axes=(n,)) for n in NAMES))


def failing(line: int = 7) -> Outcome:
    frame = Frame(file="model.py", line=line, function="forward", source="int(x)", user=True)
    error = ExceptionFact(type="RuntimeError", message="Could not guard on data-dependent expression u0")
    return Outcome(
        probe="p", status=OutcomeStatus.FAILED, failure=Failure(stage="export", exceptions=(error,), frames=(frame,))
    )


PASSED = Outcome(probe="p", status=OutcomeStatus.PASSED)
TIMED_OUT = Outcome(probe="p", status=OutcomeStatus.TIMED_OUT)


def run(*culprits: set[str], elsewhere: Set[str] = frozenset()) -> tuple[Dimensions, int]:
    """The answer for a model that fails when all of one of `culprits` are dynamic, else when any of `elsewhere` is."""
    search, asked, answer = smallest_dimensions(PROBE, ROOT, failing()), 0, None
    while True:
        try:
            probe = search.send(answer)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value, asked
        asked += 1
        dynamic = set(probe.dynamic or ())
        fails = any(one <= dynamic for one in culprits)
        answer = failing() if fails else failing(line=9) if dynamic & elsewhere else PASSED


@given(st.sets(st.sampled_from(NAMES)))
def test_exactly_the_dimensions_that_matter_remain(culprits: set[str]) -> None:
    found, asked = run(culprits)
    assert set(found.failing) == culprits
    assert asked <= 24
    assert found.passing == (tuple(n for n in NAMES if n not in culprits) if culprits else None)


@given(st.lists(st.sets(st.sampled_from(NAMES), min_size=1), min_size=1, max_size=3))
def test_every_disjoint_set_with_which_alone_it_fails_is_told(culprits: list[set[str]]) -> None:
    """Each set that is told fails alone, and what is said to pass passes; nothing that fails alone is left over."""
    found, asked = run(*culprits)
    told = [set(names) for names in (found.failing, *found.others)]
    assert asked <= 24
    assert all(any(one <= names for one in culprits) for names in told)
    assert sum(map(len, told)) == len(set().union(*told))
    if asked < 24:
        rest = set(NAMES).difference(*told)
        assert not any(one <= rest for one in culprits)
        assert set(found.passing or ()) == rest


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        (PASSED, Dimensions(NAMES, ())),
        (TIMED_OUT, Dimensions(())),
        (failing(), Dimensions(NAMES)),
    ],
)
def test_of_a_time_out_only_static_shapes_are_asked(static: Outcome, expected: Dimensions) -> None:
    search = smallest_dimensions(PROBE, ROOT, TIMED_OUT)
    assert next(search).dynamic == ()
    with pytest.raises(StopIteration) as ended:
        search.send(static)
    assert ended.value.value == expected


def test_a_failure_that_two_dimensions_show_alone_is_not_told_of_one() -> None:
    found, _ = run({"batch"}, {"sequence"})
    assert {found.failing, *found.others} == {("batch",), ("sequence",)}
    assert found.passing == ("patches", "windows", "heads")


def test_what_fails_in_another_way_alone_is_not_called_passing() -> None:
    found, _ = run({"sequence"}, elsewhere={"batch"})
    assert found == Dimensions(("sequence",), None)


def test_derived_dimensions_stay_with_their_own() -> None:
    names = ("cache length", "batch", "cache length + 1", "2*batch", "x[0]")
    assert group_derived(names) == (("cache length", "cache length + 1"), ("batch", "2*batch"), ("x[0]",))


def test_probes_with_other_dynamic_dimensions_are_other_questions() -> None:
    variants = [
        Probe(part="p", fqn="a", dynamic=dynamic, opaque=opaque)
        for dynamic, opaque in itertools.product((None, (), ("batch",), ("batch", "sequence")), (False, True))
    ]
    assert len({probe.id for probe in variants}) == len({probe.variant for probe in variants}) == len(variants)


SLICE = GraphSlice(
    nodes=(
        SliceNode(name="arg0_1", op="input", shape="int64[2]", label="lengths"),
        SliceNode(name="max_1", op="aten.max.default", shape="int64[]", file="m.py", line=3, source='f("a<b")'),
        SliceNode(name="item", op="aten.item.default", shape="u0", file="m.py", line=3, source='f("a<b")'),
    ),
    edges=((0, 1), (1, 2)),
    targets=(2,),
    left_out=4,
)


def test_a_slice_as_text_has_one_line_for_each_value() -> None:
    assert as_text(SLICE).splitlines() == [
        "  … 4 values farther away",
        "  lengths                            int64[2]",
        '  max_1 = aten.max.default(lengths)  int64[]   m.py:3  f("a<b")',
        "▶ item = aten.item.default(max_1)    u0",
    ]


@pytest.mark.parametrize("draw", [as_dot, as_mermaid])
def test_a_drawn_slice_has_every_node_and_edge_and_escapes_the_source(draw: object) -> None:
    text = draw(SLICE)  # type: ignore[operator]
    assert all(f"n{index}[" in text.replace(" [", "[") for index in range(3))
    assert "n0 -> n1" in text or "n0 --> n1" in text
    assert 'f("a' not in text
