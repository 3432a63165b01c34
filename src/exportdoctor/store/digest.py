"""Digests of what a result depends on: the request, the installed packages, the sources, the machine.

Equal digests mean equal results; whatever is expensive to compare counts as different.
"""

from __future__ import annotations

import hashlib
import locale
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from exportdoctor.core.codec import encode
from exportdoctor.core.file_hash import (
    LINK,
    LISTING,
    MODULE_SEARCH,
    UNRECORDED,
    VARIABLE,
    WORKING_FOLDER,
    file_sha256,
    is_unchanged,
)
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run.events import AnyEvent, PartCaptured, ProbeFinished, TargetOpened
from exportdoctor.core.scan_options import ScanOptions, result_options
from exportdoctor.targets.factory.factory_file import source_hashes

# these change how torch, transformers or the user's code behave
_VARIABLES = ("TORCH", "PYTORCH", "TRANSFORMERS_", "HF_", "CUDA_VISIBLE", "PYTHONPATH", "PYTHONHASHSEED")
_PACKAGE = Path(__file__).parent.parent


def request_digest(identity: Mapping[str, object], options: ScanOptions) -> str:
    """The digest of a whole scan. `identity` is what the target says that its answers depend on."""
    asked = msgspec.structs.replace(result_options(options), shim_files=())
    return _digest([identity, asked, _shim_digests(options), surroundings()])


def probe_digest(question: str, probe: Probe, *, rest: str) -> str:
    """The key of one attempt. `question` is CallFact.question, which stands for the probe's part, module and call.

    `rest` digests what all attempts of a run share.
    """
    asked = msgspec.structs.replace(probe, part="", fqn="", call=0, timeout=0.0, memory_mb=None)
    return _digest([question, asked, rest])


def shared_digest(sources: Mapping[str, str], options: ScanOptions, identity: Mapping[str, object]) -> str:
    """What all attempts of a run depend on beside their question: target, sources, shim files, packages, machine.

    Two factories of one file are two targets; a target's parts are left out, for they share their questions.
    """
    target = {name: value for name, value in identity.items() if name != "parts"}
    return _digest([target, sorted(sources.items()), _shim_digests(options), surroundings()])


def surroundings() -> dict[str, object]:
    """Interpreter, installed distributions, our own source, environment variables and accelerator."""
    return {
        "python": sys.version,
        "interpreter": _interpreter_options(),
        "machine": (platform.system(), platform.machine()),
        "distributions": sorted(_distributions()),
        "exportdoctor": _own_source(),
        "variables": sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES)),
        "accelerator": _driver(),
    }


def _interpreter_options() -> list[object]:
    """Options of Python, also those that it takes from variables, that decide what code does."""
    flags = sys.flags
    modes = (flags.optimize, flags.dev_mode, flags.utf8_mode, flags.bytes_warning, sys.get_int_max_str_digits())
    return [modes, sys.warnoptions, locale.getpreferredencoding(False)]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content; empty if it cannot be read."""
    try:
        return file_sha256(path)
    except OSError:
        return ""


def sources_of(events: Iterable[AnyEvent]) -> dict[str, str]:
    """All that a run's answers depend on, each with what it was when it was first read."""
    sources: dict[str, str] = {}
    for event in events:
        match event:
            case TargetOpened(opened=opened):
                sources = opened.sources | sources
            case PartCaptured(captured=captured):
                sources = captured.sources | sources
            case ProbeFinished(outcome=outcome) if outcome.sources:
                sources = outcome.sources | sources
            case _:
                pass
    return sources


def changed_sources(sources: Mapping[str, str]) -> tuple[str, ...]:
    """What among `sources` is no longer what it was, and what cannot be compared (core/file_hash.py)."""
    return tuple(what for what, identity in sources.items() if not is_unchanged(what, identity))


def name_changes(sources: Mapping[str, str]) -> tuple[str, ...]:
    """What has changed, as people call it; what cannot be compared is not said to have changed."""
    changed = (what for what in changed_sources(sources) if not what.startswith(UNRECORDED))
    return tuple(_name_source(what) for what in changed)


def without_temporary(sources: Mapping[str, str]) -> dict[str, str]:
    """Without the temporary files that are gone, such as those that a library writes for one process and imports: that
    they differ says nothing to people. Answers that read one are not told again."""
    temporary = os.path.join(tempfile.gettempdir(), "")
    return {what: identity for what, identity in sources.items() if not _is_gone(what, temporary)}


def _is_gone(what: str, temporary: str) -> bool:
    path = what.removeprefix(MODULE_SEARCH)
    there = os.path.dirname(path) if path != what else path
    return path.startswith(temporary) and not os.path.exists(there)


def _name_source(what: str) -> str:
    if what == WORKING_FOLDER:
        return "the working directory"
    if what.startswith(MODULE_SEARCH):
        return f"what import {Path(what.removeprefix(MODULE_SEARCH)).name} finds"
    if what.startswith(LINK):
        return Path(what.removeprefix(LINK)).name
    if what.startswith(LISTING):
        return f"the files in {Path(what.removeprefix(LISTING)).name}"
    return f"${what.removeprefix(VARIABLE)}" if what.startswith(VARIABLE) else Path(what).name


def _shim_digests(options: ScanOptions) -> list[object]:
    """Each shim file, which may read what lies beside it, with the neighbours that it imports."""
    files = [Path(name).expanduser() for name in options.shim_files]
    return [[os.path.abspath(file), source_hashes(file)] if file.is_file() else "" for file in files]


def _distributions() -> set[str]:
    """Name and version of each installed distribution, from the names of their folders: no file is opened."""
    found: set[str] = set()
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        found.update(name for name in names if name.endswith((".dist-info", ".egg-info")))
    return found


def _own_source() -> str:
    """A digest of all our code: while it is being developed, the version says little.

    Every room may decide an answer or the words of it, which are kept with it.
    """
    files = sorted(file for file in _PACKAGE.rglob("*.*") if file.is_file() and file.suffix != ".pyc")
    return _digest([[str(file.relative_to(_PACKAGE)), file_digest(file)] for file in files])


def _driver() -> str:
    """The CUDA driver's version line; empty on a machine without one."""
    try:
        return Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""


def _digest(value: object) -> str:
    return hashlib.sha256(encode(value)).hexdigest()[:32]
