"""The commands of exportdoctor that can be started from a run's screen.

Each is a process of its own, so that what it finds reaches the screen as events of a run.
"""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from exportdoctor.core.errors import ExitCode
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.core.scan_options import ScanOptions, option_words
from exportdoctor.store.places import new_run_id, runs_root, slug
from exportdoctor_tui.state.selection import ladder_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.core.failure.finding import Finding
    from exportdoctor_tui.state.run_view import RunView
    from exportdoctor_tui.state.selection import Selection

Argv = tuple[str, ...]
EXPORTDOCTOR: Argv = (sys.executable, "-m", "exportdoctor")
PICKED = "{picked}"
"""Stands in a command's `argv` for what the user picks; of several picks, their names joined by +."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A process to start once what it `needs` is picked: some shims, one, another run, or nothing.

    `opens`: the folder of the run that it creates, None = it adds to this one. `shows`: its output is its result.
    `done`: what there is once it has ended well.
    """

    title: str
    argv: Argv
    opens: Path | None = None
    shows: bool = False
    needs: Literal["", "shims", "shim", "run"] = ""
    done: str = ""

    def argv_with(self, picked: tuple[str, ...]) -> Argv:
        """The arguments with what was picked filled in."""
        return tuple("+".join(picked) if word == PICKED else word for word in self.argv)


def available_commands(view: RunView, selection: Selection | None) -> tuple[CommandLine, ...]:
    """What can be started now, in the order of the menu."""
    run_again = () if view.target.in_memory else (_resume, _explain, _repro, _shims, _export, _numbers, _rescan)
    groups = (*run_again, _compare, _page)  # no process of its own could build a module that was in memory
    python = _python(view)
    return tuple(
        dataclass_replace(command, argv=(*command.argv, *python)) if _runs_torch(command) else command
        for group in groups
        for command in group(view, selection)
    )


def fitting_shims(options: ScanOptions, python: str = "") -> Argv:
    """Prints every shim that fits the versions installed for the interpreter `python`, as JSON."""
    words = ("--python", python) if python else ()
    return (*EXPORTDOCTOR, "shims", "list", "--fitting", "--json", *_shim_files(options), *words)


def _python(view: RunView) -> Argv:
    """The interpreter under which the run was made, if that is not our own."""
    return ("--python", view.started.python) if view.started is not None and view.started.python else ()


def _runs_torch(command: CommandLine) -> bool:
    return command.argv[len(EXPORTDOCTOR)] not in ("compare", "report")


def _resume(view: RunView, _selection: Selection | None) -> Iterator[CommandLine]:
    refused = view.finished is not None and view.finished.exit_code in (ExitCode.USAGE, ExitCode.TARGET)
    if view.status in ("cut off", "error") and view.started is not None and not refused:
        yield CommandLine(title=f"Resume {view.run}", argv=(*EXPORTDOCTOR, "scan", "--resume", view.path, "--quiet"))


def _explain(view: RunView, selection: Selection | None) -> Iterator[CommandLine]:
    finding = selection.finding if selection else None
    if finding is not None and finding.id and finding.source and view.status != "running":
        yield CommandLine(
            title=f"Try rewrites of the line of {finding.id}",
            argv=(*EXPORTDOCTOR, "explain", view.path, finding.id),
            done="8 shows what came of them",
        )


def _repro(view: RunView, selection: Selection | None) -> Iterator[CommandLine]:
    finding = selection.finding if selection else None
    if finding is None or not finding.id or view.status == "running":
        return
    run, repro = Path(view.path), (*EXPORTDOCTOR, "repro", view.path, finding.id)
    again = "Make and verify the repro of" if finding.repro is None else "Verify and continue reducing the repro of"
    yield CommandLine(
        title=f"{again} {finding.id}",
        argv=(*repro, "-o", str(run / "repros" / f"{finding.id}.py")),
        done="6 shows it, y copies it",
    )
    bundle = bundle_folder(view, finding)
    yield CommandLine(
        title=f"Write {finding.id} as an issue: script, text, log",
        argv=(*repro, "--bundle", str(bundle)),
        done=f"y copies its folder: {bundle}",
    )


def bundle_folder(view: RunView, finding: Finding) -> Path:
    """Where a finding is written as an issue."""
    return Path(view.path) / "bundles" / finding.id


def _shims(view: RunView, selection: Selection | None) -> Iterator[CommandLine]:
    started = view.started
    if selection is None or started is None:
        return
    part, files = selection.part.record.name, _shim_files(started.options)
    yield CommandLine(
        title=f"Try shims on {part} …",
        argv=(*EXPORTDOCTOR, "shims", "try", PICKED, started.target.ref, "--part", part,
              *_unless_default("--exporter", started.options.exporter, ScanOptions().exporter),
              *_build_options(started.target.options, "weights"), *files, "--run", view.path),
        shows=True,
        needs="shims",
    )  # fmt: skip
    yield CommandLine(
        title="Show what a shim changes …",
        argv=(*EXPORTDOCTOR, "shims", "show", PICKED, *files),
        shows=True,
        needs="shim",
    )


