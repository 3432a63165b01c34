"""Pieces that are only joined stay whole, and are made for all else that is done with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.rules.joined_split import lengths_to_split, list_to_join, map_to_join, split_to_join

WHOLE, SIZES = torch.arange(12.0).reshape(6, 2), torch.tensor([2, 3, 1])


@pytest.mark.parametrize(
    "use",
    [
        torch.cat,
        lambda pieces: torch.cat(pieces, dim=-2),
        lambda pieces: torch.cat(tensors=pieces, dim=0),
        lambda pieces: torch.cat(list(pieces)[::-1]),
        lambda pieces: torch.cat([*pieces, pieces[0]]),
        lambda pieces: torch.cat(tuple(reversed(pieces))),
        lambda pieces: torch.cat(pieces[1:]),
        lambda pieces: torch.cat((WHOLE,) + pieces),  # noqa: RUF005
        lambda pieces: torch.stack([piece.sum() for piece in pieces]),
        lambda pieces: torch.nn.utils.rnn.pad_sequence(pieces),
        lambda pieces: torch.tensor(len(pieces)),
        lambda pieces: (lambda *each: each[1])(*pieces),
    ],
)
def test_whatever_is_done_with_the_pieces_is_as_with_those_of_a_split(use: Callable[[Any], torch.Tensor]) -> None:
    assert torch.equal(use(split_to_join(WHOLE, lengths_to_split(SIZES))), use(torch.split(WHOLE, SIZES.tolist())))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([torch.cat, torch.concat, torch.concatenate]),
    st.sampled_from([None, *range(-3, 3)]),
    st.sampled_from(["", "dim", "axis"]),
    st.booleans(),
    st.integers(-3, 2),
)
def test_a_join_with_any_arguments_is_as_torchs(join: Any, dim: int | None, name: str, out: bool, split: int) -> None:
    def outcome(cut: Callable[[], Any]) -> Any:
        into = torch.zeros(0)
        given = {"out": into} if out else {}
        try:
            pieces = cut()
            if dim is None:
                found = join(pieces, **given)
            else:
                found = join(pieces, **{name: dim}, **given) if name else join(pieces, dim, **given)
        except (IndexError, TypeError, RuntimeError) as error:
            return type(error)
        return (found is into) == out, found.tolist(), into.tolist()

    sizes = torch.tensor([1, 1]) if split % 2 else SIZES
    waiting = outcome(lambda: split_to_join(WHOLE, lengths_to_split(sizes), split))
    assert waiting == outcome(lambda: torch.split(WHOLE, sizes.tolist(), split))


@pytest.mark.parametrize("sizes", [[2, 3], [2, 3, 2], [-1, 6, 1]])
def test_lengths_that_a_split_refuses_are_refused(sizes: list[int]) -> None:
    with pytest.raises(RuntimeError, match="lengths of a split"):
        torch.cat(split_to_join(WHOLE, lengths_to_split(torch.tensor(sizes))))


def test_what_is_joined_is_new_and_the_lengths_are_those_of_the_split() -> None:
    whole, sizes = WHOLE.clone(), SIZES.clone()
    pieces = split_to_join(whole, lengths_to_split(sizes))
    sizes.zero_()
    torch.cat(pieces).zero_()
    assert torch.equal(whole, WHOLE)


class KnowsLengths(nn.Module):
    """The list is used otherwise, too."""

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        lengths = sizes.tolist()
        return torch.cat(torch.split(x, lengths)) * len(lengths)


def test_a_list_of_lengths_with_another_use_is_left_alone() -> None:
    with pytest.raises(NotApplicable), apply_shims([find("joined-split")], ExportCall(module=KnowsLengths())):
        pass


class ChangesLengths(nn.Module):
    """The list was read before its tensor is changed; beside it a list that the caller gives."""

    def forward(self, x: torch.Tensor, sizes: torch.Tensor, lengths: Any = None) -> torch.Tensor:
        counts = sizes.clone()
        if x.shape[-1] == 2:
            lengths = counts.tolist()
        counts.add_(1)
        pieces = torch.split(x, lengths)
        return torch.cat(pieces) + counts.sum()


def test_lengths_are_those_that_were_read_although_their_tensor_changes_before_the_split() -> None:
    module, narrow = ChangesLengths(), WHOLE[:, :1]
    with apply_shims([find("joined-split")], ExportCall(module=module)):
        assert torch.equal(module(WHOLE, SIZES), WHOLE + 9)
        assert torch.equal(module(narrow, SIZES, [1, 5]), narrow + 9)


BLOCKS = torch.arange(36.0).reshape(6, 2, 3)
ROWS: list[Callable[[Any], Any]] = [
    lambda f: f.reshape(-1, f.shape[-1]), lambda f: f.view(-1, f.size(-1)), lambda f: f.flatten(0, 1),
    lambda f: f.flatten(end_dim=1),
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ROWS), st.lists(st.integers(0, 3), min_size=1, max_size=5), st.data())
def test_rows_of_pieces_are_the_rows_of_all(rows: Callable[[Any], Any], sizes: list[int], data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    whole = torch.randn(sum(sizes), *shape)
    pieces = map_to_join(split_to_join(whole, lengths_to_split(torch.tensor(sizes))), rows)
    assert torch.equal(torch.cat(pieces, dim=0), torch.cat([rows(one) for one in whole.split(sizes)]))


@pytest.mark.parametrize(
    "use",
    [
        torch.cat,
        lambda pieces: torch.cat(pieces, dim=1),
        lambda pieces: torch.cat(pieces[1:]),
        lambda pieces: torch.cat([BLOCKS[0], *pieces]),
        lambda pieces: torch.cat([BLOCKS[0]] + pieces),  # noqa: RUF005
        lambda pieces: torch.cat(list(reversed(pieces))),
        lambda pieces: torch.stack([piece.sum() for piece in pieces]),
        lambda pieces: torch.tensor(len(pieces) + isinstance(pieces, list)),
        lambda pieces: torch.tensor(pieces.count(None)),
    ],
)
def test_a_list_of_mapped_pieces_is_as_that_of_a_comprehension(use: Callable[[Any], torch.Tensor]) -> None:
    sizes = torch.tensor([2, 2, 2])
    waiting = map_to_join(split_to_join(BLOCKS, lengths_to_split(sizes)), ROWS[0])
    assert torch.equal(use(waiting), use([ROWS[0](one) for one in BLOCKS.split([2, 2, 2])]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=4), st.integers(-4, 3), st.sampled_from([torch.cat, torch.stack])
)
def test_rows_that_are_joined_are_those_of_the_tensor(shape: list[int], dim: int, join: Any) -> None:
    def outcome(rows: Any) -> Any:
        try:
            return join(rows, dim=dim).tolist()
        except (IndexError, RuntimeError) as error:
            return type(error)

    whole = torch.randn(shape)
    assert outcome(list_to_join(whole)) == outcome(list(whole))


def test_what_is_no_tensor_is_listed() -> None:
    assert list_to_join((1, 2)) == [1, 2]
    assert list_to_join(torch.tensor([1, 2])) == [1, 2]


def test_a_list_that_is_changed_is_refused() -> None:
    pieces = map_to_join(split_to_join(BLOCKS, lengths_to_split(SIZES)), ROWS[0])
    with pytest.raises(NotImplementedError):
        pieces.append(BLOCKS[0])
    with pytest.raises(NotImplementedError):
        pieces += [BLOCKS[0]]


class FallsBack(nn.Module):
    """Lengths that a split refuses lead elsewhere, where an assertion of the program would refuse them."""

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        try:
            return torch.cat(torch.split(x, sizes.tolist()))
        except RuntimeError:
            return -x


def test_a_split_whose_refusal_may_be_caught_is_made() -> None:
    free = {0: torch.export.Dim.DYNAMIC}
    call = ExportCall(module=FallsBack(), args=(WHOLE, SIZES), dynamic_shapes=(free, free))
    with apply_shims([find("joined-split")], call) as given, pytest.raises(Exception, match="sizes"):
        export_program(given)


class Listed(nn.Module):
    """The features of each picture, as a list of its rows."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: Any = images * 2
        features = list(features)
        return torch.cat(features, dim=0).relu()


