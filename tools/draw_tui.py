"""Draws the pictures of docs/tui.md and writes its key map, from a recorded scan of the full Qwen2.5-VL-3B.

PYTHONPATH=src:tui:tests/support python tools/draw_tui.py
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from exportdoctor.store.lock import FolderLock
from exportdoctor_tui.app import DoctorApp
from exportdoctor_tui.keymap import TABLES
from exportdoctor_tui.screens.run import RunScreen
from exportdoctor_tui.themes import LIGHT
from tui_recorded import HERE, NOW, recorded, settled

DOCS = Path(__file__).parents[1] / "docs"
QWEN = HERE / "qwen"
Picture = tuple[Path | None, tuple[int, int], tuple[str, ...], str]
"""Run, size, keys to press, theme."""

FULL = ("right_square_bracket",) * 3
PICTURES: dict[str, Picture] = {
    "story": (QWEN, (150, 38), FULL, ""),
    "stack": (QWEN, (150, 38), ("n", "2", "enter"), ""),
    "graph": (QWEN, (150, 30), ("n", "4"), ""),
    "cure": (QWEN, (150, 48), (*FULL, "5"), ""),
    "repro": (QWEN, (150, 44), ("n", "6"), ""),
    "do": (QWEN, (110, 30), (*FULL, "a"), ""),
    "unfolded": (QWEN, (150, 44), ("n", "up", "up", "up", "u", "3"), ""),
    "filter": (QWEN, (120, 32), ("slash", *"mlp"), ""),
    "inputs": (QWEN, (120, 32), (*FULL, "3"), ""),
    "crash": (HERE / "crash", (80, 24), ("n", "n"), ""),
    "light": (QWEN, (120, 32), ("n",), LIGHT.name),
    "runs": (None, (110, 16), (), ""),
    "help": (QWEN, (100, 40), ("question_mark",), ""),
}


async def draw(name: str, picture: Picture, root: Path) -> None:
    """One picture."""
    run, size, keys, theme = picture
    app = DoctorApp(run, clock=lambda: NOW, root=root)
    app.animation_level = "none"
    if theme:
        app.theme = theme
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        if name == "live":
            screen = app.screen
            assert isinstance(screen, RunScreen)
            app.clock = lambda: max(attempt.since for attempt in screen.view.attempts) + 3
            screen.draw()
        for key in keys:
            await pilot.press(key)
        await pilot.pause(0.3)
        (DOCS / "tui" / f"{name}.svg").write_text(app.export_screenshot(title="exportdoctor"), encoding="utf-8")


def key_map() -> str:
    """The tables of keys, as Markdown."""
    blocks = []
    for table, keys in TABLES.items():
        rows = "\n".join(f"| `{key.shown}` | {key.what} |" for key in keys)
        blocks.append(f"### {table}\n\n| key | what it does |\n| --- | --- |\n{rows}")
    return "\n\n".join(blocks)


def with_key_map(page: str) -> str:
    """`page` with the tables between its marks."""
    before, mark, rest = page.partition("<!-- keys -->\n")
    _, end, after = rest.partition("\n<!-- /keys -->")
    return before + mark + key_map() + end + after


def main() -> None:
    """All of them."""
    page = DOCS / "tui.md"
    page.write_text(with_key_map(page.read_text(encoding="utf-8")), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "runs")
        for name in ("qwen", "crash", "timeout"):
            shutil.copytree(HERE / name, root / name)
        for name, picture in PICTURES.items():
            asyncio.run(draw(name, picture, root))
        going = recorded("qwen", Path(folder, "live"), share=0.95)
        lock = FolderLock(going)
        asyncio.run(draw("live", (going, (120, 30), (), ""), root))
        lock.release()


if __name__ == "__main__":
    main()
