"""The same interface in a browser, by textual-serve. Bound to the loopback address by default."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor_tui.actions.commands import EXPORTDOCTOR

if TYPE_CHECKING:
    from pathlib import Path


def serve(run: Path | None, *, port: int, host: str = "127.0.0.1") -> int:
    """Serve until interrupted. Raises UsageError where textual-serve is not installed."""
    try:
        from textual_serve.server import Server
    except ImportError as error:
        raise UsageError("textual-serve is not installed", hint="pip install 'exportdoctor[tui]'") from error
    command = shlex.join((*EXPORTDOCTOR, "tui", *((str(run),) if run else ())))
    Server(command, host=host, port=port, title="exportdoctor").serve()
    return ExitCode.EXPORTS
