"""Which exceptions the user's functions catch, as a trace of Python sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from exportdoctor.worker.prove.caught_in_export import note_caught, watch_caught


def refuse() -> None:
    raise ValueError("no values")


def with_except() -> None:
    try:
        refuse()
    except ValueError:
        pass


def with_suppress() -> None:
    with suppress(ValueError):
        refuse()


def with_return() -> int:
    try:
        refuse()
    finally:
        return 1  # noqa: B012


def in_generator() -> Iterator[int]:
    try:
        refuse()
    except ValueError:
        yield 1


def raised_again() -> None:
    try:
        refuse()
    except ValueError as error:
        raise TypeError("bad input") from error


def of_another_type() -> None:
    try:
        refuse()
    except KeyError:
        pass


def in_a_loop() -> None:
    with suppress(KeyError):
        for _ in iter([]):
            refuse()


@pytest.mark.parametrize("function", [with_except, with_suppress, with_return, lambda: list(in_generator())])
def test_an_exception_that_ends_in_a_function_is_noted_with_the_line_that_raised_it(
    function: Callable[[], object],
) -> None:
    with watch_caught(on=True) as watch:
        function()
    ((file, line, kind),) = watch.found
    assert (Path(file).name, kind) == (Path(__file__).name, "ValueError")
    assert "refuse()" in Path(file).read_text().splitlines()[line - 1]
    assert note_caught(watch.found, {}).startswith(f"at {Path(__file__).name}:{line} the export raises")


@pytest.mark.parametrize("function", [raised_again, of_another_type, in_a_loop])
def test_one_that_leaves_the_function_is_not(function: Callable[[], None]) -> None:
    with watch_caught(on=True) as watch, suppress(TypeError, ValueError):
        function()
    assert not watch.found
    assert watch.may_be_more


def test_what_eager_caught_too_says_nothing() -> None:
    with watch_caught(on=True) as watch:
        with_except()
    assert note_caught(watch.found, watch.found) == ""


def test_functions_without_code_for_exceptions_are_not_followed() -> None:
    with watch_caught(on=True) as watch, suppress(ValueError):
        refuse()
    assert not watch.may_be_more


def test_a_trace_function_that_was_there_is_put_back() -> None:
    before = sys.gettrace()
    with watch_caught(on=True):
        pass
    with watch_caught(on=False) as watch:
        with_except()
    assert sys.gettrace() is before
    assert not watch.found
