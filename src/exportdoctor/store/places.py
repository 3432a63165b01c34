"""Where things are kept, and how a run is named. `EXPORTDOCTOR_HOME` moves everything; nothing is created here."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 of them, without l, o, 0, 1: a run id is read aloud and typed


def data_home() -> Path:
    """The folder of all runs and error logs."""
    return _home("XDG_DATA_HOME", ".local/share", "")


def cache_home() -> Path:
    """The folder of what may be deleted at any time."""
    return _home("XDG_CACHE_HOME", ".cache", "cache")


def runs_root() -> Path:
    """The folder that holds one folder for each run."""
    return data_home() / "runs"


def new_run_id(ref: str, *, at: float | None = None) -> str:
    """A name for a run of `ref`: UTC time first, so that names sort by age, the target, two random letters."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(at))
    return f"{stamp}-{slug(ref)}-{''.join(_LETTERS[byte % 32] for byte in os.urandom(2))}"


def slug(ref: str) -> str:
    """The part of a target's reference that a reader recognises, fit for a file name."""
    path, _, factory = ref.partition(":") if ".py:" in ref else (ref, "", "")
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".py")
    text = f"{name}-{factory}" if factory else name
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.")[:40] or "target"


def _home(variable: str, below_home: str, part: str) -> Path:
    """`EXPORTDOCTOR_HOME`, else the platform's folder of this kind."""
    if own := os.environ.get("EXPORTDOCTOR_HOME"):
        return Path(own).expanduser().absolute() / part
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "exportdoctor" / part
    chosen = os.environ.get(variable, "")
    # the XDG specification says that a relative path is to be ignored
    root = Path(chosen) if os.path.isabs(chosen) else Path.home() / below_home
    return root / "exportdoctor"
