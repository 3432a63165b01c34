"""An answer is told again only while all that the build and the attempt read is the same.

Each case is a target whose answer hangs on something outside its own code. It is scanned, that thing is changed, and it
is scanned again with the caches on: the second answer must be what plain torch.export then says.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.package.package_exporter import PackageExporter

from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import fold
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.scan import ScanRequest
from exportdoctor.engine.scan import scan as run_scan
from exportdoctor.process.launcher import Fork
from exportdoctor.store.digest import changed_sources, name_changes, sources_of, without_temporary
from exportdoctor.targets import resolve
from exportdoctor.worker.read_log import ReadLog
from scanning import events_of

_MODEL = """
import importlib, importlib.util, os, pathlib, sys
import torch

HERE = pathlib.Path(__file__).parent

class Model(torch.nn.Module):
    def __init__(self, fine=None):
        super().__init__()
        self.ask = fine

    def forward(self, x):
        return x * 2 if fine() else (x + 1 if x.sum() > 0 else x)

def build():
    return Model(), (torch.randn(3),)
"""
_Files = tuple[dict[str, str | None], dict[str, str | None]]
_FINE, _BROKEN = "FINE = True\n", "FINE = False\n"


@dataclass(frozen=True, kw_only=True)
class Change:
    """How the target asks whether it is fine, and what makes it say something else: files, variables, folders."""

    code: str
    files: _Files = ({}, {})
    variables: tuple[dict[str, str], dict[str, str]] = ({}, {})
    folders: tuple[str, str] = (".", ".")
    factories: tuple[str, str] = ("build", "build")


_HELPER: _Files = ({"helper.py": _FINE}, {"helper.py": _BROKEN})
_BUILT = "_psutil_linux"
"""The name that the C library of psutil starts by."""
_SHARED = f"/dev/shm/exportdoctor-test-{os.getpid()}.txt"
_DATA: _Files = ({"data.txt": "1"}, {"data.txt": "0"})
_TWO = """
from torch import nn
IS_FINE = True
def fine(): return IS_FINE
def good(): return build()
def bad():
    global IS_FINE
    IS_FINE = False
    return build()
"""
_PATCHED = """
def fine(): return False
def patched():
    def forward(self, x): return x * 2
    Model.forward = forward
    return build()
