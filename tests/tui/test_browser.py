"""The same interface in a real browser: textual-serve, Chromium, and the browser's own terminal read back."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from chromium import CHROMIUM, BrowserTab, open_browser, open_tab
from exportdoctor.cli.main import run as run_command
from tui_recorded import HERE, REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# the page keeps its terminal in a local variable: let an assignment to any `terminal` attribute be seen
HOOK = """Object.defineProperty(Object.prototype, 'terminal', {configurable: true, set(value) {
    window.seen = value;
    Object.defineProperty(this, 'terminal', {value, writable: true, configurable: true, enumerable: true});
}});"""
READ = """(() => { if (!window.seen) return ''; const b = window.seen.buffer.active;
    return Array.from({length: b.length}, (_, n) => b.getLine(n).translateToString(true)).join('\\n'); })()"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "src"), str(REPOSITORY / "tui")))}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the interface on a recorded run, with its token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = (
        "from pathlib import Path; from exportdoctor_tui.app import main; "
        f"main(Path({str(HERE / 'crash')!r}), web=True, port={port})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT, text=True
    )
    assert process.stdout is not None
    try:
        yield next(word for word in process.stdout.readline().split() if word.startswith("http"))
    finally:
        process.terminate()
        process.wait(10)


async def shows(tab: BrowserTab, *wanted: str) -> None:
    """Wait for all of `wanted` in the browser's terminal."""
    text = ""
    for _ in range(300):
        text = str(await tab.value(READ))
        if all(each in text for each in wanted):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not in the browser: {wanted}\n{text}")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
async def test_a_browser_shows_the_tree_and_opens_a_finding(server: str, tmp_path: Path) -> None:
    with open_browser(tmp_path) as browser:
        async with open_tab(browser) as tab:
            await tab.ask("Network.enable")
            await tab.ask("Page.addScriptToEvaluateOnNewDocument", source=HOOK)
            await tab.ask("Page.navigate", url=server)
            await shows(tab, "fixtures/segfault.py:build", "☠ (root)", "kernel", "✓ head")
            assert await tab.value("document.title") == "crash · exportdoctor"
            await tab.press("n")  # without a click before
            await tab.press("n")
            await shows(tab, "ctypes.string_at(0)", "SIGSEGV")
            await tab.press("3")
            await shows(tab, "call 1 of 1", "float32")
            asked = [event["params"] for event in tab.events if event["method"] == "Network.requestWillBeSent"]
            hosts = {
                each["request"]["url"].split("/")[2] for each in asked if each["request"]["url"].startswith("http")
            }
            assert hosts == {server.split("/")[2]}


async def test_nobody_else_gets_an_answer(server: str) -> None:
    """Another origin, another host, no token or a wrong one."""
    import aiohttp

    base, _, token = server.partition("/?token=")
    other = {"Origin": "http://evil.example"}
    async with aiohttp.ClientSession() as session:
        for address, headers in (
            (f"{base}/", {}),
            (f"{base}/?token=wrong", {}),
            (server, other),
            (server, {"Origin": "null"}),
            (server, {"Host": "evil.example"}),
            (f"{base}/static/js/textual.js", other),
        ):
            async with session.get(address, headers=headers) as answer:
                assert answer.status == 403, address
        for path, headers in ((f"/ws/{token}", other), ("/ws", {}), ("/ws/wrong", {}), (f"/ws/{token}", {"Host": "a"})):
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(f"{base}{path}?width=80&height=24", headers=headers)
        async with session.get(server) as answer:
            assert answer.status == 200
            assert "http://" not in (await answer.text()).replace(base, "")


def test_a_port_in_use_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run_command(["tui", str(HERE / "crash"), "--web", "--port", str(port)]) == 2
    assert f"port {port} cannot be used: Address already in use" in capsys.readouterr().err


@pytest.mark.slow
def test_without_a_terminal_the_interface_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "exportdoctor", "tui", str(HERE / "crash")],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
    assert "\x1b" not in done.stderr
