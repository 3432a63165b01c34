"""Errors by depth as a picture: of a model's layers in low precision, or of a stage's values beside the one before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from exportdoctor.core.protocol.numbers_ladder import LadderStage
from exportdoctor.core.protocol.sensitivity import SensitivityResult
from exportdoctor.report import wording
from exportdoctor.report.wording.ladder import ALLOWED, LADDER_LEGEND, stage_picture
from exportdoctor.report.wording.sensitivities import (
    LAYER_LEGEND,
    LAYERS_IN_ORDER,
    budget_text,
    layer_text,
    sensitivity_headline,
)

_WIDTH, _LEFT, _RIGHT, _TOP = 1100, 74, 30, 86
_HEIGHT, _NAMED, _LONGEST = 330, 8, 110
_FLOOR, _CEILING = 1e-9, 1e3
_ROWS, _CELLS, _NAME, _LARGEST = 24, 30, 28, 1e300
_BAR, _DOT, _MARKED = "#2563a8", "#d9822b", "#b3261e"


@dataclass(frozen=True, kw_only=True)
class PlotColumn:
    """One layer or value: the height of its bar, that of its dot (0 for none), and what is said of it."""

    bar: float
    dot: float
    text: str
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class ErrorPlot:
    """What a picture shows. `named` are columns with a number and a line below, `legend` says bar, marked bar, dot."""

    title: str
    legend: tuple[str, str, str]
    below: str
    columns: Sequence[PlotColumn]
    named: Sequence[int] = ()
    limit: float = 0.0
    limit_text: str = ""


def draw_sensitivity(result: SensitivityResult) -> str:
    """An SVG: bars for the outputs' error with one layer lowered, dots for its own output, a line for the budget."""
    layers = sorted(result.layers, key=lambda one: one.depth)
    places = {one.name: place for place, one in enumerate(layers)}
    columns = [
        PlotColumn(bar=one.alone, dot=one.local, text=layer_text(result, one), marked=one.name in result.kept)
        for one in layers
    ]
    return draw_errors(
        ErrorPlot(
            title=sensitivity_headline(result, versions=False),
            legend=LAYER_LEGEND,
            below=LAYERS_IN_ORDER,
            columns=columns,
            named=[places[one.name] for one in result.layers[:_NAMED]],
            limit=result.budget,
            limit_text=budget_text(result.budget),
        )
    )


def draw_stage(stage: LadderStage) -> str:
    """An SVG: bars for the error that each value adds by itself, dots for what it inherits. Empty without values."""
    if not stage.values:
        return ""
    cause = stage.cause.node if stage.cause is not None else ""
    title, below, texts = stage_picture(stage)
    columns = [
        PlotColumn(bar=one.local, dot=one.inherited, text=text, marked=one.name == cause or one in stage.wrong)
        for one, text in zip(stage.values, texts, strict=True)
    ]
    worst = sorted(range(len(columns)), key=lambda place: (not columns[place].marked, -stage.values[place].local))
    limit = max(one.allowed for one in stage.values)
    named = [place for place in worst[:_NAMED] if columns[place].marked] or worst[:1]
    return draw_errors(
        ErrorPlot(
            title=title, legend=LADDER_LEGEND, below=below, columns=columns, named=named, limit=limit,
            limit_text=ALLOWED if limit else "",
        )
    )  # fmt: skip


def stage_in_text(stage: LadderStage) -> list[tuple[bool, str]]:
    """A line for each value, or for as many neighbours as leave 24 lines: the one that adds most, whether it is too
    much, its error as a bar on a scale of powers of ten, with `│` at what is allowed and `●` at what it inherits."""
    values = stage.values
    size = max(1, math.ceil(len(values) / _ROWS))
    wrong, cause = set(stage.wrong), stage.cause.node if stage.cause is not None else ""
    worst = [
        max(values[start : start + size], key=lambda one: (one.name == cause, one in wrong, one.local, one.inherited))
        for start in range(0, len(values), size)
    ]
    names = [_shorten(wording.plain(one.name), most=_NAME) for one in worst]
    width = max(map(len, names), default=0)
    found = []
    for one, name in zip(worst, names, strict=True):
        line = ["█" if place < _cells(one.local) else " " for place in range(_CELLS + 1)]
        for value, sign in ((one.allowed, "│"), (one.inherited, "●")):
            if value:
                line[_cells(value)] = sign
        number = f"{one.local:.1e}" if one.local < _LARGEST else "not finite"
        found.append(
            (one.name == cause or one in wrong, f"{name:<{width}}  {''.join(line)}  {number if one.local else 0}")
        )
    return found


