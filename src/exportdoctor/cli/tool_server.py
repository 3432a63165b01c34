"""The server of `exportdoctor mcp`: it offers the tools of a session over stdio."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from exportdoctor.cli.packages import version
from exportdoctor.cli.tool_session import NamedFolder, ToolSession

_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "HF_MODULES_CACHE", "MPLCONFIGDIR")
"""Variables by which packages that a model imports are told where to write."""


def serve(folder: Path) -> None:
    """Serve until stdin closes."""
    named = NamedFolder(folder)
    os.environ |= {
        "EXPORTDOCTOR_HOME": str(named.state),
        "TMPDIR": str(named.state / "tmp"),
        **{name: str(named.state / "tmp" / name.lower()) for name in _CACHES},
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "100",
    }
    make_server(ToolSession(named)).run("stdio")


class _Server(MCPServer):
    """One that refuses arguments which a tool does not have, where MCPServer ignores them."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """As MCPServer's. Raises ToolError, which names the arguments that there are."""
        for tool in await self.list_tools():
            known = tool.input_schema.get("properties", {})
            if tool.name == name and (unknown := sorted(arguments.keys() - known.keys())):
                raise ToolError(f"{name} has no argument {', '.join(unknown)}. It has: {', '.join(known)}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(_wrong_arguments(name, error.__cause__)) from None
            raise


def _wrong_arguments(tool: str, error: ValidationError) -> str:
    """One line on arguments that are missing or have a wrong value."""
    told = []
    for one in error.errors(include_url=False):
        where = ".".join(map(str, one["loc"]))
        given = "" if one["type"] == "missing" else f", and {one['input']!r:.80} was given"
        told.append(f"{where}: {one['msg'][:1].lower()}{one['msg'][1:]}{given}")
    return f"{tool}: {'; '.join(told)}"


def make_server(session: ToolSession) -> MCPServer:
    """The server with its tools."""
    server = _Server(
        "exportdoctor",
        version=version(),
        instructions="Find out why torch.export fails on a model. Begin with scan; findings are called F1, F2, … and "
        "belong to a run, by default the newest one. A target is code, which runs on this machine.",
    )
    server.tool()(session.scan)
    server.tool(name="finding")(session.describe_finding)
    for tool in (session.explain, session.repro, session.cure, session.export):
        server.tool()(tool)
    return server
