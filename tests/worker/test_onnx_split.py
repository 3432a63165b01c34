"""Where a graph is cut: where numbered blocks begin, the outermost first."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.core.errors import UsageError
from exportdoctor.worker.translate.onnx_split import cuts

MIXER = ["embed", *(f"blocks.{i}.net.{j}" for i in range(12) for j in range(4) for _ in range(2)), "head"]
UNET = [*(f"{name}.c.{j}" for name in ("down.0", "down.1", "mid", "up.1", "up.0") for j in range(3)), "out"]


def names(paths: list[str], count: int) -> list[str]:
    return [paths[place] for place in cuts(paths, count)[1:-1]]


def test_the_outermost_blocks_are_cut_and_those_inside_only_where_these_are_too_few() -> None:
    assert names(MIXER, 6) == [f"blocks.{i}.net.0" for i in (2, 4, 6, 8, 10)]
    assert names(MIXER, 2) == ["blocks.6.net.0"]
    assert names(UNET, 3) == ["mid.c.0", "up.0.c.0"]
    assert cuts(MIXER, 24) == sorted(set(cuts(MIXER, 24)))
    assert names(["0", "0", "1.0", "1.1", "1.2"], 2) == ["1.0"]
    with pytest.raises(UsageError, match="48 numbered blocks and cannot be split into 49"):
        cuts(MIXER, 49)
    with pytest.raises(UsageError, match="no numbered blocks"):
        cuts(["head", "layer2.conv"], 2)


def test_pieces_have_about_as_many_nodes() -> None:
    """A small block beside large ones is no piece of its own."""
    paths = ["layers.0"] * 2 + ["layers.1"] * 50 + ["layers.2"] * 50
    assert cuts(paths, 2) == [0, 52, 102]


PATHS = st.lists(
    st.lists(st.sampled_from(["a", "b", "0", "1", "2"]), min_size=1, max_size=4).map(".".join), min_size=1, max_size=30
)


@pytest.mark.long
@given(PATHS, st.integers(1, 6))
def test_each_piece_begins_with_a_numbered_block_and_has_nodes(paths: list[str], count: int) -> None:
    try:
        places = cuts(paths, count)
    except UsageError:
        return
    assert (places[0], places[-1], len(places)) == (0, len(paths), count + 1)
    assert all(first < last for first, last in pairwise(places))
    for place in places[1:-1]:
        prefixes = [".".join(paths[place].split(".")[: n + 1]) for n, part in enumerate(paths[place].split("."))
                    if part.isdecimal()]  # fmt: skip
        assert any(not any(f"{path}.".startswith(f"{one}.") for path in paths[:place]) for one in prefixes)
