"""The tools of `exportdoctor mcp`: each runs the command line in a process of its own, or reads a run.

Whatever a tool writes is below the folder that was named at start: runs and caches (EXPORTDOCTOR_HOME), temporary files
(TMPDIR) and what the client names. A name counts by where it ends up once links are followed; a link that leaves the
folder, where a tool would write beside it, is refused.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from exportdoctor.cli.verbs import VERBS
from exportdoctor.core.errors import ExitCode, ExportdoctorError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.identity import code_of
from exportdoctor.core.limits import INTERRUPTED
from exportdoctor.core.run.events import RunStarted
from exportdoctor.core.run.report import PartRecord, Report
from exportdoctor.report import wording
from exportdoctor.report.brief import brief
from exportdoctor.store.places import new_run_id, runs_root
from exportdoctor.store.runs import find_run, read_run

_PLAIN = re.compile(r"[\w.:+ -]+")
_COMMAND = re.compile(rf"(?<![\w./=])exportdoctor(?= ({'|'.join(verb.name for verb in VERBS)})\b)")
"""A command line of ours within a text."""
_LONGEST_LINE = 2**26  # bytes of a line of stderr


class NamedFolder:
    """The folder into which tools may write, and in it the one of runs and caches."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve(strict=True)
        self.state = self.root / ".exportdoctor"

    def place(self, name: str) -> Path:
        """Where a file or folder of that name lies. Raises ToolError outside of the folder."""
        if not name or "\0" in name:
            raise ToolError("A name of a file is missing")
        path = (self.root / name).resolve()
        if path == self.root or not self.holds(path):
            raise ToolError(f"{name!r} is not inside {self.root}, the only folder into which tools write")
        return path

    def holds(self, path: Path) -> bool:
        """Whether `path` is inside, its links followed."""
        return path.resolve().is_relative_to(self.root)

    def refuse_links(self, below: Path, *, deep: bool = True) -> None:
        """Raises ToolError where something in the folder `below` is a link that leaves this one."""
        for path in _entries(below, deep=deep):
            if path.is_symlink() and not self.holds(path):
                raise ToolError(f"{path} is a link that leaves {self.root}: take it away")


def _entries(folder: Path, *, deep: bool) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in (*folders, *files))
        if not deep:
            return


