"""The atlas as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from exportdoctor.core.run.atlas import Atlas
from exportdoctor.report import wording
from exportdoctor.report.wording import atlas as words

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$@!])")
_SHOWN = 60


def render_markdown(atlas: Atlas) -> str:
    """The whole atlas."""
    blocks = [f"# {_text(words.atlas_title(atlas))}", *map(_text, words.atlas_lines(atlas)), *_difference(atlas)]
    blocks += ["## Stages", _table(words.SHARES_HEADER, map(words.share_cells, atlas.shares))]
    if atlas.causes:
        causes = [words.cause_cells(number, cause) for number, cause in enumerate(atlas.causes, 1)]
        blocks += ["## Root causes", _text(words.UNLOCK_NOTE), _table(words.CAUSES_HEADER, causes)]
    cells = [
        (
            row.name,
            cell.part,
            words.stage_name(cell.sizes, cell.stage),
            words.cell_verdict(cell),
            words.cell_failure(cell),
            words.cell_line(cell),
            words.cell_cure(cell),
            *(f"{cell.seconds:.1f}" if cell.seconds else "", f"{cell.memory_mb:.0f}" if cell.memory_mb else ""),
            words.day(row.at),
            cell.command,
        )
        for row in atlas.rows
        for cell in row.cells
    ]
    blocks += ["## Models", _table(words.CELLS_HEADER, cells)]
    notes = [(row.name, note) for row in atlas.rows for note in row.notes]
    blocks += ["## Notes", _table(words.NOTES_HEADER, notes)] if notes else []
    return "\n\n".join(blocks) + "\n"


def _difference(atlas: Atlas) -> list[str]:
    found = atlas.difference
    if found is None:
        return []
    lines = words.difference_lines(found, most=_SHOWN)
    return [f"## Since {_text(found.earlier)}", "\n".join(f"- {_text(line)}" for line in lines)]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(map(_text, row))} |" for row in rows]
    return "\n".join(lines)


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(wording.plain(text).split()))