def _export(view: RunView, selection: Selection | None) -> Iterator[CommandLine]:
    started = view.started
    if selection is None or started is None:
        return
    part = selection.part.record
    if part.verdict == "fails" or not part.complete:
        return
    for to in ("pt2", "onnx"):
        out = _free_name(f"{slug(view.target.ref)}-{part.name}", f".{to}")
        yield CommandLine(
            title=f"Export {part.name} to ./{out}",
            argv=(*EXPORTDOCTOR, "export", started.target.ref, "--part", part.name, "--to", to, "-o", out,
                  *_build_options(started.target.options)),
            shows=True,
        )  # fmt: skip


def _numbers(view: RunView, selection: Selection | None) -> Iterator[CommandLine]:
    """The numbers of a part, stage by stage, where its weights have values."""
    started = view.started
    if selection is None or started is None or view.target.weights == "fake":
        return
    part = selection.part.record
    if part.complete and (part.verdict != "fails" or part.numbers is not None):
        yield CommandLine(
            title=f"Compare the numbers of {part.name}, stage by stage",
            argv=(*EXPORTDOCTOR, "numbers", started.target.ref, "--part", part.name, "--format", "json",
                  "-o", str(ladder_file(view, part.name)), *_build_options(started.target.options)),
            done="9 shows them",
        )  # fmt: skip


def _rescan(view: RunView, selection: Selection | None) -> Iterator[CommandLine]:
    """The scan that made the run again, of one submodule, of one part or of all its parts, without cached answers."""
    started = view.started
    if started is None:
        return
    out = runs_root() / new_run_id(view.target.ref)
    asked = replace(started.options, modules=(), use_cache=False)
    options = (*_build_options(started.target.options), *option_words(asked), "--quiet", "--out", str(out))
    chosen: list[tuple[str, Argv]] = []
    if selection is not None:
        part, module = selection.part.record.name, selection.row.fqns[0]
        if module:
            chosen.append((module, ("--part", part, "--module", module)))
        if len(view.parts) > 1:
            chosen.append((part, ("--part", part)))
    chosen.append(("everything", tuple(word for part in started.target.parts for word in ("--part", part))))
    for name, words in chosen:
        yield CommandLine(
            title=f"Rescan {name}, as a new run",
            done="this run",
            argv=(*EXPORTDOCTOR, "scan", started.target.ref, *words, *options),
            opens=out,
        )


def _compare(view: RunView, _selection: Selection | None) -> Iterator[CommandLine]:
    if view.started is not None:
        yield CommandLine(
            title="Compare with another run …",
            argv=(*EXPORTDOCTOR, "compare", PICKED, view.path),
            shows=True,
            needs="run",
        )


def _page(view: RunView, _selection: Selection | None) -> Iterator[CommandLine]:
    """The page to send."""
    if view.started is not None and view.status != "running":
        out = _free_name(slug(view.target.ref), ".html")
        yield CommandLine(
            title=f"Write this run as a page to send: ./{out}",
            argv=(*EXPORTDOCTOR, "report", view.path, "--format", "html", "-o", out),
            done=str(Path(out).absolute()),
        )
        text = _free_name(slug(view.target.ref), ".md")
        yield CommandLine(
            title=f"Write this run as Markdown: ./{text}",
            argv=(*EXPORTDOCTOR, "report", view.path, "--format", "md", "-o", text),
            done=str(Path(text).absolute()),
        )


def _free_name(stem: str, suffix: str) -> str:
    """A file of this name in the current folder, with a number if there is one already: nothing is written over."""
    numbers = itertools.chain(("",), (f"-{number}" for number in itertools.count(2)))
    return next(name for one in numbers if not os.path.lexists(name := f"{stem}{one}{suffix}"))


def _build_options(options: BuildOptions, *only: str) -> Argv:
    """How the target was built; of device, dtype and weights `only` the named ones, or all."""
    size = options.image_size
    named = only or ("device", "dtype", "weights")
    return (
        *(
            word
            for name in named
            for word in _unless_default(f"--{name}", getattr(options, name), getattr(BuildOptions(), name))
        ),
        *(("--image-size", f"{size[0]}x{size[1]}") if size else ()),
        *(("--inputs", options.inputs) if options.inputs else ()),
        *(("--static",) if options.static else ()),
    )


def _shim_files(options: ScanOptions) -> Argv:
    return tuple(word for file in options.shim_files for word in ("--shims", file))


def _unless_default(name: str, value: object, default: object) -> Argv:
    return () if value == default else (name, f"{value:g}" if isinstance(value, float) else str(value))
