"""Turns a run's events.jsonl into a recording for the tests: no path of the machine that made it, short torch stacks.

python tests/tui_recordings/record.py ~/.local/share/exportdoctor/runs/RUN tests/tui_recordings/NAME
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_TORCH_FRAMES = 16  # of a stack that are kept; a user's frame is always kept
_PATH = re.compile(r"(?<![\w.<])/[\w.+-]+(?:/[\w.+-]+)+")
_NEUTRAL = (
    ("/site-packages/", "/home/user/venv/lib/python3.11/site-packages/"),
    ("/logs/", "/home/user/runs/logs/"),
    ("/fixtures/", "/home/user/project/fixtures/"),
    ("/runs/", "/home/user/runs/"),
)


def sanitised(text: str) -> str:
    """`text` with neutral paths: what follows the part that a reader knows is kept."""
    return _PATH.sub(lambda found: _neutral(found[0]), text)


def _neutral(path: str) -> str:
    for known, place in _NEUTRAL:
        if known in path:
            return place + path.rpartition(known)[2]
    standard = re.search(r"/lib/(python3\.\d+/.*)", path)
    return f"/usr/lib/{standard[1]}" if standard else path


def trimmed(event: dict[str, Any]) -> dict[str, Any]:
    """The event without what no screen shows."""
    match event["event"]:
        case "target_opened":
            event["opened"]["sources"] = {}
        case "part_captured":
            event["captured"]["sources"] = {}
        case "run_started":
            event["command"] = ["exportdoctor", *_arguments(event["command"])]
        case "probe_finished" if event["outcome"]["failure"]:
            failure = event["outcome"]["failure"]
            failure["frames"] = _short(failure["frames"])
        case "finding_made":
            event["finding"]["stack"] = _short(event["finding"]["stack"])
    return event


def _arguments(command: list[str]) -> list[str]:
    """The command line without what is true of this machine only."""
    words = command[1:]
    while "--out" in words:
        number = words.index("--out")
        del words[number : number + 2]
    return words


def _short(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    spare = sum(1 for frame in frames if not frame["user"]) - _TORCH_FRAMES
    kept = []
    for frame in frames:
        if not frame["user"] and spare > 0:
            spare -= 1
            continue
        kept.append(frame)
    return kept


def main(run: Path, target: Path) -> None:
    """Write the recording."""
    target.mkdir(parents=True, exist_ok=True)
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    written = (json.dumps(trimmed(json.loads(line)), separators=(",", ":")) for line in lines)
    (target / "events.jsonl").write_text("".join(f"{sanitised(line)}\n" for line in written), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
