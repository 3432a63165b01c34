"""Draws a slice of the traced graph as SVG: layers from the inputs down to the failure.

Graphviz would need a program that is not a Python package; equal slices give equal files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from exportdoctor.core.records.outcome import GraphSlice, SliceNode

_LINE, _CHARACTER, _PAD = 16, 7.3, 8
_GAP, _BETWEEN, _MARGIN = 24, 44, 16
_WIDEST = 76  # characters of a line
_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}.b{fill:#f6f8fa;stroke:#8c959f}"
    ".t{fill:#ffebe9;stroke:#cf222e;stroke-width:2}.h{font-weight:600}path{fill:none;stroke:#8c959f}"
)


@dataclass(frozen=True)
class _Box:
    """A node with its place; `x` and `y` are of its upper left corner, all sizes in pixels."""

    lines: tuple[str, ...]
    target: bool
    x: float
    y: float
    width: float
    height: float


def as_svg(found: GraphSlice) -> str:
    """An SVG document; the nodes that the failure is about stand out."""
    boxes = _lay_out(found)
    width = max((box.x + box.width for box in boxes), default=0) + _MARGIN
    height = max((box.y + box.height for box in boxes), default=0) + _MARGIN
    body = [*(_edge(boxes[start], boxes[end]) for start, end in found.edges), *map(_draw, boxes)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            "<title>The part of the traced graph that leads to the failure</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )


def _lay_out(found: GraphSlice) -> list[_Box]:
    """Every node's box, in the slice's order."""
    texts = [tuple(_shorten(line) for line in _lines(node)) for node in found.nodes]
    widths = [max(len(line) for line in lines) * _CHARACTER + 2 * _PAD for lines in texts]
    boxes: dict[int, _Box] = {}
    rows = _rows(found)
    broadest = max((sum(widths[i] for i in row) + _GAP * (len(row) - 1) for row in rows), default=0.0)
    y = float(_MARGIN)
    for row in rows:
        x = _MARGIN + (broadest - sum(widths[i] for i in row) - _GAP * (len(row) - 1)) / 2
        tallest = 0.0
        for index in row:
            height = len(texts[index]) * _LINE + 2 * _PAD
            boxes[index] = _Box(texts[index], index in found.targets, x, y, widths[index], height)
            x, tallest = x + widths[index] + _GAP, max(tallest, height)
        y += tallest + _BETWEEN
    return [boxes[index] for index in range(len(texts))]


def _rows(found: GraphSlice) -> list[list[int]]:
    """The nodes of each layer: one below the lowest of what it is made of, in the order of those."""
    depth: dict[int, int] = {}
    for index in range(len(found.nodes)):
        above = [depth[start] for start, end in found.edges if end == index and start in depth]
        depth[index] = 1 + max(above, default=-1)
    rows: list[list[int]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for index, layer in depth.items():
        rows[layer].append(index)
    place: dict[int, float] = {}
    for row in rows:
        row.sort(key=lambda index: (_centre(found, index, place), index))
        place |= {index: number / max(1, len(row) - 1) for number, index in enumerate(row)}
    return rows


def _centre(found: GraphSlice, index: int, place: dict[int, float]) -> float:
    above = [place[start] for start, end in found.edges if end == index and start in place]
    return sum(above) / len(above) if above else 0.5


def _lines(node: SliceNode) -> Iterator[str]:
    name = node.label or node.name
    yield name if node.op == "input" else f"{name} = {node.op}"
    if node.shape:
        yield node.shape
    if node.source:
        yield node.source.strip()
    if node.file:
        yield f"{node.file.replace(chr(92), '/').rpartition('/')[2]}:{node.line}"


def _shorten(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _draw(box: _Box) -> str:
    kind = "t" if box.target else "b"
    place = f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}"'
    rect = f'<rect class="{kind}" {place} rx="4"/>'
    texts = [
        f'<text{" class=" + chr(34) + "h" + chr(34) if number == 0 else ""} x="{box.x + _PAD:.0f}" '
        f'y="{box.y + _PAD + _LINE * (number + 0.75):.0f}">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    ]
    return "".join([rect, *texts])


def _edge(start: _Box, end: _Box) -> str:
    """A curve from the lower side of one box to the upper side of another, with its head."""
    x1, y1 = start.x + start.width / 2, start.y + start.height
    x2, y2 = end.x + end.width / 2, end.y
    bend = (y2 - y1) / 2
    curve = f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"/>'
    head = f'<path d="M{x2 - 4:.0f} {y2 - 7:.0f}L{x2:.0f} {y2:.0f}L{x2 + 4:.0f} {y2 - 7:.0f}"/>'
    return curve + head