"""

CHANGES: dict[str, Change] = {
    "a module imported inside forward": Change(
        code="def fine():\n    import helper\n    return helper.FINE", files=_HELPER
    ),
    "importlib inside forward": Change(code="def fine(): return importlib.import_module('helper').FINE", files=_HELPER),
    "a file imported by its path": Change(
        code="def fine():\n    spec = importlib.util.spec_from_file_location('h', HERE / 'helper.py')\n"
        "    module = importlib.util.module_from_spec(spec)\n    spec.loader.exec_module(module)\n"
        "    return module.FINE",
        files=_HELPER,
    ),
    "code that is run with exec": Change(
        code="def fine():\n    found = {}\n    exec(open(HERE / 'helper.py').read(), found)\n    return found['FINE']",
        files=_HELPER,
    ),
    "a module imported only while exporting": Change(
        code="def fine():\n    if not torch.compiler.is_exporting(): return True\n"
        "    import helper\n    return helper.FINE",
        files=_HELPER,
    ),
    "a module that is only looked for": Change(
        code="HAS = importlib.util.find_spec('optional_helper') is not None\ndef fine(): return not HAS",
        files=({}, {"optional_helper.py": ""}),
    ),
    "a folder that is only looked for": Change(
        code="HAS = importlib.util.find_spec('optional_helper') is not None\ndef fine(): return not HAS",
        files=({}, {"optional_helper/any.txt": ""}),
    ),
    "a module in front of another": Change(
        code="sys.path[:0] = [str(HERE / 'over'), str(HERE / 'lib')]\nimport rules_of_it\n"
        "def fine(): return rules_of_it.FINE",
        files=({"over/x": "", "lib/rules_of_it.py": _FINE}, {"over/rules_of_it.py": _BROKEN}),
    ),
    "a package in front of a module": Change(
        code="def fine(): return importlib.import_module('helper').FINE",
        files=({"helper.py": _FINE}, {"helper/__init__.py": _BROKEN}),
    ),
    "an extension that is built": Change(
        code=f"try:\n    import {_BUILT}\n    HAS = True\nexcept ImportError:\n    HAS = False\n"
        "def fine(): return not HAS",
        files=({}, {f"{_BUILT}.so": "psutil._psutil_linux"}),
    ),
    "an extension in a package that is built": Change(
        code=f"try:\n    from ops_of_it import {_BUILT}\n    HAS = True\nexcept ImportError:\n    HAS = False\n"
        "def fine(): return not HAS",
        files=({"ops_of_it/__init__.py": ""}, {f"ops_of_it/{_BUILT}.so": "psutil._psutil_linux"}),
    ),
    "a file in shared memory": Change(
        code=f"def fine(): return open({_SHARED!r}).read() == '1'", files=({_SHARED: "1"}, {_SHARED: "0"})
    ),
    "a module that was not there": Change(
        code="def fine():\n    try:\n        import helper\n"
        "    except ImportError:\n        return True\n    return False",
        files=({}, {"helper.py": ""}),
    ),
    "a file read inside forward": Change(code="def fine(): return (HERE / 'data.txt').read_text() == '1'", files=_DATA),
    "a file read at import": Change(
        code="with open(HERE / 'data.txt') as data: TEXT = data.read()\ndef fine(): return TEXT == '1'",
        files=_DATA,
    ),
    "a file that appears": Change(code="def fine(): return not (HERE / 'flag').exists()", files=({}, {"flag": ""})),
    "a file that disappears": Change(
        code="def fine(): return os.path.isfile(HERE / 'flag')", files=({"flag": ""}, {"flag": None})
    ),
    "a file that cannot be opened": Change(
        code="def fine():\n    try:\n        return not open(HERE / 'flag')\n    except OSError:\n        return True",
        files=({}, {"flag": ""}),
    ),
    "the files of a folder": Change(
        code="def fine(): return not list(HERE.glob('*.flag'))", files=({}, {"a.flag": ""})
    ),
    "the sizes of files in a folder": Change(
        code="def fine(): return max(os.scandir(HERE / 'kept'), key=lambda one: one.stat().st_size).name == 'a'",
        files=({"kept/a": "long", "kept/b": ""}, {"kept/b": "longer"}),
    ),
    "the names in a folder below": Change(
        code="def fine(): return os.listdir('kept') == ['a']", files=({"kept/a": ""}, {"kept/b": ""})
    ),
    "a variable by getenv": Change(
        code="def fine(): return os.getenv('OF_MINE') != 'broken'", variables=({}, {"OF_MINE": "broken"})
    ),
    "a variable by item": Change(
        code="def fine(): return os.environ['OF_MINE'] != 'broken'",
        variables=({"OF_MINE": "fine"}, {"OF_MINE": "broken"}),
    ),
    "a variable that only an export asks for": Change(
        code="def fine(): return not torch.compiler.is_exporting() or os.getenv('OF_MINE') != 'broken'",
        variables=({}, {"OF_MINE": "broken"}),
    ),
    "a file that only an export looks for": Change(
        code="def fine(): return not torch.compiler.is_exporting() or not (HERE / 'flag').exists()",
        files=({}, {"flag": ""}),
    ),
    "the working directory": Change(code="def fine(): return os.getcwd().endswith('one')", folders=("one", "two")),
    "a relative path": Change(
        code="TEXT = open('data.txt').read()\ndef fine(): return TEXT == '1'",
        files=({"one/data.txt": "1", "two/data.txt": "0"}, {}),
        folders=("one", "two"),
    ),
    "a factory that fails after one that passes": Change(code=_TWO, factories=("good", "bad")),
    "a factory that passes after one that fails": Change(code=_TWO, factories=("bad", "good")),
    "a factory that patches the class": Change(code=_PATCHED, factories=("build", "patched")),
    "weights with the size and time of the old ones": Change(
        code="from safetensors.torch import load_file\nW = load_file(HERE / 'w.safetensors')['w']\n"
        "OK = bool((W > 0).all())\ndef fine(): return OK",
        files=({"w.safetensors": "1"}, {"w.safetensors": "0"}),
    ),
    "weights that were read and let go": Change(
        code="from safetensors.torch import load_file\nOK = load_file(HERE / 'w.safetensors')['w'][0].item() > 0\n"
        "def fine(): return OK",
        files=({"w.safetensors": "1"}, {"w.safetensors": "0"}),
    ),
    "a program that torch reads": Change(
        code="W = torch.export.load(HERE / 'w.pt2').state_dict['w']\nOK = bool(W[0] > 0)\n"
        "def fine(): return OK",
        files=({"w.pt2": "1"}, {"w.pt2": "0"}),
    ),
    "a package of torch": Change(
        code="W = torch.package.PackageImporter(str(HERE / 'w.package')).load_pickle('a', 'w')\n"
        "OK = bool(W[0] > 0)\ndef fine(): return OK",
        files=({"w.package": "1"}, {"w.package": "0"}),
    ),
    "a program of TorchScript": Change(
        code="W = torch.jit.load(HERE / 'w.jit').w\nOK = bool(W[0] > 0)\ndef fine(): return OK",
        files=({"w.jit": "1"}, {"w.jit": "0"}),
    ),
    "a tensor of a file that torch opens": Change(
        code="OK = torch.from_file(str(HERE / 'raw'), size=1, dtype=torch.uint8).item() == ord('1')\n"
        "def fine(): return OK",
        files=({"raw": "1"}, {"raw": "0"}),
    ),
    "a database by its address": Change(
        code="import sqlite3\ndef fine():\n    base = sqlite3.connect(f'file:{HERE}/d.db?mode=ro', uri=True)\n"
        "    return base.execute('select n from t').fetchone()[0] == 1",
        files=({"d.db": "1"}, {"d.db": "0"}),
    ),
    "a file in folders that are matched": Change(
        code="import glob\ndef fine(): return not glob.glob('kept/*/bad.json')",
        files=({"kept/a": ""}, {"kept/a": None, "kept/a/bad.json": ""}),
    ),
    "a path that is there": Change(
        code="def fine(): return not os.path.lexists(HERE / 'flag')", files=({}, {"flag": ""})
    ),
    "a path that can be read": Change(
        code="def fine(): return not os.access(HERE / 'flag', os.R_OK)", files=({}, {"flag": ""})
    ),
    "a file that may be run": Change(
        code="def fine(): return not os.access(HERE / 'flag', os.X_OK)",
        files=({"flag": "mode 644"}, {"flag": "mode 755"}),
    ),
    "a path that generated code asks for": Change(
        code="def fine():\n    found = {'os': os}\n    exec('there = os.path.lexists(\"flag\")', found)\n"
        "    return not found['there']",
        files=({}, {"flag": ""}),
    ),
    "where a link leads": Change(
        code="def fine(): return (HERE / 'now').resolve().name == 'one'",
        files=({"one/a": "", "two/a": "", "now": "-> one"}, {"now": "-> two"}),
    ),
    "what a link says": Change(
        code="def fine(): return os.readlink(HERE / 'now') == 'one'", files=({"now": "-> one"}, {"now": "-> two"})
    ),
    "the time of a file": Change(
        code="def fine(): return os.path.getmtime(HERE / 'flag') < 1e9",
        files=({"flag": "at 1000"}, {"flag": "at 2000000000"}),
    ),
    "the time of a path": Change(
        code="def fine(): return (HERE / 'flag').stat().st_mtime < 1e9",
        files=({"flag": "at 1000"}, {"flag": "at 2000000000"}),
    ),
    "the names of variables": Change(
        code="def fine(): return not any(name.startswith('OF_MI') for name in os.environ)",
        variables=({}, {"OF_MINE": ""}),
    ),
    "a variable in bytes": Change(
        code="def fine(): return os.getenvb(b'OF_MINE') != b'broken'", variables=({}, {"OF_MINE": "broken"})
    ),
    "a variable by a C library": Change(
        code="import ctypes\ndef fine(): return not ctypes.CDLL(None).getenv(b'OF_MINE')",
        variables=({}, {"OF_MINE": ""}),
    ),
    "a file that is made unless it is there": Change(
        code="def fine():\n    try:\n        open(HERE / 'flag', 'x').close()\n        os.unlink(HERE / 'flag')\n"
        "        return True\n    except FileExistsError:\n        return False",
        files=({}, {"flag": ""}),
    ),
    "a file that may be written, too": Change(
        code="def fine():\n    with open(HERE / 'data.txt', 'a+') as data:\n        data.seek(0)\n"
        "        return data.read() == '1'",
        files=_DATA,
    ),
    "a file by its descriptor": Change(
        code="def fine():\n    with os.fdopen(os.open(HERE / 'data.txt', os.O_RDWR)) as data:\n"
        "        return data.read() == '1'",
        files=_DATA,
    ),
    "a file of an open folder": Change(
        code="def fine():\n    folder = os.open(HERE / 'kept', os.O_RDONLY)\n"
        "    with os.fdopen(os.open('a', os.O_RDONLY, dir_fd=folder)) as data:\n        return data.read() == '1'",
        files=({"kept/a": "1"}, {"kept/a": "0"}),
    ),
    "a file that another process reads": Change(
        code="def fine():\n    pid = os.fork()\n    if not pid:\n        os._exit(int(open('data.txt').read()))\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1",
        files=_DATA,
    ),
    "an installed package whose version stays": Change(
        code="sys.path.insert(0, str(HERE / 'site-packages'))\nimport rules_of_mine\n"
        "def fine(): return rules_of_mine.FINE",
        files=({"site-packages/rules_of_mine.py": _FINE}, {"site-packages/rules_of_mine.py": _BROKEN}),
    ),
    "a C library that is built anew": Change(
        code="import ctypes\nLIBRARY = ctypes.CDLL(str(HERE / 'library.so'))\n"
        "def fine(): return hasattr(LIBRARY, 'PyInit__core')",
        files=({"library.so": "msgspec._core"}, {"library.so": "psutil._psutil_linux"}),
    ),
}  # fmt: skip
_BY_NIGHT = {"importlib inside forward", "a file imported by its path", "a file read at import", "a relative path",
             "a file that disappears", "a factory that patches the class",
             "an installed package whose version stays", "a C library that is built anew", "what a link says",
             "the time of a path", "a path that can be read", "a file by its descriptor",
             "a variable in bytes"}  # fmt: skip
_FIRST = {"a module imported inside forward", "weights that were read and let go"}
"""Asked by `make test`; the others by `make long`."""


def write(folder: Path, files: dict[str, str | None]) -> None:
    """Write the files; weights keep their size and their time of modification."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if text is None:
            path.unlink()
        elif text.startswith("-> "):
            path.unlink(missing_ok=True)
            path.symlink_to(text.removeprefix("-> "))
        elif text.startswith("mode "):
            path.write_text("")
            path.chmod(int(text.removeprefix("mode "), 8))
        elif text.startswith("at "):
            path.write_text("")
            os.utime(path, (float(text.removeprefix("at ")),) * 2)
        elif name.endswith(".db"):
            path.unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(path)) as base:
                base.executescript(f"create table t(n); insert into t values({text})")
        elif name.endswith(".safetensors"):
            times = (path.stat().st_atime_ns, path.stat().st_mtime_ns) if path.exists() else None
            save_file({"w": torch.full((8,), float(text))}, path)
            if times:
                os.utime(path, ns=times)
        elif name.endswith((".pt2", ".package", ".jit")):
            save_with_torch(torch.full((8,), float(text)), path)
        elif name.endswith(".so"):
            path.unlink(missing_ok=True)
            shutil.copy(str(importlib.import_module(text).__file__), path)
        else:
            path.write_text(text)


