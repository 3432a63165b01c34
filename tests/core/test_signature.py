"""A signature is the same each time the same bug is met, and another for another bug."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.core.failure.messages import normalise, without_arithmetic, without_names
from exportdoctor.core.failure.signature import signature_of, signature_of_failure
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, Outcome, OutcomeStatus


@given(st.text())
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


SAME = [
    ("Could not guard on data-dependent expression u0 > 1 (unhinted: u0 > 1).  (Size-like symbols: u0)\n\nCaused by: x",
     "Could not guard on data-dependent expression u71 > 1 (unhinted: u71 > 1).  (Size-like symbols: none)"),
    ("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)", "mat1 and mat2 shapes cannot be multiplied (7x8 and 9x1)"),  # noqa: E501
    ("8*s72 (at 0x7f01) is not tracked with proxy", "8*s3 (at 0x55aa) is not tracked with proxy"),
    ("cannot open /home/a/x/model.py", "cannot open /srv/b/model.py"),
    ("Constraints violated (length)!\n  - You marked length as dynamic but your code specialized it to be a constant (6).",  # noqa: E501
     "Constraints violated (L['x'].size()[1])!\n  - You marked L['x'].size()[1] as dynamic but your code specialized it "  # noqa: E501
     "to be a constant (9)."),
]  # fmt: skip

PENDING = "Pending unbacked symbols {} not in returned outputs FakeTensor(..., size={}) (({}), u2).\nDid you"
SAME += [(PENDING.format("{u4, u3}", "(s77, 4)", "4, 1"), PENDING.format("{u3, u4}", "(u1,)", "1,"))]
OTHER = [
    ("Could not guard on data-dependent expression u0 > 1", "Could not guard on data-dependent expression Eq(u0, 0)"),
    ("Found <class 'a.Cache'> in output", "Found <class 'a.Other'> in output"),
    ("Could not extract specialized integer from u0", "Could not guard on u0"),
]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_sightings_of_one_bug_read_the_same(one: str, two: str) -> None:
    assert normalise(one) == normalise(two)


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_different_bugs_read_differently(one: str, two: str) -> None:
    assert normalise(one) != normalise(two)


def _failure(*, line: int = 3, source: str = "int(n)", folder: str = "/home/a", kind: str = "ValueError") -> Failure:
    frame = Frame(file=f"{folder}/model.py", line=line, function="M.forward", source=source, user=True)
    return Failure(stage="export", exceptions=(ExceptionFact(type=kind, message="no"),), frames=(frame,))


def test_line_numbers_and_folders_are_no_part_of_it_but_the_source_is() -> None:
    first = signature_of_failure(_failure())
    assert first == signature_of_failure(_failure(line=90, folder="/srv/b"))
    assert first.key != signature_of_failure(_failure(source="int(m)")).key
    assert first.key != signature_of_failure(_failure(kind="TypeError")).key
    one, other = (f"/lib/site-packages/{name}" for name in ("transformers/bert", "transformers/gpt2"))
    assert signature_of_failure(_failure(folder=one)).key != signature_of_failure(_failure(folder=other)).key


def test_a_pass_has_none_and_a_death_has_its_own() -> None:
    assert signature_of(Outcome(probe="p", status=OutcomeStatus.PASSED)) is None
    assert signature_of(Outcome(probe="p", status=OutcomeStatus.CRASHED, signal="SIGSEGV")) != signature_of(
        Outcome(probe="p", status=OutcomeStatus.TIMED_OUT)
    )


@pytest.mark.parametrize(
    ("longer", "shorter", "alike"),
    [
        ("u0 + u1 + (((u2 + u3 + 7)//2)) - 4 > 1", "u0 + 2 > 1", True),
        ("Eq(2*u0, 0)", "Eq(u0, 0)", True),
        ("Eq(PythonMod(u0, 4), 0)", "Eq(u0, 0)", False),  # divisibility is another question
        ("Eq(Mod(3*u0, 4), 0)", "Eq(Mod(u1, 4), 0)", True),
        ("u0 > 1", "Eq(u0, 1)", False),
        ("u0 < u1", "u0 < 8", False),
    ],
)
def test_without_arithmetic_a_size_that_is_computed_from_sizes_is_a_size(
    longer: str, shorter: str, alike: bool
) -> None:
    """A script that begins behind some padded convolutions fails as the whole chain does."""
    told = [
        without_arithmetic(
            without_names(
                f"Could not guard on data-dependent expression {one} (unhinted: {one}).  (Size-like symbols: u0)"
            )
        )
        for one in (longer, shorter)
    ]
    assert (told[0] == told[1]) is alike


def test_the_unhinted_expression_is_left_out_whatever_parentheses_it_has() -> None:
    message = "Could not guard on data-dependent expression u0 > 1 (unhinted: ((u0 + 1)//2) - 4 > 1)."
    assert (
        normalise(f"{message}  (Size-like symbols: none)")
        == "Could not guard on data-dependent expression <symbol> > <n>."
    )
