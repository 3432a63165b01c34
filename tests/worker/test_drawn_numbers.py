"""Numbers that an installed module draws while it is imported are no chance of the target's; those of its own are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exportdoctor.worker.read_log import ReadLog

DRAWS = "import random\nNUMBER = random.random()\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("installed", "own", "counts"),
    [
        ({"drawing": DRAWS}, "import drawing", False),
        ({"calm": "import drawing", "drawing": DRAWS}, "import calm", False),
        ({"drawing": f"{DRAWS}random.seed()\nrandom.random()"}, "import drawing", False),
        ({"drawing": DRAWS}, "import random, drawing\nrandom.random()", True),
        ({"drawing": DRAWS}, "import random\nrandom.random()\nimport drawing", True),
        ({"drawing": f"{DRAWS}def draw(): return random.random()"}, "import drawing\ndrawing.draw()", True),
        ({"calm": "import its_plugin"}, "import calm", True),
        ({"failing": f"{DRAWS}raise ValueError"}, "try: import failing\nexcept ValueError: pass", False),
    ],
)
def test_what_an_installed_module_draws_while_it_is_imported_is_left_out(
    installed: dict[str, str], own: str, *, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for name, code in installed.items():
        (folder / f"{name}.py").write_text(code + "\n")
    (tmp_path / "its_plugin.py").write_text(DRAWS)
    (tmp_path / "own.py").write_text(own + "\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(tmp_path)
    log = ReadLog()
    log.forget()
    with log.watch():
        __import__("own")
    log.collect()
    for name in ("own", "its_plugin", *installed):
        sys.modules.pop(name, None)
    assert ("chance" in log.reasons()) is counts
