"""What building the target and attempting its export read: files, modules, environment variables, the clock, chance.

Answers are told again only while all of it is the same (store/digest.py). Files are seen by an audit hook, which also
sees those that code opens for itself; variables and existence checks by wrappers that stand during building, capturing
and attempts, but not where dynamo would trace them. Torch, Python and exportdoctor itself count by their versions.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import source_from_cache
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote, urlsplit

from exportdoctor.core import file_hash
from exportdoctor.core.failure.frames import OUR_FOLDER, is_local_file, is_user_file
from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.targets.held_state import attributes_of
from exportdoctor.worker.call_listener import CallListener, asking_file
from exportdoctor.worker.drawn_numbers import OUR_WRAPPERS, DrawnNumbers

_NOT_FILES, _FILES = ("/proc/", "/sys/", "/dev/", "/memfd:"), ("/dev/shm/",)
"""Paths at which there is nothing that stays what it is, and those among them at which there are files."""
# what the shell counts, and our own
_IGNORED_VARIABLES = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})
_OWN_VARIABLES = "EXPORTDOCTOR_"
_OUTSIDE = {
    "socket.connect": "the network",
    "socket.getaddrinfo": "the network",
    "subprocess.Popen": "another program",
    "os.system": "another program",
    "os.posix_spawn": "another program",
    "os.exec": "another program",
    "pty.spawn": "another program",
    "os.fork": "another process",
    "os.forkpty": "another process",
    "socket.gethostname": "the machine's name",
    "ctypes.dlsym": "a function of a C library",
}
_DELETED = " (deleted)"
_BY_DESCRIPTOR = "a file by its name and a folder's descriptor"
_HEARD = frozenset({"open", "import", "os.listdir", "os.scandir", "sqlite3.connect", *_OUTSIDE})
_PACKAGE_SEARCH = os.path.dirname(importlib.metadata.__file__)
_COMPILED = re.compile(rf"(.*)/__pycache__/(.+)\.{sys.implementation.cache_tag}(?:\.opt-\w+)?\.pyc")
_MAPPED_FILE = re.compile(rb" (/[^\n]+)")
_ASKS = re.compile(
    r"\b(?:import|from)\b[^\n]*\b(?:time|timeit|tempfile|datetime|random|secrets|uuid)\b"
    r"|\b(?:time|timeit|tempfile|datetime|secrets|uuid)\.\w"
    r"|\b(?:urandom|getrandom|getpid|default_rng|RandomState)\b|\.(?:seed|now|utcnow|today)\("
)
"""Code that may ask for the time or for chance."""
_UNSEEN = {
    r"\bfrom_file\(|\btokenizers\b|Tokenizer(?:Fast)?\b|Processor\.from_pretrained|\baoti_load_package\b"
    r"|\bread_(?:parquet|feather|orc|hdf|image|file|video)\(": "files that a library opens",
    r"\b(?:import|from)\b[^\n]*(?<![.\w])(?:h5py|tables|netCDF4|zarr|pyarrow|fastparquet|polars|duckdb|lmdb|cv2"
    r"|soundfile|torchaudio|torchcodec|faiss|sentencepiece|gguf|tensorstore|onnx|onnxruntime)\b": (
        "files that a library opens"
    ),
    r"\bmultiprocessing\b|\bjoblib\b|\bProcessPool": "another process",
    r"datetime64\(\s*['\"](?:now|today)|\bTimestamp\.(?:now|today)|\b(?:event_loop\(\)|loop)\.time\(": "the clock",
    r"\bplatform\.(?:node|uname)\(|\bos\.uname\(": "the machine's name",
    r"\b(?:cpu_count|sched_getaffinity|get_num_threads|get_num_interop_threads)\(": "the number of processors",
    r"(?i:\bsqlite3?\b[\s\S]*\battach\b)": "a database that another one attaches",
}
"""Code that may ask for what neither a hook nor a profiler sees, and what that is."""
_CHECKS = frozenset({"exists", "lexists", "isfile", "isdir", "islink", "ismount", "is_file", "is_dir", "is_symlink",
                     "realpath", "_joinrealpath", "resolve", "samefile", "getsize"})  # fmt: skip
"""Functions of Python that ask of a file what its content, size and kind tell."""


def _without_remarks(code: str) -> str:
    """The code without its comments and docstrings; as it is where Python does not read it."""
    try:
        tree = ast.parse(code)
        for node in ast.walk(tree):
            match node:
                case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    node.body = [one for one in node.body if not _is_text(one)] or [ast.Pass()]
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError):
        return code


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class _Busy(threading.local):
    """What the log does in this thread: a file that it looks at itself does not count, those of other threads do."""

    looking = False
    noting = False


class ReadLog:
    """One for a process and its forks. `known` maps what was read to what it was then."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self._written: set[str] = set()
        self._modules: set[str] = set()
        self._mapped: set[bytes] = set()
        self._environment: dict[str, str] = {}
        self._older: set[str | None] = set()
        self._draws = DrawnNumbers(lambda: self._never("chance"))
        self.listener = CallListener(self._never)
        self._busy = _Busy()
        self._is_on = False

    def take_environment(self) -> None:
        """Variables are what they are now; torch sets some when it is imported."""
        self._environment = dict(os.environ)

    def start(self) -> None:
        """Log from now on; an audit hook cannot be taken away."""
        if not self._is_on:
            if not self._environment:
                self.take_environment()
            self._is_on = True
            self._take_state()
            hear, heard = self._hear, _HEARD  # at its end the interpreter takes a module's globals away

            def hook(event: str, args: tuple[Any, ...]) -> None:
                if event in heard:  # most events are of `id`
                    hear(event, args)

            sys.addaudithook(hook)

    def forget(self) -> None:
        """Drop what was read until now: by the process that this one was forked from, for purposes of its own."""
        for kept in (self.known, self._written, self._modules, self._mapped):
            kept.clear()
        self.take_environment()
        self._take_state()

    def recall(self, known: Mapping[str, str]) -> None:
        """Add what the process that this one was forked from had read for the purpose of both."""
        self.known.update(known)

    def _take_state(self) -> None:
        self._draws.start_anew()
        self._older = {getattr(module, "__file__", None) for module in list(sys.modules.values())}

    def start_attempt(self) -> int:
        """How much is known before it."""
        self._draws.start_in_fork()
        return len(self.known)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """See variables, existence checks and seeds, too, in the block."""
        kind = type(os.environ)
        read, each = kind.__getitem__, kind.__iter__

        def read_variable(environment: Any, key: Any) -> Any:
            if isinstance(key, str | bytes):
                self._note_variable(os.fsdecode(key))
            return read(environment, key)

        def names_of(environment: Any) -> Iterator[Any]:
            if _is_asked_by_user():
                self._never("the names of all environment variables")
            return each(environment)

        patches = [
            (kind, "__getitem__", read_variable),
            (kind, "__iter__", names_of),
            (os, "stat", self._note_before(os.stat, self._note_status)),
            (os, "access", self._note_before(os.access, self._note_permissions)),
            (os, "lstat", self._note_before(os.lstat, self._note_link)),
            (os, "readlink", self._note_before(os.readlink, self._note_link)),
            *self._safetensors_openers(),
            *self._torch_readers(),
            *self._draws.wrappers(),
        ]
        finder = _ListeningFinder(self._note_search)
        sys.meta_path.insert(0, finder)
        try:
            with patch_attributes(patches):
                yield
        finally:
            with suppress(ValueError):  # the user's code may have put others in its place
                sys.meta_path.remove(finder)

    def _note_before(self, function: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
        """A function of a path, which notes what is there first."""

        def look_at(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._busy.noting:
                self._busy.noting = True
                try:
                    if kwargs.get("dir_fd") is not None and _is_asked_by_user():
                        self._never(_BY_DESCRIPTOR)
                    elif isinstance(path, str | os.PathLike) and is_local_file(os.path.abspath(path)):
                        note(path)
                except (OSError, ValueError):  # a path that cannot be: the function itself tells
                    pass
                finally:
                    self._busy.noting = False
            return function(path, *args, **kwargs)

        return look_at

    def _safetensors_openers(self) -> list[tuple[Any, str, Any]]:
        """It opens files in Rust, which no hook sees, and what it has mapped may be gone before it is looked for."""
        try:
            import safetensors  # the user's code may be the first to do so, and then take the function that is here now
        except ImportError:
            return []
        opener = safetensors.safe_open

        def open_noted(filename: Any, *args: Any, **kwargs: Any) -> Any:
            self._note_file(filename)
            return opener(filename, *args, **kwargs)

        users = [module for module in list(sys.modules.values()) if attributes_of(module).get("safe_open") is opener]
        return [(module, "safe_open", open_noted) for module in users]

    def _torch_readers(self) -> list[tuple[Any, str, Any]]:
        """What torch opens in C++: archives of torch.export and torch.package, and those of TorchScript."""
        parts: Any = getattr(sys.modules.get("torch"), "_C", None)
        reader: Any = getattr(parts, "PyTorchFileReader", None)
        load: Any = getattr(parts, "import_ir_module", None)
        note = self._note_file

        def load_noted(unit: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            note(filename)
            return load(unit, filename, *args, **kwargs)

        patches: list[tuple[Any, str, Any]] = [(parts, "import_ir_module", load_noted)] if load else []
        if reader is not None:

            class NotingReader(reader):  # type: ignore[misc]
                def __init__(self, file: Any, *args: Any) -> None:
                    note(file)
                    super().__init__(file, *args)

            patches.append((parts, "PyTorchFileReader", NotingReader))
        return patches

    def note_working_folder(self) -> None:
        """The user's code runs, and may ask where it is."""
        self.known.setdefault(file_hash.WORKING_FOLDER, file_hash.working_folder_identity())

    def collect(self, since: int = 0) -> dict[str, str]:
        """All that was read until now, or since so much was known; with modules imported before the log began."""
        self._note_modules()
        self._note_mapped_files()
        self._draws.look()
        if self.listener.was_stopped():
            self._never("the clock or chance may have been asked where another profiler ran")
        return dict(islice(self.known.items(), since, None))

    def reasons(self) -> tuple[str, ...]:
        """What was used that cannot be recorded."""
        return file_hash.unrecorded_reasons(self.known)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            self._hear_open(*args)
        elif event == "import":
            self._note_search(args[0])
        elif event in ("os.listdir", "os.scandir"):
            self._note_listing(args[0])
        elif event == "sqlite3.connect":
            self._note_file(_path_of_database(args[0]))
        elif event in _OUTSIDE and _is_by_user():
            self._never(_OUTSIDE[event])

    def _hear_open(self, path: Any, mode: str | None, flags: int | None) -> None:
        """What is written anew does not count, nor what is only appended to; what may be read as well does."""
        if not isinstance(path, str | os.PathLike | bytes):
            return
        flags, mode = flags or 0, mode or ""
        try:
            full = os.path.abspath(os.fsdecode(path))
        except (OSError, ValueError, TypeError):  # the open itself fails so
            return
        if not mode and not os.path.isabs(os.fsdecode(path)) and _is_asked_by_user():
            self._never(_BY_DESCRIPTOR)
        if _is_no_file(full):
            if full.startswith(("/proc/", "/sys/")) and _is_asked_by_user():
                self._never("what the system tells of itself")
        elif "w" in mode or flags & os.O_TRUNC:
            self._written.add(full)
        elif "x" in mode or flags & os.O_EXCL:
            if _is_named_by_chance():
                self._written.add(full)
            elif _is_by_user():  # not Python, which writes what it has compiled
                self._note_file(full)
        elif "+" not in mode and flags & os.O_WRONLY:
            if not file_hash.link_identity(full):
                self._written.add(full)
        else:
            self._note_file(full)

    def _note_file(self, path: Any) -> None:
        if self._busy.looking or not isinstance(path, str | os.PathLike | bytes):
            return
        self._busy.looking = True
        try:
            self._note_path(os.path.abspath(os.fsdecode(path)))
        except (OSError, ValueError, TypeError):
            pass
        finally:
            self._busy.looking = False

    def _note_path(self, path: str) -> None:
        if path.endswith(".pyc"):
            path = _source_of(path)
        if path in self.known or path in self._written or _is_no_file(path) or not _matters(path):
            return
        self.known[path] = identity = file_hash.file_identity(path, by_status=not is_local_file(path))
        if len(identity) == 64 and is_local_file(path):
            self._listen_to(path)

    def _note_status(self, path: Any) -> None:
        self._note_file(path)
        if _asks_for_times(sys._getframe(2)):
            self._note_times(path)

    def _note_link(self, path: Any) -> None:
        """Whether something is there, and whether it is a link."""
        if self._busy.looking or not _is_asked_by_user():
            return
        full = os.path.abspath(os.fsdecode(path))
        self.known.setdefault(file_hash.LINK + full, file_hash.link_identity(full))
        if _asks_for_times(sys._getframe(2)):
            self._note_times(path)

    def _note_permissions(self, path: Any) -> None:
        self._note_file(path)
        self._note_link(os.path.realpath(path))

    def _note_times(self, path: Any) -> None:
        """When a file was written counts too."""
        identity = file_hash.file_identity(full := os.path.abspath(os.fsdecode(path)), by_status=True)
        if identity.startswith(file_hash.BY_STATUS):
            self.known[full] = identity

    def _listen_to(self, path: str) -> None:
        """Hear whether code that may ask for the time or for chance does. What cannot be heard counts where named."""
        if not path.endswith(".py") or path in self._older:
            return
        code = Path(path).read_text(errors="replace")
        for pattern, what in _UNSEEN.items():
            if re.search(pattern, code) and re.search(pattern, _without_remarks(code)):
                self._never(f"{what}, in {os.path.basename(path)}")
        if _ASKS.search(code) and not self.listener.start():
            self._never(f"the clock or chance, in {os.path.basename(path)}")

    def _note_variable(self, name: str) -> None:
        if self._busy.looking or name in _IGNORED_VARIABLES or name.startswith(_OWN_VARIABLES):
            return
        key = file_hash.VARIABLE + name
        if key not in self.known:
            self.known[key] = file_hash.variable_identity(name, self._environment)

    def _note_listing(self, folder: Any) -> None:
        """Which files a folder has; those of installed packages count by their versions."""
        if self._busy.looking:
            return
        self._busy.looking = True
        try:
            is_path = isinstance(folder, str | bytes | os.PathLike)
            name = os.path.abspath(os.fsdecode(folder)) if is_path else str(folder)
            if not is_local_file(os.path.join(os.path.abspath(name), "x")) or not _is_by_user():
                return
            identity = file_hash.listing_identity(name) if is_path else None
            if identity is None:
                self._never(f"the list of files in {name}")
            else:
                self.known.setdefault(file_hash.LISTING + name, identity)
        except OSError:  # there is no working directory any more: the listing itself fails
            pass
        finally:
            self._busy.looking = False

    def _note_modules(self) -> None:
        """Modules that are new; one that takes another's name was seen being opened."""
        for name in sys.modules.keys() - self._modules:
            self._modules.add(name)
            path = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(path, str) and path not in self.known and path.endswith((".py", ".so")):
                self._note_file(path)

    def _note_search(self, name: str) -> None:
        """What an import looks for in the user's folders: it may be there next time, before what was taken."""
        package, _, stem = name.rpartition(".")
        places = attributes_of(sys.modules.get(package)).get("__path__", ()) if package else sys.path
        noting, self._busy.noting = self._busy.noting, True
        try:
            for folder in map(os.path.abspath, [place for place in places if isinstance(place, str)]):
                key = file_hash.MODULE_SEARCH + os.path.join(folder, stem)
                if key not in self.known and is_local_file(os.path.join(folder, "x")):
                    self.known[key] = file_hash.module_identity(os.path.join(folder, stem))
        except (OSError, ValueError, TypeError):  # no working directory any more, or no paths
            pass
        finally:
            self._busy.noting = noting

    def _note_mapped_files(self) -> None:
        """Files that C code has mapped, such as weights: no hook sees them being opened."""
        try:
            mapped = set(_MAPPED_FILE.findall(Path("/proc/self/maps").read_bytes()))
        except OSError:
            return
        for path in map(os.fsdecode, mapped - self._mapped):
            if path.startswith(_FILES) and path.endswith(_DELETED):
                continue  # memory that processes share, or a semaphore
            if is_local_file(path) and not _is_system_library(path) and not _is_index_of_sqlite(path):
                self._note_file(path)
        self._mapped |= mapped

    def _never(self, reason: str) -> None:
        self.known.setdefault(file_hash.UNRECORDED + reason, "-")


class _ListeningFinder:
    """Finds nothing, and tells what is looked for: `find_spec` and `import_module` raise no audit event."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Called for each module that is not loaded."""
        self._note(name)


LOG = ReadLog()


def _is_no_file(path: str) -> bool:
    return path.startswith(_NOT_FILES) and not path.startswith(_FILES)


@cache
def _matters(path: str) -> bool:
    """Whether a file may be the user's or of a library that models are made of: others count by their version."""
    return is_local_file(path) or is_user_file(path)


@cache
def _source_of(path: str) -> str:
    try:
        return source_from_cache(path)
    except ValueError:  # Python itself takes no name with dots
        found = _COMPILED.fullmatch(path)
        return f"{found[1]}/{found[2]}.py" if found else path


def _is_index_of_sqlite(path: str) -> bool:
    """The memory that processes share about a database's log, which each of them writes. It holds no data."""
    return path.endswith("-shm") and os.path.exists(path.removesuffix("-shm"))


def _is_system_library(path: str) -> bool:
    if path.startswith(("/usr/", "/lib", "/opt/", os.path.realpath(sys.base_prefix))):
        return True
    return ".so" in os.path.basename(path) and path.startswith(sys.prefix)


def _asks_for_times(frame: FrameType) -> bool:
    """Whether the user's code gets the status of a file from the function that runs there, with its times."""
    if frame.f_code.co_name in ("stat", "lstat") and frame.f_back is not None:
        frame = frame.f_back  # what called the method of a Path
    return frame.f_code.co_name not in _CHECKS and _is_asked_by_user()


def _path_of_database(name: Any) -> Any:
    return unquote(urlsplit(name).path) if isinstance(name, str) and name.startswith("file:") else name


def _is_asked_by_user() -> bool:
    """Whether the user's code asks itself, or through Python's library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    file = asking_file(frame, directly=False)
    return file is not None and not file.startswith(OUR_FOLDER)


def _is_named_by_chance() -> bool:
    """Whether `tempfile` opens a new file, whose name no other process has had: a library may import what it writes
    into it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == tempfile.__file__


def _is_by_user() -> bool:
    """Whether the user's own code is on the stack, above ours; not where Python looks for modules or packages."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(("<frozen importlib", _PACKAGE_SEARCH)):
            return False
        if path.startswith(OUR_FOLDER):
            if path not in (__file__, OUR_WRAPPERS):
                return False
        elif not path.startswith("<") and is_local_file(path):
            return True
        frame = frame.f_back
    return False
