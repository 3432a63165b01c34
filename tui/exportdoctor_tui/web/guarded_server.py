"""Serves the interface to one browser user: nobody else on the machine, and no other page of the browser, gets in.

Whoever reaches the port could read the sources and start commands. So the page and its connection ask for a token that
is drawn at each start, the Host must be this address (else a name that a stranger's DNS points here would do), and an
Origin, which browsers send along, must be this page's.
"""

from __future__ import annotations

import hmac
import secrets
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp_jinja2
import jinja2
from aiohttp import web
from textual_serve.server import Server

from exportdoctor.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from exportdoctor_tui.actions.commands import Argv

_HOST = "127.0.0.1"


class GuardedServer(Server):
    """textual-serve's, on this machine only, behind a token."""

    def __init__(self, command: Argv, *, port: int, title: str) -> None:
        super().__init__(
            shlex.join(command), host=_HOST, port=port, title=title, templates_path=str(Path(__file__).parent)
        )
        self.token = secrets.token_urlsafe(24)
        self._hosts = {f"{name}:{port}" for name in (_HOST, "localhost")} | (
            {_HOST, "localhost"} if port == 80 else set()
        )

    @property
    def address(self) -> str:
        """The page, with its token."""
        return f"{self.public_url}/?token={self.token}"

    def initialize_logging(self) -> None:
        """No log: the terminal shows the address."""

    async def on_startup(self, app: web.Application) -> None:
        """Print the address."""
        print(f"exportdoctor: {self.address} (Ctrl-C ends it)", flush=True)

    async def _make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._check])
        aiohttp_jinja2.setup(app, loader=jinja2.FileSystemLoader(self.templates_path), autoescape=True)
        app.add_routes(
            [
                web.get("/", self.handle_page),
                web.get(f"/ws/{self.token}", self.handle_websocket),
                web.static("/static", self.statics_path),
            ]
        )
        app.on_startup.append(self.on_startup)
        return app

    async def handle_page(self, request: web.Request) -> web.Response:
        """The page, to those who know the token."""
        if not hmac.compare_digest(request.query.get("token", "").encode(), self.token.encode()):
            raise web.HTTPForbidden(text="This page needs the address with the token that exportdoctor printed.\n")
        nonce = secrets.token_urlsafe(12)
        facts: dict[str, Any] = {
            "title": self.title,
            "socket": f"{self.public_url.replace('http', 'ws', 1)}/ws/{self.token}",
            "nonce": nonce,
        }
        page = aiohttp_jinja2.render_template("app_index.html", request, facts)
        page.headers["Content-Security-Policy"] = (
            f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; img-src 'self' "
            f"data:; font-src 'self' data:; connect-src 'self' ws://{request.host}; base-uri 'none'; "
            "frame-ancestors 'none'; form-action 'none'"
        )
        page.headers["Referrer-Policy"] = "no-referrer"
        page.headers["Cache-Control"] = "no-store"
        return page

    @web.middleware
    async def _check(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse every other Host and Origin."""
        origin = request.headers.get("Origin")
        if request.headers.get("Host") not in self._hosts or (
            origin is not None and origin.removeprefix("http://") not in self._hosts
        ):
            raise web.HTTPForbidden(text="Only this machine's own address is served.\n")
        return await handler(request)


def serve(command: Argv, *, port: int, title: str) -> None:
    """Serve the interface that `command` starts until interrupted. Raises UsageError where the port is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror}",
                hint="Choose another one: exportdoctor tui --web --port N",
            ) from error
    GuardedServer(command, port=port, title=title).serve()