class Holder(torch.nn.Module):
    def __init__(self, w: torch.Tensor) -> None:
        super().__init__()
        self.w = torch.nn.Buffer(w)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w


def save_with_torch(w: torch.Tensor, path: Path) -> None:
    """Write it as a program, a package or TorchScript, as the name says."""
    if path.suffix == ".pt2":
        torch.export.save(torch.export.export(Holder(w), (w,)), path)
    elif path.suffix == ".jit":
        torch.jit.save(torch.jit.trace(Holder(w), w), path)  # type: ignore[no-untyped-call]
    else:
        with PackageExporter(str(path)) as exporter:
            exporter.save_pickle("a", "w", w)


def exports(file: Path, factory: str) -> bool:
    """What plain torch.export says, in a fork."""
    torch.set_num_threads(1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sys.path.insert(0, str(file.parent))
            space = {"__file__": str(file), "__name__": "plain"}
            exec(compile(file.read_text(), str(file), "exec"), space)
            module, args = space[factory]()  # type: ignore[operator]
            torch.export.export(module, args, strict=False)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def scan(file: Path, factory: str) -> tuple[list[ev.AnyEvent], bool, int]:
    """The events of a scan with the caches on, whether the target exports, how many answers were old."""
    events = events_of(f"{file}:{factory}", use_cache=True)
    finished = [event for event in events if isinstance(event, ev.ProbeFinished)]
    report = fold(events).report()
    return events, not report.findings, sum(event.cached for event in finished)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with nothing known."""
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    (tmp_path / "target").mkdir()
    yield tmp_path / "target"
    Path(_SHARED).unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.night if name in _BY_NIGHT else [] if name in _FIRST else pytest.mark.long)
        for name in CHANGES
    ],
)
def test_an_answer_from_before_a_change_is_not_told(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = CHANGES[name]
    file = home / "target.py"
    answers: list[bool] = []
    events: list[ev.AnyEvent] = []
    for moment, files in enumerate(change.files):
        write(home, files)
        if not moment:
            file.write_text(_MODEL + change.code + "\n")
        for variable, value in change.variables[moment].items():
            monkeypatch.setenv(variable, value)
        (home / change.folders[moment]).mkdir(exist_ok=True)
        monkeypatch.chdir(home / change.folders[moment])
        if moment and change.factories[0] == change.factories[1]:
            assert changed_sources(sources_of(events)), "the whole run would be told again"
        events, told, _ = scan(file, change.factories[moment])
        assert told == exports(file, change.factories[moment])
        answers.append(told)
    assert answers[0] != answers[1], "nothing was changed"


@pytest.mark.slow
@pytest.mark.parametrize("options", [("-O",), ("-W", "error"), ("-X", "utf8")], ids=" ".join)
def test_an_option_of_the_interpreter_is_another_surrounding(options: tuple[str, ...]) -> None:
    code = "from exportdoctor.store.digest import surroundings; print(surroundings())"
    asked = ([sys.executable, *words, "-c", code] for words in ((), options))
    env = os.environ | {"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0"}
    plain, other = (subprocess.run(words, capture_output=True, check=True, env=env).stdout for words in asked)
    assert plain != other


@pytest.mark.long
def test_weights_that_the_target_is_the_first_to_load_are_seen_to_change(home: Path) -> None:
    """Of safetensors nothing was imported yet when the watch began: a fresh process, as the command line has."""
    file, told = home / "target.py", []
    file.write_text(_MODEL + CHANGES["weights that were read and let go"].code + "\n")
    for value in ("1", "0"):
        write(home, {"w.safetensors": value})
        command = [sys.executable, "-m", "exportdoctor", "scan", f"{file}:build", "--no-cure", "--quiet"]
        told.append(subprocess.run(command, capture_output=True, check=False).returncode)
    assert told == [0, 1]


@pytest.mark.long
@pytest.mark.slow
def test_a_module_that_a_library_writes_for_one_process_keeps_no_run_from_being_resumed(home: Path) -> None:
    """Story: torch_geometric writes the code of each of its layers to a new temporary file with dots in its name, and
    imports that: no run of it could be continued."""
    library = home / "lib" / "site-packages" / "templates.py"
    library.parent.mkdir(parents=True)
    library.write_text(
        "import importlib.util, tempfile\n"
        "with tempfile.NamedTemporaryFile('w', prefix='made.of.templates_', suffix='.py', delete=False) as file:\n"
        "    file.write('def fine(): return True\\n')\n"
        "spec = importlib.util.spec_from_file_location('made', file.name)\n"
        "module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\nfine = module.fine\n"
    )
    target = home / "target.py"
    target.write_text(f"import sys; sys.path.insert(0, {str(library.parent)!r})\n{_MODEL}from templates import fine\n")
    sources = sources_of(scan(target, "build")[0])
    assert not [one for one in sources if "made.of.templates" in one]
    assert not name_changes(sources)


@pytest.mark.long
def test_a_copy_that_reads_what_lies_beside_it_is_another_target(home: Path) -> None:
    told = []
    for name in ("one", "other"):
        folder = home / name
        folder.mkdir()
        (folder / "target.py").write_text(
            _MODEL + "TEXT = (HERE / 'data.txt').read_text()\ndef fine(): return TEXT == '1'\n"
        )
        (folder / "data.txt").write_text("1" if name == "one" else "0")
        told.append(scan(folder / "target.py", "build")[1:])
    assert told == [(True, 0), (False, 0)]


@pytest.mark.long
def test_what_has_not_changed_is_told_again(home: Path) -> None:
    """Also where it was read in many ways."""
    file = home / "target.py"
    write(home, {"helper.py": _FINE, "data.txt": "1"})
    file.write_text(
        _MODEL + "TEXT = (HERE / 'data.txt').read_text()\n"
        "def fine():\n    import helper\n    return helper.FINE and TEXT and not os.getenv('OF_MINE')"
        " and not (HERE / 'flag').exists() and not list(HERE.rglob('*.flag'))\n"
    )
    events, told, _ = scan(file, "build")
    assert not changed_sources(sources_of(events))
    again = scan(file, "build")
    assert again[1:] == (told, 2), "the export, and the run of its program beside eager"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import time\nSTART = time.time()\ndef fine(): return START > 0", "the clock"),
        ("import time\ndef fine(): return time.time() > 0", "the clock"),
        ("import random\nrandom.seed()\nDRAWN = random.random()\ndef fine(): return DRAWN < 2", "chance"),
        ("import random\nDRAWN = random.SystemRandom().random()\ndef fine(): return DRAWN < 2", "chance"),
        ("import time\ndef fine(): return not torch.compiler.is_exporting() or time.time() > 0", "the clock"),
        ("import subprocess\nSAID = subprocess.run(['true'])\ndef fine(): return True", "another program"),
        ("from timeit import default_timer\ndef fine(): return default_timer() > 0", "the clock"),
        ("import numpy\ndef fine(): return str(numpy.datetime64('now')) > ''", "the clock"),
        ("def fine(): return bool(open('/proc/self/environ', 'rb').read())", "the system tells"),
        ("import tempfile\nNAME = tempfile.mkdtemp()\ndef fine(): return bool(NAME)", "chance"),
    ],
)
def test_what_cannot_be_compared_is_not_told_again_and_the_reason_is(code: str, why: str, home: Path) -> None:
    file = home / "target.py"
    file.write_text(_MODEL + code + "\n")
    events, _, _ = scan(file, "build")
    assert any(isinstance(event, ev.NoteAdded) and "Not kept" in event.text and why in event.text for event in events)
    assert changed_sources(sources_of(events))
    assert scan(file, "build")[2] == 0


def test_a_file_that_was_written_for_one_process_is_not_said_to_have_changed(tmp_path: Path) -> None:
    """Story: a library writes generated code into the temporary folder, under a name of chance, and imports it."""
    gone = f"{tempfile.gettempdir()}/generated_rwtw5fzh.py"
    kept = tmp_path / "model.py"
    kept.write_text("1")
    sources = {gone: "sha256:1", str(kept): "sha256:1"}
    assert changed_sources(sources) == (gone, str(kept))
    assert name_changes(without_temporary(sources)) == ("model.py",)
    assert name_changes(sources) == ("generated_rwtw5fzh.py", "model.py"), "and its answers do not hold"


@pytest.mark.long
@pytest.mark.slow
def test_a_seeded_draw_and_a_clock_that_is_only_named_are_told_again(home: Path) -> None:
    file = home / "target.py"
    file.write_text(
        _MODEL + "import random, time, uuid\nrandom.seed(1)\nDRAWN = random.random()\ndef fine(): return DRAWN < 2\n"
        "def unused():\n    'Not by multiprocessing.'\n    return time.time(), uuid.uuid4()  # nor with tokenizers\n"
    )
    scan(file, "build")
    assert scan(file, "build")[2] == 2


@pytest.mark.long
@pytest.mark.slow
def test_a_factory_that_exports_is_answered_from_the_cache(home: Path) -> None:
    file = home / "target.py"
    file.write_text(
        _MODEL + "torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), strict=True)\n"
        "def fine(): return True\n"
    )
    scan(file, "build")
    assert scan(file, "build")[2] == 2


def test_a_forked_worker_has_no_part_in_what_its_parent_read(tmp_path: Path) -> None:
    log = ReadLog()
    log.known.update({"/of/the/parent": "file", "never:another program": ""})
    log.forget()
    assert not log.reasons()
    assert "/of/the/parent" not in log.collect()


def test_files_that_threads_open_side_by_side_all_count(tmp_path: Path) -> None:
    log, files = ReadLog(), [tmp_path / str(nth) for nth in range(8)]
    for file in files:
        file.write_bytes(bytes(4 * 2**20))
    with ThreadPoolExecutor(len(files)) as threads:
        list(threads.map(lambda file: log._hear("open", (str(file), "r", os.O_RDONLY)), files))
    assert set(map(str, files)) <= log.known.keys()


def test_memory_that_processes_share_about_a_database_is_not_read(tmp_path: Path) -> None:
    """ONNX Runtime keeps one in the user's cache folder, into which every process with it writes."""
    file, log = tmp_path / "own.db", ReadLog()
    log.forget()
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE t (x)")
        assert str(file) + "-shm" in Path("/proc/self/maps").read_text()
        assert str(file) + "-shm" not in log.collect()


SHIM = """
from contextlib import contextmanager
from exportdoctor.shims import Cure, Shim
import helper_of_shim

@contextmanager
def enter(call):
    kind = type(call.module)
    before, kind.forward = kind.forward, helper_of_shim.forward
    try:
        yield call
    finally:
        kind.forward = before

SHIMS = (Shim(id="mine", title="Mine", soundness="exact", enter=enter, cures=(Cure(),)),)
"""
HELPER = "def forward(self, x):\n    return x * 2 if {} else x\n"


@pytest.mark.night
def test_a_shims_helper_that_changed_is_noticed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(home))
    (home / "target.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x * 2 if x.sum() == x.sum() else x\ndef build():\n    return Model(), (torch.randn(3),)\n"
    )
    (home / "mine.py").write_text(SHIM)
    verdicts = []
    for condition in ("True", "x.sum() > 0"):
        (home / "helper_of_shim.py").write_text(HELPER.format(condition))
        sys.modules.pop("helper_of_shim", None)
        events = events_of(
            f"{home / 'target.py'}:build", use_cache=True, cure=True, shim_files=(str(home / "mine.py"),)
        )
        part = fold(events).report().parts[0]
        verdicts.append(part.prescription is not None and "mine" in part.prescription.shims)
    assert verdicts == [True, False]


