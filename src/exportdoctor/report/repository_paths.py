"""Where a finding is in the repository that is checked: code hosts place a remark by a path below its root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import code_of


class CodePlace(NamedTuple):
    """A line of a file below the repository's root; columns count from one, None where they are not known."""

    file: str
    line: int
    source: str
    columns: tuple[int, int] | None


@cache
def repository_root() -> str:
    """The folder that GitHub Actions checked out, else the innermost one above with `.git`, else this one."""
    if given := os.environ.get("GITHUB_WORKSPACE"):
        return os.path.realpath(given)
    here = Path.cwd()
    return os.path.realpath(next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here))


def relative_path(file: str | None) -> str | None:
    """A file's path below the repository's root, with `/`; None where it is elsewhere or installed there."""
    if not file or not os.path.isabs(file) or "site-packages" in file:
        return None
    path = os.path.relpath(os.path.realpath(file), repository_root())
    return None if path.startswith("..") or os.path.isabs(path) else path.replace(os.sep, "/")


def places_of(finding: Finding) -> Iterator[CodePlace]:
    """The culprit's line, or that of the guard, and the stack's, innermost first, as far as they are in the
    repository."""
    code = code_of(finding)
    lines = [(code.file, code.line, code.source, finding.expression)]
    lines += [(one.file, one.line, one.source, one.expression) for one in reversed(finding.stack) if one.user]
    seen = set()
    for file, line, source, expression in lines:
        path = relative_path(file)
        if path is not None and line and (path, line) not in seen:
            seen.add((path, line))
            yield CodePlace(path, line, (source or "").strip(), _columns(file or "", line, expression or source or ""))


def _columns(file: str, line: int, text: str) -> tuple[int, int] | None:
    """Where the text stands on its line as the file is now: first column and the one behind it."""
    try:
        with open(file, encoding="utf-8") as opened:
            row = next((row for number, row in enumerate(opened, 1) if number == line), "")
    except (OSError, UnicodeDecodeError):
        return None
    first = text.strip().partition("\n")[0]
    start = row.find(first) if first else -1
    return (start + 1, start + 1 + len(first)) if start >= 0 else None
