"""What a shim finds by running the model is looked for once while the same shims are applied again."""

from __future__ import annotations

import pytest

from exportdoctor.shims.searches import keep_searches, search_once


def test_a_search_is_made_once_within_and_each_time_outside() -> None:
    module, made = object(), list[int]()

    def search() -> int:
        made.append(len(made))
        return made[-1]

    assert [search_once("one", module, search) for _ in range(2)] == [0, 1]
    with keep_searches():
        assert [search_once("one", module, search) for _ in range(3)] == [2, 2, 2]
        assert search_once("other", module, search) == 3
        assert search_once("one", object(), search) == 4
        with keep_searches():
            assert search_once("one", module, search) == 5
        assert search_once("one", module, search) == 2
    assert search_once("one", module, search) == 6


def test_a_search_that_fails_is_made_again() -> None:
    module = object()

    def fail() -> int:
        raise ValueError("nothing is found")

    with keep_searches():
        with pytest.raises(ValueError, match="nothing"):
            search_once("one", module, fail)
        assert search_once("one", module, lambda: 1) == 1
