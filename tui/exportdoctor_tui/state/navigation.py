"""Where the user is in a run: part, line, expansion, filter, tab. A frozen value, and a function for each move."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from exportdoctor_tui.state.outline import Expansion, Line, failures, key_of, lines_of, reveal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exportdoctor.report.folded_tree import Row
    from exportdoctor_tui.state.run_view import PartView, RunView


@dataclass(frozen=True, kw_only=True)
class Position:
    """`cursor` is the key of a line of `part`; `tab` is the tab that the user chose last; `words` is the filter."""

    part: str = ""
    cursor: str | None = None
    expansions: Mapping[str, Expansion] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    tab: str = "story"
    torch_frames: bool = False

    @property
    def expansion(self) -> Expansion:
        """What is open in the current part."""
        return self.expansions.get(self.part, Expansion())

    def expand(self, expansion: Expansion) -> Position:
        """The same position with another expansion of the current part."""
        return replace(self, expansions={**self.expansions, self.part: expansion})


def current_part(view: RunView, position: Position) -> PartView | None:
    """The part on the screen."""
    return view.part(position.part)


def current_lines(view: RunView, position: Position) -> tuple[Line, ...]:
    """The lines of the tree."""
    part = current_part(view, position)
    return lines_of(part.rows, position.expansion, position.words, cured=part.cured) if part else ()


def start_position(view: RunView, position: Position) -> Position:
    """Where to start in the current part: its first failure that no other one hides, else its root."""
    part = current_part(view, position)
    if part is None:
        return position
    position = replace(position, part=part.record.name)
    paths = list(failures(part.rows))
    if not paths:
        return replace(position, cursor=key_of(part.rows[0]) if part.rows else None)
    return go_to(position, next((path for path in paths if not _is_hidden(view, path[-1])), paths[0]))


def _is_hidden(view: RunView, row: Row) -> bool:
    """Whether an earlier failure hides this one."""
    finding = view.findings.get(row.finding or "")
    return finding is not None and finding.behind is not None


def go_to(position: Position, path: tuple[Row, ...]) -> Position:
    """The cursor on the end of `path`, and everything above it open."""
    return replace(position, cursor=key_of(path[-1])).expand(reveal(position.expansion, path))


def toggle(position: Position, line: Line) -> Position:
    """Open or close a line; a group whose members are listed becomes one line again."""
    now, key = position.expansion, line.key
    if line.members:
        return toggle_members(position, line)
    if line.is_open:
        return position.expand(replace(now, opened=now.opened - {key}, closed=now.closed | {key}))
    return position.expand(replace(now, opened=now.opened | {key}, closed=now.closed - {key}))


def toggle_members(position: Position, line: Line) -> Position:
    """List the members of a group one by one, or show it as one line again."""
    if len(line.row.fqns) == 1:
        return position
    now = position.expansion
    return position.expand(replace(now, listed=now.listed ^ {line.key}))


def expand_all(view: RunView, position: Position) -> Position:
    """Open every row of the part."""
    part = current_part(view, position)
    keys = frozenset(path.key for path in part.row_paths) if part else frozenset()
    return position.expand(Expansion(opened=keys))


def expand_failing(position: Position) -> Position:
    """Open failing paths and nothing else, as at the start."""
    return position.expand(Expansion())


def next_failure(view: RunView, position: Position, *, step: int) -> Position:
    """The next failure (`step` 1) or the previous one (-1), in any part; after the last, the first.

    In a part they follow the numbers of their findings, so that what hides another comes before it. From a line that
    does not fail it goes to the next one below or above.
    """
    names = [part.record.name for part in view.parts]
    rows = [(number, path) for number, part in enumerate(view.parts) for path in part.row_paths]
    cursor = (position.part, position.cursor)
    line = next((at for at, (part, path) in enumerate(rows) if (names[part], path.key) == cursor), -1)
    failing = [(part, _number(path.rows[-1]), at) for at, (part, path) in enumerate(rows) if path.fails]
    if not failing:
        return position
    if line >= 0 and rows[line][1].fails:
        ordered = sorted(failing)
        here = next(number for number, (_, _, at) in enumerate(ordered) if at == line)
        at = ordered[(here + step) % len(ordered)][2]
    else:
        beyond = [at for _, _, at in failing if (at > line if step > 0 else at < line)]
        at = (beyond or [at for _, _, at in failing])[0 if step > 0 else -1]
    part, path = rows[at]
    return go_to(replace(position, part=names[part], words=()), path.rows)


def _number(row: Row) -> int:
    """The number of a row's finding; a failure without one comes last."""
    digits = (row.finding or "").lstrip("F")
    return int(digits) if digits.isdigit() else sys.maxsize


def finding_position(view: RunView, position: Position, finding: str) -> Position:
    """The first row that fails in its own code with the finding of this id."""
    for part in view.parts:
        for path in failures(part.rows):
            if finding in (path[-1].finding, *path[-1].also):
                return go_to(replace(position, part=part.record.name, words=()), path)
    return position


def adjacent_part(view: RunView, position: Position, *, step: int) -> Position:
    """The next part (`step` 1) or the previous one (-1)."""
    names = [part.record.name for part in view.parts]
    if position.part not in names:
        return position
    name = names[(names.index(position.part) + step) % len(names)]
    return start_position(view, replace(position, part=name, cursor=None))


def open_or_enter(view: RunView, position: Position, line: Line) -> Position:
    """Open a closed line; from an open one go to the first line inside."""
    if not line.is_open:
        return toggle(position, line) if line.row.children else position
    lines = current_lines(view, position)
    number = lines.index(line) + 1 if line in lines else len(lines)
    inside = number < len(lines) and lines[number].depth > line.depth
    return replace(position, cursor=lines[number].key) if inside else position


def close_or_leave(view: RunView, position: Position, line: Line) -> Position:
    """Close an open line; from a closed one go to its parent."""
    if line.is_open and not position.words:
        return toggle(position, line)
    lines = current_lines(view, position)
    above = lines[: lines.index(line)] if line in lines else ()
    parent = next((each for each in reversed(above) if each.depth < line.depth), None)
    return replace(position, cursor=parent.key) if parent else position
