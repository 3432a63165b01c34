"""How each editor is told to open a file at a line."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_GOTO = frozenset({"code", "codium", "code-insiders", "cursor", "windsurf"})
_COLON = frozenset({"hx", "helix", "subl", "zed", "zeditor", "kak"})


def editor_command(path: Path, number: int, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The command that opens `path` at line `number`: $VISUAL, then $EDITOR, then vi."""
    words = shlex.split(environment.get("VISUAL") or environment.get("EDITOR") or "vi") or ["vi"]
    name = Path(words[0]).name
    if name in _GOTO:
        return (*words, "--goto", f"{path}:{number}")
    if name in _COLON:
        return (*words, f"{path}:{number}")
    return (*words, f"+{number}", str(path))
