"""`exportdoctor mcp`: serves the verbs as tools over stdio, by the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path

import click

from exportdoctor.cli.options import CONTEXT
from exportdoctor.cli.packages import require_packages
from exportdoctor.core.errors import ExitCode


@click.command("mcp", context_settings=CONTEXT)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    required=True,
    metavar="DIR",
    help="The only folder into which tools write: runs, caches, scripts, bundles, exported programs.",
)
def serve_tools(folder: Path) -> int:
    """Serve scan, finding, explain, repro, cure and export as tools to an agent, over stdin and stdout.

    For a client's configuration: {"command": "exportdoctor", "args": ["mcp", "--folder", "DIR"]}. Targets are read from
    anywhere, and a target is code: scan, explain, repro and export run it as the user who started the server.
    """
    require_packages(("mcp",), option="exportdoctor mcp", extra="mcp")
    from exportdoctor.cli.tool_server import serve

    serve(folder)
    return ExitCode.EXPORTS


mcp = serve_tools  # main loads the command by the verb's name
