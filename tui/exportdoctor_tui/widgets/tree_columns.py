"""The columns of the tree: how wide each is, and what a line has in each.

Name and finding are always shown; on a narrow screen the others are left out, the least useful first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from exportdoctor.report import wording
from exportdoctor.report.folded_tree import Row, label
from exportdoctor_tui.sanitize import align_right, fit, line

if TYPE_CHECKING:
    from exportdoctor_tui.state.outline import Line
    from exportdoctor_tui.state.run_view import PartView

Piece = tuple[str, str]
"""Text and the name of its colour."""

_SHORT = {"export": "exp", "decompose": "dec", "translate": "onnx", "load": "load", "run": "run"}
_MARKS = {"pass": ("✓", "pass"), "fail": ("✗", "fail")}
_GAP = 2
_NAME = 34  # cells of a name that other columns must leave, if there are names as long
_WHOLE_NAME = 56  # cells of a name that the column of classes must leave
_CLASS = 14  # a narrower column of classes is of no use
_REMARK = 22  # a remark is cut there


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
    """The columns for `width` cells."""
    remark = min(_REMARK, max((cell_len(remark_of(each, part)) for each in lines), default=0))
    wanted = max((2 * each.depth + 4 + cell_len(wording.row_name(each.row)) for each in lines), default=0)
    least = min(wanted, _NAME)
    longest = max((cell_len(line(each.row.class_name)) for each in lines), default=0)
    finding = max(4, max((len(wording.row_finding(each.row)) for each in lines), default=0) + 2)
    several = len(part.stages) > 1  # the sign before the name says how the only one ended
    stages = tuple(_SHORT.get(stage, stage) for stage in part.stages) if several else ()
    room = width - finding - least
    taken: dict[str, int] = {}
    optional = {"remark": remark, "stages": sum(len(stage) + 1 for stage in stages), "seconds": 7}
    for name, size in optional.items():
        if size and room >= size + _GAP:
            taken[name] = size
            room -= size + _GAP
    spare = room + least - min(wanted, _WHOLE_NAME)
    class_name = min(longest, spare - _GAP) if spare >= _CLASS + _GAP else 0
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
    cells = [fit("  submodule", columns.name)]
    if columns.class_name:
        cells.append(fit("class", columns.class_name))
    if columns.remark:
        cells.append(fit("", columns.remark))
    if columns.stages:
        cells.append("".join(f"{stage} " for stage in columns.stages))
    if columns.seconds:
        cells.append(align_right("time", columns.seconds))
    return (" " * _GAP).join(cells) + " " * columns.finding


def pieces(each: Line, part: PartView, columns: Columns) -> tuple[Piece, ...]:
    """A line's text from left to right, exactly as wide as `columns`."""
    row = each.row
    record = part.records.get(row.fqns[0])
    arrow = ("▾" if each.is_open else "▸") if row.children or len(row.fqns) > 1 else " "
    status = part.look(row)
    symbol = wording.SYMBOLS[status]
    lead = indentation(each.depth, columns) + arrow + " "
    cells: list[Piece] = [(lead, "quiet"), (f"{symbol} ", status)]
    name = name_in(row, columns.name - len(lead) - 2)
    cells.append((name, status if row.notable else "name" if row.status == "pass" else "quiet"))
    if columns.class_name:
        cells.append((" " * _GAP + fit(line(row.class_name), columns.class_name), "quiet"))
    if columns.remark:
        cells.append((" " * _GAP + fit(remark_of(each, part), columns.remark), "quiet"))
    if columns.stages:
        cells.append((" " * _GAP, ""))
        cells += [
            _mark(record.stages.get(stage, "") if record else "", short)
            for stage, short in zip(part.stages, columns.stages)
        ]
    if columns.seconds:
        seconds = wording.duration(record.seconds) if record and record.seconds else ""
        cells.append((" " * _GAP + align_right(seconds, columns.seconds), "quiet"))
    cells.append((align_right(line(wording.row_finding(row)) + " ", columns.finding), "finding"))
    return tuple(cells)


def indentation(depth: int, columns: Columns) -> str:
    """The cells before a line's arrow: two for each level, up to half of the column. Deeper lines have the number of
    their level."""
    most = columns.name // 2
    return "  " * depth if 2 * depth <= most else f"{depth} ".rjust(most)


def name_in(row: Row, width: int) -> str:
    """A row's name in exactly `width` cells; a group shows its count, and as many names as fit."""
    if len(row.names) == 1:
        return fit(line(wording.row_name(row)), width)
    count = f"  {len(row.names)} {'identical' if row.equal else 'similar'}"
    room = width - len(count)
    names = [line(label(row.names, most=most)) for most in range(8, 1, -1)]
    names.append(names[-1].partition(", ")[0] + ", …")
    name = next((name for name in names if cell_len(name) <= room), names[-1])
    return fit(fit(name, min(room, cell_len(name))) + count, width)


def remark_of(each: Line, part: PartView) -> str:
    """Where it fails, how much of it passes, or which submodule it equals."""
    record = part.records.get(each.row.fqns[0])
    if len(each.row.fqns) == 1 and record is not None and record.same_as is not None:
        return line(f"same as {'.'.join(record.same_as.split('.')[-2:])}")
    return line(wording.remark(each.row))


def _mark(status: str, stage: str) -> Piece:
    mark, colour = _MARKS.get(status, (line(status)[:1] or "·", "quiet"))
    return fit(mark.center(len(stage)), len(stage) + 1), colour
