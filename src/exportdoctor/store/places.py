"""Paths of runs and caches, and run ids. `EXPORTDOCTOR_HOME` moves everything; nothing is created here."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from platformdirs.unix import Unix

from exportdoctor.core.errors import UsageError

_XDG = Unix("exportdoctor")  # XDG on macOS too, where earlier runs are kept
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 of them, without l, o, 0, 1, which are easily confused


def data_home() -> Path:
    """The folder of all runs and error logs."""
    return _home(_XDG.user_data_path, "")


def cache_home() -> Path:
    """The folder of what may be deleted at any time."""
    return _home(_XDG.user_cache_path, "cache")


def runs_root() -> Path:
    """The folder that holds one folder for each run."""
    return data_home() / "runs"


def check_working_folder() -> None:
    """Raise UsageError where the working folder was deleted: torch and its workers cannot start there."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"The working folder is gone: {error.strerror}", hint="Go to a folder that is there") from None


def new_run_id(ref: str, *, at: float | None = None) -> str:
    """A name for a run of `ref` that no run has: UTC time first, so that names sort by age, the target, two random
    letters."""
    beginning = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at))}-{slug(ref)}-"
    while (runs_root() / (name := beginning + "".join(_LETTERS[byte % 32] for byte in os.urandom(2)))).exists():
        pass
    return name


def slug(ref: str) -> str:
    """The part of a target's reference that a reader recognises, fit for a file name."""
    path, _, factory = ref.partition(":") if ".py:" in ref else (ref, "", "")
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".py")
    text = f"{name}-{factory}" if factory else name
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.")[:40] or "target"


def _home(folder: Path, part: str) -> Path:
    """`EXPORTDOCTOR_HOME`, else the XDG folder of this kind."""
    if own := os.environ.get("EXPORTDOCTOR_HOME"):
        return Path(own).expanduser().absolute() / part
    return folder
