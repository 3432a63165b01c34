"""The tree's columns: how wide each is in the room that there is, and what a line has in each.

Name and finding are always there; the others give way on a narrow screen, the least telling first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from exportdoctor.report import wording
from exportdoctor.report.folded_tree import Row, label
from exportdoctor_tui.sanitize import fitted, line, right

if TYPE_CHECKING:
    from exportdoctor_tui.outline import Line
    from exportdoctor_tui.view import PartView

Piece = tuple[str, str]
"""Text and the name of its colour."""

_SHORT = {"export": "exp", "decompose": "dec", "translate": "onnx", "load": "load", "run": "run"}
_MARKS = {"pass": ("✓", "pass"), "fail": ("✗", "fail")}
_GAP = 2


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Widths in cells; 0 = left out."""

    name: int
    remark: int = 0
    class_name: int = 0
    stages: tuple[str, ...] = ()
    seconds: int = 0
    finding: int = 4


def columns_for(width: int, part: PartView, lines: tuple[Line, ...]) -> Columns:
    """The columns in `width` cells."""
    remark = min(22, max((cell_len(remark_of(each, part)) for each in lines), default=0))
    wanted = max((2 * each.depth + 4 + cell_len(wording.row_name(each.row)) for each in lines), default=0)
    least = min(wanted, 34)
    longest = max((cell_len(line(each.row.class_name)) for each in lines), default=0)
    finding = max(4, max((len(each.row.finding or "") for each in lines), default=0) + 2)
    stages = tuple(_SHORT.get(stage, stage) for stage in part.stages)
    room = width - finding - least
    taken: dict[str, int] = {}
    optional = {"remark": remark, "stages": sum(len(stage) + 1 for stage in stages), "seconds": 7}
    for name, size in optional.items():
        if size and room >= size + _GAP:
            taken[name] = size
            room -= size + _GAP
    spare = room + least - min(wanted, 38)
    class_name = min(longest, spare - _GAP) if spare >= 14 + _GAP else 0
    used = sum(size + _GAP for size in taken.values()) + (class_name + _GAP if class_name else 0)
    return Columns(
        name=max(8, width - finding - used),
        remark=taken.get("remark", 0),
        class_name=class_name,
        stages=stages if "stages" in taken else (),
        seconds=taken.get("seconds", 0),
        finding=finding,
    )


def heading(columns: Columns) -> str:
    """The line above the tree."""
    cells = [fitted("  submodule", columns.name)]
    if columns.class_name:
        cells.append(fitted("class", columns.class_name))
    if columns.remark:
        cells.append(fitted("", columns.remark))
    if columns.stages:
        cells.append("".join(f"{stage} " for stage in columns.stages))
    if columns.seconds:
        cells.append(right("time", columns.seconds))
    return (" " * _GAP).join(cells) + " " * columns.finding


def pieces(each: Line, part: PartView, columns: Columns) -> tuple[Piece, ...]:
    """A line's text from left to right; the widths add up to the room."""
    row = each.row
    record = part.records.get(row.fqns[0])
    arrow = ("▾" if each.is_open else "▸") if row.children or len(row.fqns) > 1 else " "
    status = part.look(row)
    symbol = wording.SYMBOLS[status]
    lead = "  " * each.depth + arrow + " "
    found: list[Piece] = [(lead, "quiet"), (f"{symbol} ", status)]
    name = name_in(row, columns.name - len(lead) - 2)
    found.append((name, status if row.notable else "name" if row.status == "pass" else "quiet"))
    if columns.class_name:
        found.append((" " * _GAP + fitted(line(row.class_name), columns.class_name), "quiet"))
    if columns.remark:
        found.append((" " * _GAP + fitted(remark_of(each, part), columns.remark), "quiet"))
    if columns.stages:
        found.append((" " * _GAP, ""))
        found += [
            _mark(record.stages.get(stage, "") if record else "", short)
            for stage, short in zip(part.stages, columns.stages)
        ]
    if columns.seconds:
        seconds = wording.duration(record.seconds) if record and record.seconds else ""
        found.append((" " * _GAP + right(seconds, columns.seconds), "quiet"))
    found.append((right(line(wording.row_finding(row)) + " ", columns.finding), "finding"))
    return tuple(found)


def name_in(row: Row, width: int) -> str:
    """A row's name in exactly `width` cells; of a group the count is kept, and as many names as there is room for."""
    if len(row.names) == 1:
        return fitted(line(wording.row_name(row)), width)
    count = f"  {len(row.names)} {'equal' if row.equal else 'alike'}"
    room = width - len(count)
    names = [line(label(row.names, most=most)) for most in range(8, 1, -1)]
    names.append(names[-1].partition(", ")[0] + ", …")
    name = next((name for name in names if cell_len(name) <= room), names[-1])
    return fitted(fitted(name, min(room, cell_len(name))) + count, width)


def remark_of(each: Line, part: PartView) -> str:
    """Where it fails, how much passes, or whom it is like."""
    record = part.records.get(each.row.fqns[0])
    if len(each.row.fqns) == 1 and record is not None and record.same_as is not None:
        return line(f"as {'.'.join(record.same_as.split('.')[-2:])}")
    return line(wording.remark(each.row))


def _mark(status: str, stage: str) -> Piece:
    mark, colour = _MARKS.get(status, (line(status)[:1] or "·", "quiet"))
    return fitted(mark.center(len(stage)), len(stage) + 1), colour