def test_rows_of_any_number_are_joined() -> None:
    module = Listed().eval()
    call = ExportCall(module=module, args=(torch.randn(3, 2, 4),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    with pytest.raises(Exception, match=r"specialized|Constraints violated"):
        call.export()
    with apply_shims([find("joined-split")], call) as changed:
        program = changed.export().module()
    for rows in (2, 3, 7):
        images = torch.randn(rows, 2, 4)
        torch.testing.assert_close(program(images), module(images))


class Images(nn.Module):
    """The features of each row's images, as a list that another function joins."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(3, 4)

    def features(self, images: torch.Tensor, real: torch.Tensor) -> list[torch.Tensor]:
        found = self.proj(images.flatten(0, 1))
        return [f.reshape(-1, f.shape[-1]) for f in found.split(real.sum(1).tolist())]

    def forward(self, images: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        features: Any = self.features(images, real)
        if isinstance(features, (list, tuple)):
            features = torch.cat(features, dim=0)
        return features * 2  # type: ignore[no-any-return]


def test_images_of_any_number_of_rows_are_joined() -> None:
    def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(rows, 2, 5, 3), torch.ones(rows, 2, dtype=torch.int64)

    module, dims = Images().eval(), {0: torch.export.Dim("rows", min=2)}
    call = ExportCall(module=module, args=inputs(3), dynamic_shapes=(dims, dims))
    with pytest.raises(Exception, match=r"specialized|Constraints violated"):
        call.export()
    with apply_shims([find("joined-split")], call) as changed:
        program = changed.export().module()
    for rows in (2, 3, 6):
        given_now = inputs(rows)
        torch.testing.assert_close(program(*given_now), module(*given_now))