def _cells(value: float) -> int:
    """How far an error reaches on a scale of `_CELLS` cells; one cell for the smallest that is shown."""
    low, high = math.log10(_FLOOR), math.log10(_CEILING)
    return max(1, round((math.log10(_within(value)) - low) / (high - low) * _CELLS)) if value else 0


def draw_errors(plot: ErrorPlot) -> str:
    """The picture, on a scale of powers of ten."""
    heights = [one for column in plot.columns for one in (column.bar, column.dot) if one] + [plot.limit]
    values = [_within(one) for one in heights if one]
    low = max(math.floor(math.log10(min(values, default=1e-3)) - 0.2), round(math.log10(_FLOOR)))
    high = max(math.ceil(math.log10(max(values, default=1.0))), low + 1)
    scale = _Scale(count=len(plot.columns), low=low, high=high)
    bottom = _TOP + _HEIGHT
    height = bottom + 78 + 18 * len(plot.named)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 26, _shorten(plot.title), size=16, weight="600"),
        *_legend(plot.legend),
        *_axis(scale),
    ]
    if plot.limit_text:
        y = scale.y(plot.limit)
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, _MARKED, dash="6 4"))
        parts.append(_text(_WIDTH - _RIGHT, y - 5, plot.limit_text, colour=_MARKED, anchor="end"))
    for place, column in enumerate(plot.columns):
        parts += _column(column, scale, place)
        if place in plot.named:
            top = min(scale.y(one) if one else bottom for one in (column.bar, column.dot))
            number = plot.named.index(place) + 1
            parts.append(_text(scale.x(place), top - 8, str(number), weight="600", anchor="middle"))
    parts.append(_text(_LEFT, bottom + 22, plot.below, colour="#555555"))
    for number, place in enumerate(plot.named):
        text = _shorten(f"{number + 1}  {plot.columns[place].text}", most=150)
        parts.append(_text(_LEFT, bottom + 52 + 18 * number, text))
    return "\n".join([*parts, "</svg>", ""])


class _Scale:
    """From a column's place and an error to the picture."""

    def __init__(self, *, count: int, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.step = (_WIDTH - _LEFT - _RIGHT) / max(1, count)

    def x(self, place: int) -> float:
        """The middle of a column."""
        return _LEFT + (place + 0.5) * self.step

    def y(self, value: float) -> float:
        """The height of an error."""
        share = (math.log10(_within(value)) - self.low) / (self.high - self.low)
        return _TOP + _HEIGHT * (1 - min(1.0, max(0.0, share)))


def _within(value: float) -> float:
    return min(_CEILING, max(_FLOOR, value))


def _shorten(text: str, *, most: int = _LONGEST) -> str:
    """The end of a text that is too long: paths and names differ there."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _column(one: PlotColumn, scale: _Scale, place: int) -> list[str]:
    x, bottom, width = scale.x(place), _TOP + _HEIGHT, max(1.0, min(22.0, scale.step * 0.7))
    found = []
    if one.bar:
        y = scale.y(one.bar)
        found.append(
            f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(1.0, bottom - y):.1f}" '
            f'fill="{_MARKED if one.marked else _BAR}" fill-opacity="0.8"><title>{_safe(one.text)}</title></rect>'
        )
    if one.dot:
        radius = max(2.0, min(4.5, width / 2))
        found.append(f'<circle cx="{x:.1f}" cy="{scale.y(one.dot):.1f}" r="{radius:.1f}" fill="{_DOT}"/>')
    return found


def _axis(scale: _Scale) -> list[str]:
    found = []
    for power in range(scale.low, scale.high + 1):
        y = scale.y(10.0**power)
        found.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "#dddddd"))
        found.append(_text(_LEFT - 8, y + 4, f"1e{power}", colour="#555555", anchor="end"))
    return found


def _legend(texts: tuple[str, str, str]) -> list[str]:
    found, x = [], float(_LEFT)
    for colour, text in zip((_BAR, _MARKED, _DOT), texts, strict=True):
        shape = f'<circle cx="{x + 6}" cy="50" r="4.5" fill="{colour}"/>'
        if colour != _DOT:
            shape = f'<rect x="{x}" y="44" width="12" height="12" fill="{colour}" fill-opacity="0.8"/>'
        found += [shape, _text(x + 18, 55, text)]
        x += 38 + 7.0 * len(text)
    return found


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: str = "") -> str:
    style = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{style}/>'


def _text(
    x: float, y: float, text: str, *, colour: str = "#111111", size: int = 13, weight: str = "", anchor: str = "start"
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-size="{size}"{bold}>{_safe(text)}</text>'


def _safe(text: str) -> str:
    """Text from a target, in which nothing is markup."""
    return escape(wording.plain(text))
