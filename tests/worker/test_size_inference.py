"""How an output's sizes follow from the inputs': a rule that is found is right in both captures."""

from __future__ import annotations

from types import SimpleNamespace

import sympy  # type: ignore[import-untyped]
from hypothesis import assume, given
from hypothesis import strategies as st

from exportdoctor.worker.capture.size_inference import infer_size

SIZES = st.integers(min_value=2, max_value=40)
SHAPES = st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=4)


@given(SIZES, SIZES, SHAPES)
def test_a_rule_gives_the_size_of_either_capture(size: int, other: int, pairs: list[tuple[int, int]]) -> None:
    taken, others = (tuple(a for a, _ in pairs),), (tuple(b for _, b in pairs),)
    found = infer_size(size, other, taken, others)
    if found is not None:
        assert (found.size(taken), found.size(others)) == (size, other)
        codes = [rule.code("taken") for rule in found.rules]
        for code in codes:
            assert eval(code, {"taken": [SimpleNamespace(shape=taken[0])]}) == size
            assert eval(code, {"taken": [SimpleNamespace(shape=others[0])]}) == other
    else:
        assert size != other


@given(SHAPES)
def test_a_product_a_fraction_and_a_difference_are_recognised(pairs: list[tuple[int, int]]) -> None:
    (a, b), (c, d) = pairs[0], pairs[-1]
    taken, others = ((a, c), 4 * a), ((b, d), 4 * b)
    assume(a != b)
    for size, other in ((a * c * 3, b * d * 3), (a + 1, b + 1), (4 * a, 4 * b), (a, b)):
        found = infer_size(size, other, taken, others)
        assert found is not None
        assert (found.size(taken), found.size(others)) == (size, other)


def test_a_size_that_nothing_explains_has_no_rule() -> None:
    assert infer_size(7, 12, ((6, 8),), ((9, 8),)) is None


def test_a_size_that_did_not_change_is_the_inputs_where_that_is_symbolic() -> None:
    found = infer_size(6, 6, ((6, 8),), ((6, 8),))
    assert found is not None
    assert found.size(((6, 8),)) == 6
    symbol = sympy.Symbol("u0")
    assert found.size(((symbol, 8),)) == symbol
