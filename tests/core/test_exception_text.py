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
    def refuse(_: object) -> None:
        raise ValueError("closed")

    closed = type("Closed", (Exception,), {"__context__": property(refuse), "__cause__": property(refuse)})
    error = closed()
    BaseException.__dict__["__context__"].__set__(error, ValueError("first"))
    assert cause_of(error) is None
    assert isinstance(context_of(error), ValueError)


@pytest.mark.parametrize("message", ["see https://pytorch.org/tutorials for more " * 20, "x" * 900, "word " * 200])
def test_a_long_message_is_cut_behind_a_word(message: str) -> None:
    said = summary(ValueError(message), limit=100)
    assert said.endswith(" …")
    kept = said.removeprefix("ValueError: ").removesuffix(" …")
    assert 80 < len(kept) <= 100
    assert message.startswith(kept)
    assert message[len(kept)] == " " or " " not in message
    assert summary(ValueError("short"), limit=100) == "ValueError: short"
