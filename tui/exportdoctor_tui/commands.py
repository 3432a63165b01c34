"""Command lines of exportdoctor as the terminal interface starts them: the only place that spells its options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from exportdoctor.core.event import RunStarted, ScanOptions
from exportdoctor.core.target import BuildOptions

if TYPE_CHECKING:
    from pathlib import Path

Command = tuple[str, ...]
_OURS: Command = (sys.executable, "-m", "exportdoctor")


def resume(run: Path) -> Command:
    """Go on with a run that was cut off."""
    return (*_OURS, "scan", "--resume", str(run), "--quiet")


def scan_again(started: RunStarted, *, parts: tuple[str, ...], out: Path) -> Command:
    """The scan that made a run once more, of some of its parts, asking everything anew."""
    target = started.target
    chosen = tuple(word for part in parts for word in ("--part", part))
    return (*_OURS, "scan", target.ref, *chosen, *_built(target.options), *_asked(started.options),
            "--no-cache", "--quiet", "--out", str(out))  # fmt: skip


def watch(run: str) -> Command:
    """This interface, on a run."""
    return (*_OURS, "tui", *((run,) if run else ()))


def _built(options: BuildOptions) -> Command:
    size = options.image_size
    return (
        *_unless("--device", options.device, BuildOptions().device),
        *_unless("--dtype", options.dtype, BuildOptions().dtype),
        *_unless("--weights", options.weights, BuildOptions().weights),
        *(("--image-size", f"{size[0]}x{size[1]}") if size else ()),
        *(("--static",) if options.static else ()),
    )


def _asked(options: ScanOptions) -> Command:
    default = ScanOptions()
    return (
        *_unless("--exporter", options.exporter, default.exporter),
        *_unless("--to", options.to, default.to),
        *_unless("--timeout", options.timeout, default.timeout),
        *_unless("--memory", options.memory_mb, default.memory_mb),
        "--jobs",
        str(options.jobs),
        *(("--exhaustive",) if options.exhaustive else ()),
        *(() if options.cure else ("--no-cure",)),
    )


def _unless(name: str, value: object, default: object) -> Command:
    return () if value == default else (name, f"{value:g}" if isinstance(value, float) else str(value))
