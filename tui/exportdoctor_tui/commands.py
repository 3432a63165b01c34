"""Command lines of exportdoctor as the terminal interface starts them: the only place that spells its options."""

from __future__ import annotations

import shlex
import sys
from functools import cache
from typing import TYPE_CHECKING

from exportdoctor.core.events import RunStarted
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.core.target import BuildOptions

if TYPE_CHECKING:
    from pathlib import Path

Command = tuple[str, ...]
_OURS: Command = (sys.executable, "-m", "exportdoctor")


def resume(run: Path) -> Command:
    """Go on with a run that was cut off."""
    return (*_OURS, "scan", "--resume", str(run), "--quiet")


def scan_again(started: RunStarted, *, parts: tuple[str, ...], out: Path, module: str = "") -> Command:
    """The scan that made a run once more, of some of its parts or of one submodule, asking everything anew."""
    target = started.target
    chosen = tuple(word for part in parts for word in ("--part", part))
    chosen += ("--module", module) if module else ()
    return (*_OURS, "scan", target.ref, *chosen, *_built(target.options), *_asked(started.options),
            "--no-cache", "--quiet", "--out", str(out))  # fmt: skip


def make_repro(run: Path, finding: str, *, bundle: Path | None = None) -> Command:
    """The minimal script of a finding, kept with its run; as an issue in a folder of its own, too."""
    kept = ("--bundle", str(bundle)) if bundle else ("-o", str(run / "repros" / f"{finding}.py"))
    return (*_OURS, "repro", str(run), finding, *kept)


def try_shims(started: RunStarted, shims: tuple[str, ...], *, part: str, run: Path) -> Command:
    """Some shims on a part, asked now; noted in the run where the verb can."""
    options = started.target.options
    size = options.image_size
    return (*_OURS, "shims", "try", "+".join(shims), started.target.ref, "--part", part,
            *_unless("--exporter", started.options.exporter, ScanOptions().exporter),
            *_unless("--weights", options.weights, BuildOptions().weights),
            *(("--image-size", f"{size[0]}x{size[1]}") if size else ()),
            *(("--static",) if options.static else ()),
            *_files(started.options), *(("--run", str(run)) if _takes_run() else ()))  # fmt: skip


def show_shim(shim: str, options: ScanOptions) -> Command:
    """What a shim changes, as a diff."""
    return (*_OURS, "shims", "show", shim, *_files(options))


def fitting_shims(options: ScanOptions) -> Command:
    """Every shim that fits the installed versions, as JSON."""
    return (*_OURS, "shims", "list", "--fitting", "--json", *_files(options))


def export_part(started: RunStarted, *, part: str, to: str, out: Path) -> Command:
    """A part as a file, with what its scan prescribes."""
    options = started.target.options
    size = options.image_size
    return (*_OURS, "export", started.target.ref, "--part", part, "--to", to, "-o", str(out),
            *_unless("--device", options.device, BuildOptions().device),
            *_unless("--dtype", options.dtype, BuildOptions().dtype),
            *_unless("--weights", options.weights, BuildOptions().weights),
            *(("--image-size", f"{size[0]}x{size[1]}") if size else ()),
            *(("--static",) if options.static else ()))  # fmt: skip


def compare(before: Path, after: Path) -> Command:
    """What changed from one run to another."""
    return (*_OURS, "compare", str(before), str(after))


def shown(command: Command) -> str:
    """A command as one types it."""
    return shlex.join(("exportdoctor", *command[len(_OURS) :]))


def _files(options: ScanOptions) -> Command:
    return tuple(word for file in options.shim_files for word in ("--shims", file))


@cache
def _takes_run() -> bool:
    """Whether `shims try` notes what it finds in a run. Importing the verb takes a fifth of a second."""
    from exportdoctor.cli.shims import shims

    tried = shims.commands.get("try")
    return tried is not None and any("--run" in option.opts for option in tried.params)


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
        *_files(options),
        *(word for name in options.allow for word in ("--allow", name)),
    )


def _unless(name: str, value: object, default: object) -> Command:
    return () if value == default else (name, f"{value:g}" if isinstance(value, float) else str(value))
