"""The atlas as one HTML file that needs nothing else: it asks no network, and its search is a few lines of script.

Every text that comes from a target is escaped, and none stands in the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from exportdoctor.core.run.atlas import Atlas, AtlasCell, AtlasRow, CellVerdict, Sizes
from exportdoctor.report import wording
from exportdoctor.report.wording import atlas as words

_LEADING: tuple[CellVerdict, ...] = ("fails", "no_verdict", "cured", "passes", "not_asked")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render_page(atlas: Atlas) -> str:
    """The whole page."""
    here = Path(__file__).parent
    css, script = ((here / name).read_text(encoding="utf-8") for name in ("atlas.css", "atlas.js"))
    body = [f"<h1>{_text(words.atlas_title(atlas))}</h1>"]
    body += [f"<p>{_text(line)}</p>" for line in words.atlas_lines(atlas)]
    body += _difference(atlas)
    body += ["<h2>Stages</h2>", _table(words.SHARES_HEADER, map(words.share_cells, atlas.shares))]
    if atlas.causes:
        causes = [words.cause_cells(number, cause) for number, cause in enumerate(atlas.causes, 1)]
        body += ["<h2>Root causes</h2>", f"<p class=dim>{_text(words.UNLOCK_NOTE)}</p>"]
        body.append(_table(words.CAUSES_HEADER, causes))
    body += [
        "<h2>Models</h2>",
        '<p><input id="search" type="search" placeholder="model, failure, line, shim" '
        'aria-label="Search the models"> <output id="shown"></output></p>',
        *_models(atlas.rows),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{_text(words.atlas_title(atlas))}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f"\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _difference(atlas: Atlas) -> list[str]:
    found = atlas.difference
    if found is None:
        return []
    lines = words.difference_lines(found)
    return [f"<h2>Since {_text(found.earlier)}</h2>", "<ul>", *(f"<li>{_text(line)}</li>" for line in lines), "</ul>"]


def _models(rows: Sequence[AtlasRow]) -> Iterable[str]:
    """A button for each verdict, then a line for each part of a model: its verdicts, and what fails first."""
    columns = tuple(dict.fromkeys((cell.sizes, cell.stage) for row in rows for cell in row.cells))
    parts = [
        (row, tuple(cell for cell in row.cells if cell.part == part))
        for row in rows
        for part in dict.fromkeys(cell.part for cell in row.cells)
    ]
    counts = Counter(_leading_verdict(cells) for _, cells in parts)
    chips = (
        f'<button type="button" class="{one}" data-verdict="{one}" aria-pressed="false">'
        f"{words.VERDICT_SYMBOLS[one]} {words.VERDICT_WORDS[one]} {counts[one]}</button>"
        for one in _LEADING
        if counts[one]
    )
    yield f'<p id="chips">{" ".join(chips)}</p>'
    yield f'<div id="models" style="--columns: {len(columns)}">'
    heads = "".join(f"<span>{sizes}<br>{stage}</span>" for sizes, stage in columns)
    yield f'<div class="line head"><span class=name>model</span><span class=part>part</span>{heads}<span></span></div>'
    yield from (_part(row, cells, columns) for row, cells in parts)
    yield "</div>"


def _leading_verdict(cells: Sequence[AtlasCell]) -> CellVerdict:
    """What a part counts as: the worst that a stage came to."""
    return next(one for one in _LEADING if any(cell.verdict == one for cell in cells))


def _part(row: AtlasRow, cells: Sequence[AtlasCell], columns: Sequence[tuple[Sizes, str]]) -> str:
    """A part of a model in one line, its cells behind it."""
    found = {(cell.sizes, cell.stage): cell for cell in cells}
    marks = "".join(_mark(found.get(column), words.stage_name(*column)) for column in columns)
    leading = _leading_verdict(cells)
    first = next((words.cell_failure(cell) for cell in cells if cell.verdict == leading), "")
    return (
        f'<details data-verdict="{leading}"><summary class=line><b class=name>{_text(row.name)}</b>'
        f"<span class=part>{_text(cells[0].part)}</span>{marks}<span class=first>{_text(first)}</span></summary>\n"
        + "\n".join([*(f"<p class=dim>{_text(note)}</p>" for note in row.notes), *(_cell(row, cell) for cell in cells)])
        + "\n</details>"
    )


def _mark(cell: AtlasCell | None, column: str) -> str:
    if cell is None:
        return "<span></span>"
    said = _text(f"{column}: {words.VERDICT_WORDS[cell.verdict]}")
    return f'<span class="{cell.verdict}" title="{said}">{words.VERDICT_SYMBOLS[cell.verdict]}</span>'


def _cell(row: AtlasRow, cell: AtlasCell) -> str:
    facts = (
        ("failure", words.cell_failure(cell)),
        ("line", words.cell_line(cell)),
        ("cure", words.cell_cure(cell)),
        ("cost", f"{wording.duration(cell.seconds)}, {cell.memory_mb:.0f} MiB" if cell.seconds else ""),
        ("asked", words.day(row.at)),
        ("again", cell.command),
    )
    title = f"{' '.join(filter(None, (cell.part, words.stage_name(cell.sizes, cell.stage))))}"
    rows = "".join(f"<dt>{name}</dt><dd>{_text(value)}</dd>" for name, value in facts if value)
    return f'<h3 class="{cell.verdict}">{_text(title)}: {_text(words.cell_verdict(cell))}</h3>\n<dl>{rows}</dl>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<div class=wide><table>", f"<tr>{''.join(f'<th>{_text(name)}</th>' for name in header)}</tr>"]
    for row in rows:  # a narrow screen shows the header's name before each cell
        cells = (f'<td data-name="{_text(name)}">{_text(cell)}</td>' for name, cell in zip(header, row))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table></div>"])


def _text(text: str) -> str:
    return escape(wording.plain(text), quote=True)
