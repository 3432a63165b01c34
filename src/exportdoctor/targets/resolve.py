"""What a target's reference means: `file.py:factory`, a path that exists, a preset or a hub id, in this order.

Imports no torch and takes milliseconds; whatever can be refused without torch is refused here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.targets.configuration import folder_plan, hub_plan, preset_plan
from exportdoctor.targets.factory.factory_plan import factory_plan
from exportdoctor.targets.preset_files import find_preset, unknown_preset

if TYPE_CHECKING:
    from exportdoctor.core.records.target import TargetRef
    from exportdoctor.targets.build import Plan

_FACTORY = re.compile(r"(?P<file>.+\.py)(?::(?P<name>\w*(?:\.\w+)*))?\Z", re.DOTALL)
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*$")


_NAME_SHOWN = 200


def resolve(target: TargetRef) -> Plan:
    """Find and check the target. Raises `UsageError` or `TargetError`, with a hint about what to do."""
    try:
        return _find(target)
    except (OSError, ValueError, RuntimeError) as error:  # a name that no file can have; nobody's home
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UsageError(
            f"{target.ref[:_NAME_SHOWN]!r} cannot be opened: {reason}", hint="Give another path"
        ) from error


def is_factory(ref: str) -> bool:
    """Whether it is written as `file.py:factory`."""
    return split_factory(ref) is not None


def split_factory(ref: str) -> tuple[Path, str] | None:
    """The file of `file.py:factory`, and the rest, `:factory`; None for another target."""
    factory = _FACTORY.match(ref)
    return (Path(factory["file"]).expanduser(), ref[factory.end("file") :]) if factory else None


def target_path(ref: str) -> tuple[Path, str] | None:
    """The file or folder that a target names, and the rest of its name, `:factory`; None for a preset or a hub id."""
    if (factory := split_factory(ref)) is not None:
        return factory
    folder = Path(ref).expanduser()
    return (folder, "") if ref and folder.exists() and (_is_written_as_path(ref) or find_preset(ref) is None) else None


def _find(target: TargetRef) -> Plan:
    ref = target.ref
    if not ref:
        raise unknown_preset(ref)
    if factory := _FACTORY.match(ref):
        return factory_plan(target, file=Path(factory["file"]).expanduser(), name=factory["name"] or "")
    if (found := target_path(ref)) is not None:
        return folder_plan(target, folder=found[0])
    if (preset := find_preset(ref)) is not None:
        return preset_plan(target, preset=preset)
    if _is_written_as_path(ref) and not _HUB_ID.match(ref):
        raise UsageError(f"There is no folder {ref!r}", hint="Give one with config.json, or file.py:factory")
    if _HUB_ID.match(ref):
        return hub_plan(target)
    raise unknown_preset(ref)


def _is_written_as_path(ref: str) -> bool:
    return "/" in ref or "\\" in ref or ref.startswith((".", "~"))
