"""The same interface in a real browser: textual-serve, Chromium, and the browser's own terminal read back."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tui_recorded import HERE, REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]

# the page keeps its terminal in a local variable: let an assignment to any `terminal` attribute be seen
HOOK = """Object.defineProperty(Object.prototype, 'terminal', {configurable: true, set(value) {
    window.seen = value;
    Object.defineProperty(this, 'terminal', {value, writable: true, configurable: true, enumerable: true});
}});"""
READ = """(() => { if (!window.seen) return ''; const b = window.seen.buffer.active;
    return Array.from({length: b.length}, (_, n) => b.getLine(n).translateToString(true)).join('\\n'); })()"""


@pytest.fixture
def server() -> Iterator[str]:
    """The address of the interface on a recorded run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = (
        "from pathlib import Path; from exportdoctor_tui.app import main; "
        f"main(Path({str(HERE / 'crash')!r}), web=True, port={port})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "src"), str(REPOSITORY / "tui")))}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _until(lambda: urllib.request.urlopen(address, timeout=2).status == 200)
        yield address
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[str]:
    """The address of a headless Chromium's debugger."""
    assert CHROMIUM is not None
    process = subprocess.Popen(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={tmp_path}",
         "--window-size=1400,900", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
         "--host-resolver-rules=MAP fonts.googleapis.com 127.0.0.1:9", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    port_file = tmp_path / "DevToolsActivePort"
    try:
        _until(port_file.exists)
        yield f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(10)


def _until(ready: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError


class Page:
    """One tab, spoken to by the debugger's protocol."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command; events in between are passed over."""
        number = next(self._numbers)
        await self._connection.send_json({"id": number, "method": method, "params": parameters})
        while True:
            answer: dict[str, Any] = json.loads((await self._connection.receive()).data)
            if answer.get("id") == number:
                return dict(answer.get("result", {}))

    async def text(self) -> str:
        """What the browser's terminal shows."""
        answer = await self.ask("Runtime.evaluate", expression=READ)
        return str(answer.get("result", {}).get("value", ""))

    async def shows(self, *wanted: str) -> None:
        """Wait for all of `wanted`."""
        text = ""
        for _ in range(300):
            text = await self.text()
            if all(each in text for each in wanted):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"not in the browser: {wanted}\n{text}")

    async def press(self, key: str) -> None:
        """A key, as a user gives it."""
        await self.ask("Runtime.evaluate", expression="window.seen.focus()")
        await self.ask("Input.dispatchKeyEvent", type="keyDown", text=key, key=key)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)


async def test_a_browser_shows_the_tree_and_opens_a_finding(server: str, browser: str) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session:
        pages = await (await session.get(f"{browser}/json")).json()
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        async with session.ws_connect(address, max_msg_size=0) as connection:
            page = Page(connection)
            await page.ask("Page.enable")
            await page.ask("Page.addScriptToEvaluateOnNewDocument", source=HOOK)
            await page.ask("Page.navigate", url=server)
            await page.shows("fixtures/segfault.py:build", "☠ (root)", "kernel", "✓ head")
            await page.press("n")
            await page.press("n")
            await page.shows("ctypes.string_at(0)", "SIGSEGV")
            await page.press("3")
            await page.shows("call 1 of 1", "float32")
