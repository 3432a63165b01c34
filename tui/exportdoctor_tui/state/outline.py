"""From the tree of rows to the lines on the screen: which rows are open, which groups are listed, what a filter leaves.

The lines are a pure function of rows, expansion and filter. Failing paths are open unless the user closes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from exportdoctor.core.run.report import FAILING
from exportdoctor.report.wording import STATUS_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.report.folded_tree import Row

_OWN = frozenset({"fails_own", "crashed", "timed_out"})


@dataclass(frozen=True)
class Expansion:
    """Keys of the rows that the user opened or closed, and of the groups whose members are listed one by one."""

    opened: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()

    def is_open(self, row: Row, *, alone: bool = False) -> bool:
        """Whether the children of `row` are shown. A group's member listed `alone` starts closed."""
        key = key_of(row)
        by_itself = not alone and (not row.fqns[0] or any(child.notable for child in row.children))
        return bool(row.children) and (key in self.opened or (by_itself and key not in self.closed))


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row at a depth. `is_open`: its children are shown; `members`: the members of its group are."""

    row: Row
    depth: int
    is_open: bool = False
    members: bool = False

    @property
    def key(self) -> str:
        """Identifies the line for as long as its first submodule exists."""
        return key_of(self.row)


def key_of(row: Row) -> str:
    """A row's key; that of a group differs from that of its first member."""
    return f"={row.fqns[0]}" if len(row.fqns) > 1 else row.fqns[0]


def lines_of(
    rows: tuple[Row, ...], expansion: Expansion, words: tuple[str, ...] = (), *, cured: bool = False
) -> tuple[Line, ...]:
    """The lines from top to bottom. `words`: only rows that match all of them, and the paths to those rows.

    `cured`: the part is cured, so that its failing rows match the word "cured", too.
    """
    if words:
        kept = (filter_row(row, words, cured=cured) for row in rows)
        return tuple(_lines(tuple(row for row in kept if row), expansion, depth=0, searching=True))
    return tuple(_lines(rows, expansion, depth=0, searching=False))


def _lines(
    rows: tuple[Row, ...], expansion: Expansion, *, depth: int, searching: bool, alone: bool = False
) -> Iterator[Line]:
    for row in rows:
        members = key_of(row) in expansion.listed and len(row.fqns) > 1
        is_open = (searching and bool(row.children)) or expansion.is_open(row, alone=alone)
        yield Line(row=row, depth=depth, is_open=is_open or members, members=members)
        if members:
            yield from _lines(members_of(row), expansion, depth=depth + 1, searching=searching, alone=True)
        elif is_open:
            yield from _lines(row.children, expansion, depth=depth + 1, searching=searching)


def members_of(row: Row) -> tuple[Row, ...]:
    """The submodules of a group, a row each."""
    return tuple(member(row, number) for number in range(len(row.fqns)))


def member(row: Row, number: int) -> Row:
    """One submodule of a group. Its children are those of the first member, under its own name."""
    return replace(
        row,
        names=(row.names[number],),
        fqns=(row.fqns[number],),
        modules=row.modules // len(row.fqns),
        children=tuple(_rebase(child, row.fqns[0], row.fqns[number]) for child in row.children),
    )


def _rebase(row: Row, old: str, new: str) -> Row:
    """`row` with the prefix `old` of its names replaced by `new`."""
    if old == new:
        return row
    return replace(
        row,
        fqns=tuple(new + fqn[len(old) :] for fqn in row.fqns),
        children=tuple(_rebase(child, old, new) for child in row.children),
    )


def filter_row(row: Row, words: tuple[str, ...], *, cured: bool = False) -> Row | None:
    """What of `row` matches: all or some of its members, or the path to a match below; None if nothing does."""
    numbers = [number for number, fqn in enumerate(row.fqns) if _matches(row, fqn, words, cured=cured)]
    if numbers and len(numbers) < len(row.fqns):
        first = member(row, numbers[0])
        names, fqns = (tuple(every[number] for number in numbers) for every in (row.names, row.fqns))
        return replace(first, names=names, fqns=fqns, children=_filter_children(first, words, cured=cured))
    children = _filter_children(row, words, cured=cured)
    return replace(row, children=children) if numbers or children else None


def _filter_children(row: Row, words: tuple[str, ...], *, cured: bool) -> tuple[Row, ...]:
    return tuple(child for child in (filter_row(child, words, cured=cured) for child in row.children) if child)


def _matches(row: Row, fqn: str, words: tuple[str, ...], *, cured: bool) -> bool:
    verdict = f"{row.status} {STATUS_WORDS[row.status]}{' cured' if cured and row.status in FAILING else ''}"
    text = f"{fqn} {row.class_name} {verdict} {row.finding or ''} {' '.join(row.also)}".lower()
    return all(word in text for word in words)


class RowPath(NamedTuple):
    """The rows from the root down to one row, that row's key, and whether it fails in its own code."""

    key: str
    rows: tuple[Row, ...]
    fails: bool


def row_paths(rows: tuple[Row, ...], above: tuple[Row, ...] = ()) -> Iterator[RowPath]:
    """Every row, from top to bottom."""
    for row in rows:
        path = (*above, row)
        yield RowPath(key_of(row), path, row.status in _OWN)
        yield from row_paths(row.children, path)


def failures(rows: tuple[Row, ...]) -> Iterator[tuple[Row, ...]]:
    """The path to each row that fails in its own code, from top to bottom."""
    return (path.rows for path in row_paths(rows) if path.fails)


def reveal(expansion: Expansion, path: tuple[Row, ...]) -> Expansion:
    """`expansion` with everything above the end of `path` open; the same object where it already is."""
    keys = {key_of(row) for row in path[:-1] if not expansion.is_open(row) or key_of(row) in expansion.listed}
    return Expansion(expansion.opened | keys, expansion.closed - keys, expansion.listed - keys) if keys else expansion
