"""Where the user is in a run: part, line, folds, filter, tab. A frozen value and the steps between such values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from exportdoctor_tui.outline import Fold, Line, failures, key_of, lines_of, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exportdoctor.report.folded_tree import Row
    from exportdoctor_tui.view import PartView, RunView


@dataclass(frozen=True, kw_only=True)
class Browse:
    """`cursor` is the key of a line of `part`; `tab` is what the user last asked to read."""

    part: str = ""
    cursor: str | None = None
    folds: Mapping[str, Fold] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    tab: str = "story"
    torch_frames: bool = False

    @property
    def fold(self) -> Fold:
        """The folds of the part that is shown."""
        return self.folds.get(self.part, Fold())


def part_shown(view: RunView, browse: Browse) -> PartView | None:
    """The part on the screen."""
    return view.part(browse.part)


def lines_shown(view: RunView, browse: Browse) -> tuple[Line, ...]:
    """The lines of the tree."""
    part = part_shown(view, browse)
    return lines_of(part.rows, browse.fold, browse.words, cured=part.cured) if part else ()


def begun(view: RunView, browse: Browse) -> Browse:
    """The first place worth looking at: the first failure of the part, else its root."""
    part = part_shown(view, browse)
    if part is None:
        return browse
    browse = replace(browse, part=part.record.name)
    paths = list(failures(part.rows))
    if not paths:
        return replace(browse, cursor=key_of(part.rows[0]) if part.rows else None)
    return at(browse, next((path for path in paths if not _hidden(view, path[-1])), paths[0]))


def _hidden(view: RunView, row: Row) -> bool:
    """Whether another failure comes first and hides this one."""
    finding = view.findings.get(row.finding or "")
    return finding is not None and finding.behind is not None


def at(browse: Browse, path: tuple[Row, ...]) -> Browse:
    """The place at the end of `path`, with the path open."""
    return refolded(replace(browse, cursor=key_of(path[-1])), shown(browse.fold, path))


def refolded(browse: Browse, fold: Fold) -> Browse:
    """The same place with another fold."""
    return replace(browse, folds={**browse.folds, browse.part: fold})


def toggled(browse: Browse, line: Line) -> Browse:
    """Open or close what is below a line; closing an unfolded group puts its members together again."""
    fold, key = browse.fold, line.key
    if line.members:
        return refolded(browse, replace(fold, unfolded=fold.unfolded - {key}))
    if line.is_open:
        return refolded(browse, replace(fold, opened=fold.opened - {key}, closed=fold.closed | {key}))
    return refolded(browse, replace(fold, opened=fold.opened | {key}, closed=fold.closed - {key}))


def unfolded(browse: Browse, line: Line) -> Browse:
    """Show a group's members one by one, or as one line again."""
    fold, key = browse.fold, line.key
    if len(line.row.fqns) == 1:
        return browse
    now = fold.unfolded - {key} if line.members else fold.unfolded | {key}
    return refolded(browse, replace(fold, unfolded=now))


def all_open(view: RunView, browse: Browse) -> Browse:
    """Open every row of the part."""
    part = part_shown(view, browse)
    keys = frozenset(place.key for place in part.places) if part else frozenset()
    return refolded(browse, Fold(opened=keys))


def only_failing_open(browse: Browse) -> Browse:
    """Back to how it began: failing paths open, nothing else."""
    return refolded(browse, Fold())


def next_failure(view: RunView, browse: Browse, *, step: int) -> Browse:
    """The next failure down (`step` 1) or up (-1), in this part or the one beside it, round and round."""
    places = [(part.record.name, place) for part in view.parts for place in part.places]
    here = next((n for n, (part, place) in enumerate(places) if (part, place.key) == (browse.part, browse.cursor)), -1)
    for distance in range(1, len(places) + 1):
        part, place = places[(here + step * distance) % len(places)]
        if place.fails:
            return at(replace(browse, part=part, words=()), place.path)
    return browse


def finding_shown(view: RunView, browse: Browse, which: str) -> Browse:
    """The place of finding `which`: the first row that fails in itself with it."""
    for part in view.parts:
        for path in failures(part.rows):
            if path[-1].finding == which:
                return at(replace(browse, part=part.record.name, words=()), path)
    return browse


def other_part(view: RunView, browse: Browse, *, step: int) -> Browse:
    """The part beside this one."""
    names = [part.record.name for part in view.parts]
    if browse.part not in names:
        return browse
    name = names[(names.index(browse.part) + step) % len(names)]
    return begun(view, replace(browse, part=name, cursor=None))


def opened_or_inside(view: RunView, browse: Browse, line: Line) -> Browse:
    """Open a closed line; from an open one go to the first line inside."""
    if not line.is_open:
        return toggled(browse, line) if line.row.children else browse
    lines = lines_shown(view, browse)
    number = lines.index(line) + 1 if line in lines else len(lines)
    inside = number < len(lines) and lines[number].depth > line.depth
    return replace(browse, cursor=lines[number].key) if inside else browse


def closed_or_parent(view: RunView, browse: Browse, line: Line) -> Browse:
    """Close an open line; from a closed one go to the line that it lies in."""
    if line.is_open and not browse.words:
        return toggled(browse, line)
    lines = lines_shown(view, browse)
    above = lines[: lines.index(line)] if line in lines else ()
    parent = next((each for each in reversed(above) if each.depth < line.depth), None)
    return replace(browse, cursor=parent.key) if parent else browse