@pytest.mark.long
@pytest.mark.slow
def test_a_file_that_is_saved_anew_while_a_scan_runs_is_told_and_the_report_is_of_what_was_imported(
    tmp_path: Path,
) -> None:
    """Story: the report quoted the new line as the one that failed, and shims read the new source."""
    path = tmp_path / "edited.py"
    path.write_text(_MODEL.replace("x * 2 if fine() else (x + 1 if x.sum() > 0 else x)", "x + 1 if x.sum() > 0 else x"))
    target, options = TargetRef(ref=f"{path}:build"), ScanOptions(use_cache=False)
    events: list[ev.AnyEvent] = [ev.RunStarted(run="test", target=target, options=options, version="0")]
    torch.set_num_threads(1)
    for event in run_scan(ScanRequest(target=target, options=options, logs=tmp_path), Fork(resolve(target))):
        events.append(event)
        if isinstance(event, ev.TargetOpened):
            path.write_text(path.read_text().replace("x.sum() > 0", "x.shape[0] > 0"))
    report = fold(events).report()
    (finding,) = report.findings
    assert "x.sum() > 0" in (finding.source or "")
    assert report.parts[0].verdict == "cured"
    assert any("edited.py changed while the scan ran" in note for note in report.notes)


def _logged(path: Path, logs: Path) -> tuple[bool, Path]:
    """Whether a scan's failure came from the cache, and its log."""
    logs.mkdir(exist_ok=True)
    target, options = TargetRef(ref=f"{path}:build"), ScanOptions(cure=False)
    events: list[ev.AnyEvent] = [ev.RunStarted(run="test", target=target, options=options, version="0")]
    torch.set_num_threads(1)
    events += run_scan(ScanRequest(target=target, options=options, logs=logs), Fork(resolve(target)))
    (finding,) = fold(events).report().findings
    assert finding.log
    return all(event.cached for event in events if isinstance(event, ev.ProbeFinished)), Path(finding.log)


@pytest.mark.long
@pytest.mark.slow
def test_the_log_of_a_failure_lies_in_the_run_that_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an earlier run was deleted, later ones named a log that was gone."""
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EXPORTDOCTOR_CACHE", raising=False)
    path = tmp_path / "logged.py"
    path.write_text(_MODEL.replace("x * 2 if fine() else (x + 1 if x.sum() > 0 else x)", "x + 1 if x.sum() > 0 else x"))
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    cached, log = _logged(path, first)
    assert (cached, log.parent) == (False, first)
    text = log.read_text()
    assert "x.sum() > 0" in text
    cached, log = _logged(path, second)
    assert (cached, log.parent, log.read_text()) == (True, second, text)
    shutil.rmtree(first)
    shutil.rmtree(second)
    cached, log = _logged(path, third)  # its stack trace is gone, and is had again
    assert (cached, log.parent) == (False, third)
    assert "x.sum() > 0" in log.read_text()
