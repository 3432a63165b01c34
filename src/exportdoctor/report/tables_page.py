"""A page of one's own for a ladder, a domain or a ranking of layers: tables, pictures and lines, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from exportdoctor.report import wording

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #111; }
h1 { font-size: 1.2rem; } pre { white-space: pre-wrap; background: #f6f6f6; padding: 1rem; border-radius: 6px; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 0.9rem 0.2rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
.wrong { color: #b3261e; } .right { color: #1b7f3b; } svg { max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e6e6e6; } pre { background: #22252b; } th, td { border-color: #3a3d44; }
  .wrong { color: #ff8a80; } .right { color: #7bd88f; } svg { border-radius: 6px; }
}
"""
_CLASSES = {"✗": ' class="wrong"', "✓": ' class="right"'}
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A header and rows."""


def render_page(title: str, tables: Iterable[Table], lines: Iterable[str], pictures: Iterable[str] = ()) -> str:
    """The page. `pictures` are SVGs of ours; everything else is text, in which nothing is markup."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f'<meta name="viewport" content="width=device-width"><title>{_safe(title)}</title><style>{_STYLE}</style>',
        f"</head><body><h1>{_safe(title)}</h1>",
    ]
    for header, rows in tables:
        if rows:
            parts.append(f"<table><tr>{''.join(f'<th>{_safe(cell)}</th>' for cell in header)}</tr>")
            parts += [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows]
            parts.append("</table>")
    parts += pictures
    return "\n".join([*parts, f"<pre>{_safe(chr(10).join(lines))}</pre>", "</body></html>", ""])


def _cell(text: str) -> str:
    return f"<td{_CLASSES.get(text, '')}>{_safe(text)}</td>"


def _safe(text: str) -> str:
    return escape(wording.plain(text))
