"""An exception in one line."""

import pytest

from exportdoctor.core.exception_text import cause_of, context_of, summary


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("too many\nlayers", "too many"),
        ("\n  Invalid field x:\n    expected int, got a\nmore", "Invalid field x: expected int, got a"),
        ("it says:", "it says:"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_summary_says_what_an_introduction_announces(message: str, said: str) -> None:
    assert summary(ValueError(message)) == ": ".join(filter(None, ("ValueError", said)))


def test_what_an_exception_comes_of_is_known_whatever_its_class_says() -> None:
    class Closed(Exception):
        @property
        def __context__(self) -> None:  # type: ignore[override]
            raise ValueError("closed")

        __cause__ = __context__

    error = Closed()
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raise error  # noqa: B904
    except Closed:
        pass
    assert cause_of(error) is None
    assert isinstance(context_of(error), ValueError)
