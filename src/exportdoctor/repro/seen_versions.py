"""The line in a script's head with the versions on which it was seen to fail and to pass."""

from __future__ import annotations

from pathlib import Path

from exportdoctor.core.errors import StoreError
from exportdoctor.report import wording
from exportdoctor.repro.script import comment_lines
from exportdoctor.store.atomic_write import replace_file
from exportdoctor.store.measurements import code_digest, list_measurements

_MADE_BY = "# Made by: "


def with_seen_versions(text: str) -> str:
    """The script with that line as it is known now; the same where nothing is known."""
    digest = code_digest(text)
    sentence = wording.seen_versions([one for one in list_measurements() if one.script == digest])
    if not sentence:
        return text
    lines = text.splitlines()
    old = [index for index, line in enumerate(lines) if line.startswith(f"# {wording.SEEN_VERSIONS}")]
    for start in reversed(old):
        end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("#   ")), len(lines))
        del lines[start:end]
    place = next((index for index, line in enumerate(lines) if line.startswith(_MADE_BY)), 0)
    lines[place:place] = comment_lines(sentence)
    return "\n".join([*lines, ""])


def note_seen_versions(path: Path) -> None:
    """Write the line into a script of a run; one that cannot be read or written stays as it is."""
    try:
        text = path.read_text(encoding="utf-8")
        new = with_seen_versions(text)
        if new != text:
            replace_file(path, new.encode())
    except (OSError, UnicodeDecodeError, StoreError):
        return
