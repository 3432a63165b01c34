"""Opens a file at a line in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App, SuspendNotSupported

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


def open_editor(app: App[object], path: Path, number: int) -> None:
    """Suspend the interface until the editor ends; the user is notified where it cannot be started."""
    command, failure = editor_command(path, number), None
    try:
        with app.suspend():  # what is raised inside leaves the terminal suspended
            try:
                subprocess.run(command, check=False)
            except (OSError, ValueError) as error:
                failure = error
    except SuspendNotSupported:
        app.notify("An editor needs a terminal; this is a browser", severity="warning", markup=False)
    if failure is not None:
        reason = getattr(failure, "strerror", None) or failure
        app.notify(f"{command[0]}: {reason}. Set EDITOR to your editor", severity="error", markup=False)
