"""An exception in one line."""

import pytest

from exportdoctor.core.exception_text import summary


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
