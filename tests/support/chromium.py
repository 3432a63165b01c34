"""A real Chromium without a window, spoken to by its debugger's protocol."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def open_browser(folder: Path) -> Iterator[str]:
    """The address of a headless Chromium's debugger; it keeps its files in `folder` and reaches no other host."""
    assert CHROMIUM is not None
    process = subprocess.Popen(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={folder}",
         "--window-size=1400,900", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
         "--host-resolver-rules=MAP * 127.0.0.1:9, EXCLUDE 127.0.0.1", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    port_file = folder / "DevToolsActivePort"
    try:
        wait_until(port_file.exists)
        yield f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(10)


def wait_until(ready: Callable[[], bool], seconds: float = 60) -> None:
    """Return as soon as `ready` says so; TimeoutError after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError


class BrowserTab:
    """One tab. `events` are the debugger's messages so far that answered no command."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command."""
        number = next(self._numbers)
        await self._connection.send_json({"id": number, "method": method, "params": parameters})
        while True:
            answer: dict[str, Any] = json.loads((await self._connection.receive()).data)
            if answer.get("id") == number:
                return dict(answer.get("result", {}))
            self.events.append(answer)

    async def value(self, expression: str) -> Any:
        """What a piece of JavaScript gives, awaited; AssertionError where it raises."""
        answer = await self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        """A key, as a user gives it."""
        await self.ask("Input.dispatchKeyEvent", type="keyDown", text=key, key=key)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)


@asynccontextmanager
async def open_tab(browser: str) -> AsyncIterator[BrowserTab]:
    """The browser's first tab."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        pages = await (await session.get(f"{browser}/json")).json()
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        async with session.ws_connect(address, max_msg_size=0) as connection:
            tab = BrowserTab(connection)
            await tab.ask("Page.enable")
            yield tab
