"""Which shims of other libraries cannot be entered on the installed versions: a worker is asked once for each set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress

from exportdoctor.core.errors import StoreError, WorkerLost
from exportdoctor.core.versions import installed_version
from exportdoctor.process.client import run_module
from exportdoctor.process.group import name_exit
from exportdoctor.shims import installed_versions
from exportdoctor.shims.installed_sources import folder_of
from exportdoctor.store.atomic_write import make_folder, replace_file
from exportdoctor.store.places import cache_home


def find_unfit_shims() -> Mapping[str, str]:
    """The reasons by the shim's id. Raises WorkerLost where none can be asked."""
    about = (installed_versions(), installed_version("exportdoctor"), str(folder_of("transformers")))
    kept = cache_home() / "shims" / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError):
        return dict(json.loads(kept.read_bytes()))
    done = run_module("worker.enter_each_shim")
    try:
        reasons: dict[str, str] = json.loads(done.stdout)
    except ValueError as error:
        raise WorkerLost(f"The process that enters shims has ended ({name_exit(done.returncode)})") from error
    with suppress(StoreError):
        make_folder(kept.parent)
        replace_file(kept, json.dumps(reasons).encode())
    return reasons
