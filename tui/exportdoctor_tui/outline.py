"""From the folded tree to the lines on the screen: what is open, which groups are unfolded, what a filter leaves.

Pure: a line list is a function of rows, fold and filter. Failing paths are open unless the user closes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from exportdoctor.core.report import FAILING
from exportdoctor.report.wording import STATUS_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.report.folded_tree import Row

_OWN = frozenset({"fails_own", "crashed", "timed_out"})


@dataclass(frozen=True)
class Fold:
    """What the user has opened, closed and unfolded, by key."""

    opened: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    unfolded: frozenset[str] = frozenset()

    def is_open(self, row: Row, *, alone: bool = False) -> bool:
        """Whether what is below `row` is shown; one member of a group is opened by the user `alone`."""
        key = key_of(row)
        by_itself = not alone and (not row.fqns[0] or any(child.notable for child in row.children))
        return bool(row.children) and (key in self.opened or (by_itself and key not in self.closed))


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line: a row at a depth. `is_open`: what is below it is shown; `members`: its equals are shown one by one."""

    row: Row
    depth: int
    is_open: bool = False
    members: bool = False

    @property
    def key(self) -> str:
        """Names the line for as long as its first submodule exists."""
        return key_of(self.row)


def key_of(row: Row) -> str:
    """A group and its first member are two lines."""
    return f"={row.fqns[0]}" if len(row.fqns) > 1 else row.fqns[0]


def lines_of(
    rows: tuple[Row, ...], fold: Fold, words: tuple[str, ...] = (), *, cured: bool = False
) -> tuple[Line, ...]:
    """The lines from top to bottom. `words`: only rows that match them all, with the path that leads to each.

    `cured`: the part is, so what fails in it is found by that word, too.
    """
    if words:
        kept = (narrowed(row, words, cured=cured) for row in rows)
        return tuple(_lines(tuple(row for row in kept if row), fold, depth=0, searching=True))
    return tuple(_lines(rows, fold, depth=0, searching=False))


def _lines(rows: tuple[Row, ...], fold: Fold, *, depth: int, searching: bool, alone: bool = False) -> Iterator[Line]:
    for row in rows:
        members = key_of(row) in fold.unfolded and len(row.fqns) > 1
        is_open = (searching and bool(row.children)) or fold.is_open(row, alone=alone)
        yield Line(row=row, depth=depth, is_open=is_open or members, members=members)
        if members:
            yield from _lines(members_of(row), fold, depth=depth + 1, searching=searching, alone=True)
        elif is_open:
            yield from _lines(row.children, fold, depth=depth + 1, searching=searching)


def members_of(row: Row) -> tuple[Row, ...]:
    """The submodules of a group, a row each, with what is below each."""
    return tuple(member(row, number) for number in range(len(row.fqns)))


def member(row: Row, number: int) -> Row:
    """One submodule of a group; what is below it has the same shape as below the first."""
    return replace(
        row,
        names=(row.names[number],),
        fqns=(row.fqns[number],),
        modules=row.modules // len(row.fqns),
        children=tuple(_moved(child, row.fqns[0], row.fqns[number]) for child in row.children),
    )


def _moved(row: Row, old: str, new: str) -> Row:
    """`row` below another module."""
    if old == new:
        return row
    return replace(
        row,
        fqns=tuple(new + fqn[len(old) :] for fqn in row.fqns),
        children=tuple(_moved(child, old, new) for child in row.children),
    )


def narrowed(row: Row, words: tuple[str, ...], *, cured: bool = False) -> Row | None:
    """What of `row` matches: itself with all or some of its members, or the path to a match below."""
    numbers = [number for number, fqn in enumerate(row.fqns) if _matches(row, fqn, words, cured=cured)]
    below = tuple(child for child in (narrowed(child, words, cured=cured) for child in row.children) if child)
    if not numbers:
        return replace(row, children=below) if below else None
    if len(numbers) == len(row.fqns):
        return replace(row, children=below)
    first = member(row, numbers[0])
    kept = tuple(child for child in (narrowed(child, words, cured=cured) for child in first.children) if child)
    return replace(
        first,
        names=tuple(row.names[number] for number in numbers),
        fqns=tuple(row.fqns[number] for number in numbers),
        children=kept,
    )


def _matches(row: Row, fqn: str, words: tuple[str, ...], *, cured: bool) -> bool:
    verdict = f"{row.status} {STATUS_WORDS[row.status]}{' cured' if cured and row.status in FAILING else ''}"
    text = f"{fqn} {row.class_name} {verdict} {row.finding or ''}".lower()
    return all(word in text for word in words)


def failures(rows: tuple[Row, ...], above: tuple[Row, ...] = ()) -> Iterator[tuple[Row, ...]]:
    """Each row that fails in itself, from top to bottom, as the path that leads to it."""
    for row in rows:
        path = (*above, row)
        if row.status in _OWN:
            yield path
        yield from failures(row.children, path)


class Place(NamedTuple):
    """A row with its key and the path that leads to it; `fails`: in itself."""

    key: str
    path: tuple[Row, ...]
    fails: bool


def places(rows: tuple[Row, ...], above: tuple[Row, ...] = ()) -> Iterator[Place]:
    """Every row, from top to bottom."""
    for row in rows:
        path = (*above, row)
        yield Place(key_of(row), path, row.status in _OWN)
        yield from places(row.children, path)


def shown(fold: Fold, path: tuple[Row, ...]) -> Fold:
    """`fold` with everything above the end of `path` open; the very same one where it is."""
    keys = {key_of(row) for row in path[:-1] if not fold.is_open(row) or key_of(row) in fold.unfolded}
    return Fold(fold.opened | keys, fold.closed - keys, fold.unfolded - keys) if keys else fold
