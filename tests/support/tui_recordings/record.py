"""Turns a run's events.jsonl into a recording for the tests: no path of the machine that made it, short torch stacks.

cd tests/support; python tui_recordings/record.py ~/.local/share/exportdoctor/runs/RUN tui_recordings/NAME
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from exportdoctor.core.codec import decode
from exportdoctor.core.run.events import AnyEvent

_TORCH_FRAMES = 16  # of a stack that are kept; a user's frame is always kept
_FILLED_IN = frozenset({"value", "marks", "dynamic", "axes", "same_object", "calls_left_out"})
_REPEATED = frozenset({"part_captured", "module_judged", "finding_made", "target_opened", "stepped"})
_AGAIN = re.compile(r'"(?:at|seconds)": [\d.]+|"(?:question|kin)": "\w+"')  # true of one process
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
            if event["finding"]["repro"] is not None:
                event["finding"]["repro"]["path"] += ".txt"
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


def told(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Without what a resumed run says over again before it goes on."""
    seen: set[str] = set()
    for event in events:
        words = _AGAIN.sub("", json.dumps(event))
        if event["event"] in _REPEATED and words in seen:
            continue
        seen.add(words)
        yield event


def slim(value: Any) -> Any:
    """Without what a reader fills in by itself: empty lists and nulls of captured inputs."""
    if isinstance(value, list):
        return [slim(item) for item in value]
    if isinstance(value, dict):
        return {key: slim(item) for key, item in value.items() if item not in (None, [], 0) or key not in _FILLED_IN}
    return value


def main(run: Path, target: Path) -> None:
    """Write the recording. Apart from paths and torch's frames, it reads as the run itself does."""
    target.mkdir(parents=True, exist_ok=True)
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    texts: list[str] = []
    for event in told(trimmed(json.loads(line)) for line in lines):
        full = json.dumps(event, separators=(",", ":"))
        kept = slim(event) if event["event"] == "part_captured" else event
        text = json.dumps(kept, separators=(",", ":"))
        assert decode(text.encode(), AnyEvent) == decode(full.encode(), AnyEvent)
        texts.append(f"{sanitised(text)}\n")
    (target / "events.jsonl").write_text("".join(texts), encoding="utf-8")
    for script in run.glob("repros/*.py"):
        (target / "repros").mkdir(exist_ok=True)
        # as text, so that checkers of this repository's own code do not read it
        copy = target / "repros" / f"{script.name}.txt"
        copy.write_text(sanitised(script.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