class ToolSession:
    """The tools, and what they share: the folder, and the command line in a process of its own."""

    def __init__(self, folder: NamedFolder) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Check that nothing leads out of what is written to without being named."""
        state = self.folder.state
        if not self.folder.holds(state):
            raise ToolError(f"{state} is a link that leaves {self.folder.root}: take it away")
        (state / "tmp").mkdir(parents=True, exist_ok=True)
        self.folder.refuse_links(state)

    def run_folder(self, run: str | None) -> Path:
        """The folder of a run. Raises ToolError where there is none inside."""
        self.prepare()
        if run is not None and not _PLAIN.fullmatch(run):
            raise ToolError(f"{run!r} is no run's id")
        try:
            path = find_run(run)
        except ExportdoctorError as error:
            raise ToolError(error.line()) from None
        if not self.folder.holds(path):
            raise ToolError(f"The run {path.name} is not inside {self.folder.root}")
        return path.resolve()

    def report(self, run: str | None) -> tuple[Path, Report]:
        """A run's folder and its report."""
        path = self.run_folder(run)
        try:
            return path, read_run(path).state.report()
        except ExportdoctorError as error:
            raise ToolError(error.line()) from None

    async def call(self, context: Context, *words: str) -> tuple[int, str, list[str]]:
        """Run the command line; returns its exit code, its output and the lines of its stderr."""
        self.prepare()
        if any("\0" in word for word in words):
            raise ToolError("A name holds a null character")
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "exportdoctor", *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                limit=_LONGEST_LINE,
            )
        except (OSError, UnicodeEncodeError) as error:
            raise ToolError(
                f"The command cannot be started: {error}. Its longest word: {max(words, key=len)[:60]!r}"
            ) from None
        try:
            assert process.stdout is not None
            output, lines = await asyncio.gather(process.stdout.read(), _follow(process, context))
            code = await process.wait()
        finally:
            await _end(process)
        if code not in (ExitCode.EXPORTS, ExitCode.FINDINGS):
            told = [line for line in lines if line.startswith("exportdoctor: ")] or lines
            raise ToolError("\n".join(told[-1:]) or f"the command ended with exit code {code}")
        return code, output.decode(errors="replace"), lines

    def _named_finding(self, name: str, run: str | None) -> tuple[Finding, Report]:
        """A finding and its run's report. Raises ToolError where there is none of that name."""
        report = self.report(run)[1]
        found = next((one for one in report.findings if one.id == name.upper()), None)
        if found is None:
            known = ", ".join(one.id for one in report.findings) or "none"
            end = f". {note}" if (note := wording.cut_off_note(report)) else ""
            raise ToolError(f"The run {report.run} has no finding {name!r}; its findings: {known}{end}")
        return found, report

    # --- the tools; `describe_finding` is called `finding`

    async def scan(
        self,
        context: Context,
        target: str,
        parts: list[str] | None = None,
        weights: str = "fake",
        static: bool = False,
        exporter: Literal["export", "export-strict", "torchscript"] = "export",
        to: Literal["export", "decomposed", "onnx", "ort"] = "export",
        cure: bool = True,
    ) -> dict[str, Any]:
        """Find which submodules of a model fail to export, why, and which shims cure it.

        target: a preset (Qwen2.5-VL-3B-tiny), a folder with config.json, a hub id, or FILE.py:FACTORY, a callable that
        returns (module, args[, kwargs[, dynamic_shapes]]). weights: fake, random or a folder with safetensors files.
        """
        self.prepare()
        out = runs_root() / new_run_id(target)
        flags = [*(("--static",) if static else ()), *(() if cure else ("--no-cure",))]
        words = ["scan", f"--out={out}", f"--weights={weights}", f"--exporter={exporter}", f"--to={to}", *flags]
        await self.call(context, *words, *(f"--part={part}" for part in parts or ()), "--", target)
        found = brief(self.report(out.name)[1])
        return _as_data(msgspec.structs.replace(found, next=tuple(map(self._with_home, found.next))))

    def _with_home(self, text: str) -> str:
        """The text with its commands as a shell has to run them, which else takes the user's own runs."""
        home = f"EXPORTDOCTOR_HOME={shlex.quote(str(self.folder.state))} "
        return _COMMAND.sub(lambda found: home + found[0], text)

    def describe_finding(self, name: str, run: str | None = None) -> dict[str, Any]:
        """What is known of a failure: its story, the line, the frames of the model's own code, the shims tried."""
        found, report = self._named_finding(name, run)
        code = code_of(found)
        return {
            "run": report.run,
            "title": wording.title(found, report),
            "kind": found.kind,
            "file": code.file or None,
            "line": code.line or None,
            "source": code.source or None,
            "story": wording.story(found, report.run),
            "frames": [
                {"file": frame.file, "line": frame.line, "function": frame.function, "source": frame.source}
                for frame in found.stack
                if frame.user
            ],
            "log": found.log,
        }

    async def explain(self, context: Context, name: str, run: str | None = None, try_rewrites: bool = True) -> str:
        """Why a finding (F1) or a kind of failure (data_dependent_guard) fails, and rewrites that work.

        Rewrites that fit the finding's own line are tried: exported, and compared with eager. No source is changed.
        """
        if not re.fullmatch(r"[\w-]+", name):
            raise ToolError(f"{name!r} is neither a finding nor a kind of failure")
        where = [str(self.run_folder(run))] if re.fullmatch(r"[fF]\d+", name) else []
        flags = () if try_rewrites else ("--no-try",)
        text = (await self.call(context, "explain", "--format=md", *flags, "--", *where, name))[1]
        return self._with_home(text) if where else text

    async def repro(
        self, context: Context, name: str, run: str | None = None, seconds: float = 60, bundle: str = ""
    ) -> dict[str, Any]:
        """A minimal script that fails in the same way as a finding; `bundle`: also a folder for an upstream issue."""
        path = self.run_folder(run)
        self._named_finding(name, run)
        words = ["repro", f"--seconds={seconds}"]
        if bundle:
            place = self.folder.place(bundle)
            self.folder.refuse_links(place)
            words.append(f"--bundle={place}")
        code, _, lines = await self.call(context, *words, "--", str(path), name)
        script = path / "repros" / f"{name.upper()}.py"
        return {
            "run": path.name,
            "verified": code == ExitCode.EXPORTS,
            "script": script.read_text(encoding="utf-8") if script.is_file() else "",
            "notes": [line.removeprefix("exportdoctor: ") for line in lines if line.startswith("exportdoctor: ")],
        }

    def cure(self, part: str | None = None, run: str | None = None) -> dict[str, Any]:
        """The shims with which a part exports, how sound they are, their proof, and Python code that applies them."""
        path, report = self.report(run)
        started = read_run(path).events[0]
        searched = not isinstance(started, RunStarted) or started.options.cure
        chosen = [one for one in report.parts if part in (None, one.name)]
        if not report.parts:
            raise ToolError("The run has no parts yet")
        if not chosen:
            raise ToolError(f"There is no part {part!r}. Parts: {', '.join(one.name for one in report.parts)}")
        return {
            one.name: {
                "run": report.run,
                "verdict": one.verdict,
                "shims": one.prescription.shims if one.prescription else (),
                "sentences": [
                    self._with_home(each)
                    for each in wording.prescription(one, report) or _no_cure(one, report, searched=searched)
                ],
                "python": wording.prescription_code(one),
            }
            for one in chosen
        }

    async def export(
        self,
        context: Context,
        target: str,
        output: str,
        to: Literal["pt2", "onnx"] = "pt2",
        part: str | None = None,
        shims: str | None = None,
        weights: str = "auto",
        static: bool = False,
    ) -> dict[str, Any]:
        """Write a part of a model as .pt2 or .onnx with the shims that the last scan found, compared with eager.

        output: a file's name, relative to the server's folder. shims: ids joined by +, or `none`.
        """
        if shims is not None and (not _PLAIN.fullmatch(shims) or shims.endswith(".py")):
            raise ToolError(f"{shims!r} is not a list of shims such as a+b")
        place = self.folder.place(output)
        self.folder.refuse_links(place.parent, deep=False)
        words = ["export", f"--to={to}", f"--output={place}", f"--weights={weights}"]
        words += [f"--{name}={value}" for name, value in (("part", part), ("shims", shims)) if value is not None]
        words += ["--static"] if static else []
        code, text, _ = await self.call(context, *words, "--", target)
        return {"verified": code == ExitCode.EXPORTS, "summary": text.strip()}


def _no_cure(part: PartRecord, report: Report, *, searched: bool) -> tuple[str, ...]:
    """Why there are no shims."""
    if not part.complete:
        return (wording.cut_off_note(report) or f"{part.name} is being scanned.",)
    if part.verdict == "passes":
        return (f"{wording.part_without_shims(part)}.",)
    return (wording.no_cure(part, searched=searched, in_memory=report.target.in_memory),)


async def _follow(process: asyncio.subprocess.Process, context: Context) -> list[str]:
    """The lines of stderr, each told to the client as it comes."""
    lines: list[str] = []
    assert process.stderr is not None
    while data := await process.stderr.readline():
        line = data.decode(errors="replace").strip()
        if line:
            lines.append(line)
            await context.report_progress(len(lines), message=line[:500])
    return lines


async def _end(process: asyncio.subprocess.Process) -> None:
    """Interrupt a command that still runs, as Ctrl-C would, then kill it."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(asyncio.TimeoutError):
            await asyncio.shield(asyncio.wait_for(process.wait(), INTERRUPTED))


def _as_data(record: msgspec.Struct) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(record)
    return data
