"""Which exceptions the user's functions catch, as a trace of Python sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from exportdoctor.worker.prove.caught_in_export import (
    Place,
    caught_in_eager,
    note_caught,
    watch_caught,
    watch_export,
)


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
    with watch_caught() as watch:
        function()
    ((file, line, kind),) = watch.found
    assert (Path(file).name, kind) == (Path(__file__).name, "ValueError")
    assert "refuse()" in Path(file).read_text().splitlines()[line - 1]
    assert note_caught(watch.found, {}).startswith(f"at {Path(__file__).name}:{line} the export raises")


@pytest.mark.parametrize("function", [raised_again, of_another_type, in_a_loop])
def test_one_that_leaves_the_function_is_not(function: Callable[[], None]) -> None:
    with watch_caught() as watch, suppress(TypeError, ValueError):
        function()
    assert not watch.found


def test_what_eager_caught_too_says_nothing() -> None:
    with watch_caught() as watch:
        with_except()
    assert note_caught(watch.found, watch.found) == ""


def test_a_trace_function_that_was_there_is_put_back() -> None:
    before = sys.gettrace()
    with watch_caught():
        pass
    assert sys.gettrace() is before


class Catches(torch.nn.Module):
    """Catches what `asked` raises on its input."""

    def __init__(self, asked: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.asked = asked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.asked(x)
        except Exception:
            return x * 2
        return x * 3


def number_of(x: torch.Tensor) -> int:
    return int(x.sum().long().item() * 2)


def branch_on(x: torch.Tensor) -> int:
    return 1 if x.sum() > 0 else 2


def address_of(x: torch.Tensor) -> int:
    return x.data_ptr()


def shape_of_another(x: torch.Tensor) -> torch.Tensor:
    return x.view(7, 7)


def caught_by(module: torch.nn.Module) -> dict[Place, str]:
    with watch_export(on=True) as found:
        torch.export.export(module, (torch.ones(3),))
    return found


@pytest.mark.parametrize("asked", [number_of, branch_on, address_of])
def test_what_an_export_alone_raises_is_told_with_its_line(asked: Callable[[torch.Tensor], object]) -> None:
    module = Catches(asked)
    found = caught_by(module)
    (file, line, _), *_ = found
    assert "self.asked(x)" in Path(file).read_text().splitlines()[line - 1]
    assert note_caught(found, caught_in_eager(module, [[((torch.ones(3),), {})]])).startswith(
        f"at {Path(file).name}:{line}"
    )


def test_what_eager_raises_too_is_found_in_both() -> None:
    module = Catches(shape_of_another)
    found = caught_by(module)
    assert found
    assert note_caught(found, caught_in_eager(module, [[((torch.ones(3),), {})]])) == ""


def test_nothing_is_found_where_nothing_is_caught_or_nobody_watches() -> None:
    assert not caught_by(Catches(torch.sin))
    with watch_export(on=False) as found:
        torch.export.export(Catches(address_of), (torch.ones(3),))
    assert not found


def test_an_export_that_fails_has_its_own_exception() -> None:
    class Asks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> int:
            return branch_on(x)

    with pytest.raises(Exception, match="data-dependent"):
        caught_by(Asks())
