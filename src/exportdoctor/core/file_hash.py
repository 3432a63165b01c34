"""What a file, a folder, an environment variable or the working directory was when it was read, as a text to compare.

Small files count by their content. Large ones count by what the file system knows of them: a change sets the time of
change (ctime), which nobody can set back.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from importlib.machinery import all_suffixes
from os import PathLike

_LARGEST_HASHED = 8 * 2**20
BY_STATUS = "stat:"
"""Beginning of the identity of a file that counts by its size and times."""
_MOST_LISTED = 10_000
_WRITTEN_BY_PYTHON = "__pycache__"
VARIABLE = "env:"
"""Prefix of an environment variable's name among what was read."""
LISTING = "list:"
"""Prefix of a folder whose files were listed."""
LINK = "link:"
"""Prefix of a path of which was asked whether it is there or a link, and to what."""
MODULE_SEARCH = "import:"
"""Prefix of a folder and a module's name that was looked for in it."""
WORKING_FOLDER = "cwd:"
UNRECORDED = "never:"
"""Prefix of a reason why not all that was read is known: then nothing is ever the same."""
WORKER_DEFAULTS = {
    # transformers' advice and progress bars are no part of a diagnosis
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    # torch counts GPUs without a CUDA context, which would survive no fork
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Variables that a worker gets from its client unless the user set them: that it read one is no dependence."""


def file_sha256(path: str | PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_identity(path: str, *, by_status: bool = False) -> str:
    """What is at `path`: a file's content or, if large or `by_status`, its status; empty where nothing can be read."""
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            if by_status or status.st_size > _LARGEST_HASHED:
                return f"{BY_STATUS}{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
            return file_sha256(path)
    except (OSError, ValueError):
        return ""
    return "folder" if stat.S_ISDIR(status.st_mode) else "device"


def listing_identity(folder: str) -> str | None:
    """The names in a folder, and size and time of its files, as a digest; empty where it cannot be read.

    None where there are too many. What Python itself writes beside modules does not count.
    """
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name != _WRITTEN_BY_PYTHON:
                    found.append(_entry_identity(entry))
                if len(found) > _MOST_LISTED:
                    return None
    except (OSError, ValueError):
        return ""
    return _digest("\n".join(sorted(found)))


def _entry_identity(entry: os.DirEntry[str]) -> str:
    if not entry.is_file():
        return f"{entry.name}/"
    status = entry.stat()
    return f"{entry.name}:{status.st_size}:{status.st_mtime_ns}"


def link_identity(path: str) -> str:
    """Where a symbolic link leads, else the kind of what is at `path` and its permissions; empty where nothing is."""
    try:
        mode = os.lstat(path).st_mode
        return os.readlink(path) if stat.S_ISLNK(mode) else f":{mode:o}"
    except (OSError, ValueError):
        return ""


def module_identity(stem: str) -> str:
    """What there is that an import may take, by a folder and a module's name in it: files, or a package's folder."""
    found = [suffix for suffix in all_suffixes() if os.path.isfile(stem + suffix)]
    if os.path.isdir(stem):
        inside = (suffix for suffix in all_suffixes() if os.path.isfile(os.path.join(stem, f"__init__{suffix}")))
        found.append(f"/{next(inside, '')}")
    return " ".join(found)


def variable_identity(name: str, environment: Mapping[str, str]) -> str:
    """An environment variable's value as a digest, for it may be a secret; empty where it is not set."""
    value = environment.get(name)
    return "" if value is None else _digest(value)


def unrecorded_reasons(sources: Iterable[str]) -> tuple[str, ...]:
    """Why not all is known of what was read."""
    return tuple(what.removeprefix(UNRECORDED) for what in sources if what.startswith(UNRECORDED))


def working_folder_identity() -> str:
    """The working directory; empty where it is gone."""
    try:
        return _digest(os.getcwd())
    except OSError:
        return ""


def is_unchanged(what: str, identity: str) -> bool:
    """Whether `what`, a path or one of the prefixes above with a name, is now what it was."""
    if what.startswith(UNRECORDED):
        return False
    if what.startswith(VARIABLE):
        name = what.removeprefix(VARIABLE)
        return name in WORKER_DEFAULTS or variable_identity(name, os.environ) == identity
    if what == WORKING_FOLDER:
        return working_folder_identity() == identity
    if what.startswith(LINK):
        return link_identity(what.removeprefix(LINK)) == identity
    if what.startswith(MODULE_SEARCH):
        return module_identity(what.removeprefix(MODULE_SEARCH)) == identity
    if what.startswith(LISTING):
        return listing_identity(what.removeprefix(LISTING)) == identity
    return file_identity(what, by_status=identity.startswith(BY_STATUS)) == identity


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
