"""The small pieces of every sentence: counts, durations, sizes, names, paths, links. Plain strings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from exportdoctor.core.unsafe_text import UNSAFE

_INSTALLED = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
_STANDARD_LIBRARY = re.compile(r"^.*[/\\]lib[/\\]python3\.\d+[/\\]")
_GITHUB = re.compile(r"^https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)$")
_SHORT_ISSUE = re.compile(r"^([\w.-]+/[\w.-]+)#(\d+)$")
_ASCII = str.maketrans({"✓": "+", "✗": "x", "·": "-", "…": "...", "Δ": "diff", "→": "->", "▶": ">"})
_MOST_DIGITS = 17
_UNITS = ("bytes", "KB", "MB", "GB")


def plain(text: str) -> str:
    """`text` with its control characters made visible; newlines and tabs stay."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def to_ascii(text: str) -> str:
    """`text` with our own symbols replaced, for a terminal that shows only ASCII."""
    return text.translate(_ASCII)


def count(number: int, noun: str) -> str:
    """`1 module`, `2 modules`."""
    return f"{number:,} {noun}".replace(",", " ") + ("" if number == 1 else "s")


def under_shims(shims: Sequence[str]) -> str:
    """`with a + b`, of a program that was exported with them; empty without any."""
    return f"with {' + '.join(shims)}" if shims else ""


def finding_count(number: int) -> str:
    """`no findings`, `1 finding`, `2 findings`."""
    return count(number, "finding") if number else "no findings"


def beside_limit(value: float, limit: float, *, digits: int = 1, of_limit: int = 0) -> tuple[str, str]:
    """A difference and what is allowed of it, as `1.3e-05` and `1e-05`: with as many digits behind the point as show
    which of the two is larger."""
    for more in range(_MOST_DIGITS):
        texts = f"{value:.{digits + more}e}", f"{limit:.{digits + more if more else of_limit}e}"
        shown, allowed = map(float, texts)
        if (shown > allowed, shown < allowed) == (value > limit, value < limit):
            break
    return texts


def duration(seconds: float) -> str:
    """`0.42 s`, `8.3 s`, `75 s`, `12 min 05 s`, `2 h 03 min`."""
    if seconds < 1:
        return f"{max(0.0, seconds):.2f} s"
    if seconds < 20:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def parameters(number: int) -> str:
    """`3.75 B parameters`."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit} parameters"
    return count(number, "parameter")


def file_size(number: int) -> str:
    """`512 bytes`, `7.5 MB` (decimal units)."""
    amount, unit = float(number), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}" if unit else f"{number} bytes"


def module_name(fqn: str) -> str:
    """A submodule's name; `(root)` for the outermost one."""
    return fqn or "(root)"


def short_path(file: str) -> str:
    """A source file, an installed one from its package on."""
    return _STANDARD_LIBRARY.sub("", _INSTALLED.sub("", file)).replace("\\", "/")


def issue_name(link: str) -> str:
    """`owner/name#12` for a link to GitHub; any other link unchanged."""
    return _GITHUB.sub(r"\1#\2", link)


def issue_link(link: str) -> str:
    """The address of an issue given as `owner/name#12`; any other link unchanged."""
    return _SHORT_ISSUE.sub(r"https://github.com/\1/issues/\2", link)


def weights_text(name: str) -> str:
    """The kind of weights, in words."""
    return f"{name} weights" if name in ("random", "checkpoint") else f"weights {name}"
