"""Runs the whole of exportdoctor under another interpreter, in which nothing of it is installed.

The command line, not only the worker, is replaced by one of that interpreter: shims, sources and caches are then chosen
by the very packages that the worker imports. What exportdoctor needs travels along (`start_module.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from exportdoctor.core.errors import ExportdoctorError, UsageError, WorkerLost
from exportdoctor.core.limits import INTERPRETER_SECONDS
from exportdoctor.core.versions import SUPPORTED_VERSIONS, is_in_range
from exportdoctor.process.client import START_MODULE
from exportdoctor.process.describe_interpreter import MARK
from exportdoctor.process.group import kill_group, name_exit
from exportdoctor.process.start_module import CARRIED, STDOUT

_OLDEST = (3, 11)
_MOST_OUTPUT = 1 << 20
_MOST_SAID = 200
_RAISED = re.compile(r"Fatal Python error|[\w.]+(Error|Exception|Exit|Interrupt)\b")
_USE_TORCH = "import torch.export; torch.nn.Module; print('exportdoctor' + ' sees torch')"
_SAY_VERSION = "import sys; print('exportdoctor' + ' sees %d.%d' % sys.version_info[:2])"


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """What another interpreter says of itself. `lacks`: why exportdoctor cannot run there, empty = it can.

    `versions` of torch, transformers and exportdoctor, empty for what is not installed.
    """

    python: str
    prefix: str
    lacks: str
    versions: dict[str, str]
    path: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is the interpreter, or the environment, that runs this."""
        return os.path.realpath(self.prefix) == os.path.realpath(sys.prefix)


def handed_over() -> str:
    """The interpreter to which the command line was handed over; empty if it was not."""
    return sys.executable if os.environ.get(CARRIED) else ""


def find_interpreter(given: str) -> Interpreter:
    """The interpreter that `given` names: its path, its environment's folder, or its name on PATH.

    Raises UsageError, with the reason, if exportdoctor cannot run there.
    """
    path = _executable(given)
    found = _describe(path)
    torch = found.versions["torch"]
    if not torch:
        raise UsageError(f"{path} has no torch", hint=f"{path} -m pip install torch")
    for name, supported in SUPPORTED_VERSIONS.items():
        version = found.versions[name]
        if version and is_in_range(version, supported) is False:
            raise UsageError(f"{path} has {name} {version}; exportdoctor needs {name}{supported}")
    if found.lacks:
        same = found.python.split(".")[:2] == [str(number) for number in sys.version_info[:2]]
        other = (
            ""
            if same
            else f"; the packages that travel along are for Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
        raise UsageError(
            f"exportdoctor cannot run in {path}, Python {found.python}: {found.lacks}{other}",
            hint=f"{path} -m pip install msgspec psutil pyyaml",
        )
    return found


def find_project_python() -> str:
    """The interpreter of the activated environment, else of the project around the working folder; empty if none."""
    active = os.environ.get("VIRTUAL_ENV", "")
    places = [Path(active)] if active else []
    for folder in (Path.cwd(), *Path.cwd().parents):
        places.append(folder / ".venv")
        if (folder / ".git").exists() or (folder / "pyproject.toml").exists():
            break
    ours = os.path.realpath(sys.prefix)
    found = next((place for place in places if (place / "bin" / "python").exists()), None)
    return "" if found is None or os.path.realpath(found) == ours else str(found / "bin" / "python")


def hand_over(to: Interpreter, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the same command line under `to`.

    Until `start_module` runs there, stdout is stderr: what the interpreter prints at its start is no result.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1)
    os.set_inheritable(kept, True)
    os.dup2(2, 1)
    os.execve(to.path, command_in(to.path, arguments), {**os.environ, **carry(), STDOUT: str(kept)})


def command_in(path: str, arguments: Sequence[str]) -> list[str]:
    """The command line of exportdoctor under the interpreter `path`; it needs the variables of `carry`."""
    return [path, "-P", START_MODULE, "exportdoctor", *arguments]


def carry() -> dict[str, str]:
    """The variables by which what exportdoctor needs is found by another interpreter."""
    return {CARRIED: os.environ.get(CARRIED) or os.pathsep.join(place for place in sys.path if place)}


def explain_loss(error: WorkerLost) -> ExportdoctorError:
    """A worker that ends at once may have met a torch that cannot be imported: that is for the user to mend."""
    command = [sys.executable, "-P", "-c", _USE_TORCH]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:  # no further process can be started
        return error
    if done.returncode == 0 and b"exportdoctor sees torch" in done.stdout:
        return error
    said = done.stderr.decode(errors="replace").strip().splitlines() or [f"it ends with {name_exit(done.returncode)}"]
    return UsageError(
        f"{sys.executable} cannot import torch: {said[-1][:_MOST_SAID]}", hint="Mend it, or choose another by --python"
    )


def _executable(given: str) -> str:
    path = Path(given).expanduser()
    if given and path.is_dir():
        inside = path / "bin" / "python"
        if not inside.exists():
            raise UsageError(f"{given} is a folder without bin/python", hint="--python takes an interpreter")
        return str(inside.absolute())
    if given and path.exists():
        return str(path.absolute())
    named = shutil.which(given) if os.sep not in given else None
    if named is None:
        raise UsageError(f"There is no interpreter {given!r}")
    return named


def _describe(path: str) -> Interpreter:
    said = _run([path, "-P", START_MODULE, "exportdoctor.process.describe_interpreter"], path)
    marked = next((line for line in said.splitlines() if line.startswith(MARK)), None)
    if marked is not None:
        return msgspec.structs.replace(msgspec.json.decode(marked.removeprefix(MARK), type=Interpreter), path=path)
    lines = [line.strip()[:_MOST_SAID] for line in said.splitlines() if line.strip()] or ["it prints nothing"]
    why = next((line for line in reversed(lines) if _RAISED.match(line)), lines[0])
    seen = _run([path, "-c", _SAY_VERSION], path)
    version = next((line for line in seen.splitlines() if line.startswith("exportdoctor sees ")), "").rpartition(" ")[2]
    if not version:
        raise UsageError(f"{path} does not work as a Python interpreter: {why}")
    if tuple(int(number) for number in version.split(".")) < _OLDEST:
        raise UsageError(f"{path} is Python {version}; exportdoctor needs Python {_OLDEST[0]}.{_OLDEST[1]} or later")
    raise UsageError(f"exportdoctor cannot run in {path}, Python {version}: {why}")


def _run(command: list[str], path: str) -> str:
    """What it prints on both streams, up to a limit of size and time."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **carry()},
            process_group=0,
        )
    except OSError as error:
        why = "what its first line names is not there" if isinstance(error, FileNotFoundError) else error.strerror
        raise UsageError(f"{path} cannot be run: {why}") from error
    late = threading.Event()

    def end() -> None:
        late.set()
        kill_group(process.pid)

    limit = threading.Timer(INTERPRETER_SECONDS, end)
    limit.start()
    assert process.stdout is not None
    try:
        said = process.stdout.read(_MOST_OUTPUT).decode(errors="replace")
    finally:
        limit.cancel()
        kill_group(process.pid)
        process.stdout.close()
        process.wait()
    if late.is_set():
        raise UsageError(f"{path} does not answer within {INTERPRETER_SECONDS:.0f} s")
    return said
