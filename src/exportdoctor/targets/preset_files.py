"""The presets of the package: configurations by name, one JSON file each.

A preset file states its recipe, its image size and its default weights; nothing here knows a model by name.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from exportdoctor.core.errors import UsageError, did_you_mean


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration of the package. `config` has the format of a Hugging Face config.json."""

    name: str
    hub_ids: tuple[str, ...] = ()
    recipe: str
    weights: str
    image_size: tuple[int, int]
    config: dict[str, Any]


@cache
def preset_names() -> tuple[str, ...]:
    """Every preset's name, smaller models first, tiny ones last."""
    entries = files(__package__).joinpath("presets").iterdir()
    names = [entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")]
    return tuple(sorted(names, key=_tiny_last_then_by_size))


def find_preset(name: str) -> Preset | None:
    """The preset of this name or hub id, in any case; `None` if there is none."""
    wanted = name.casefold()
    for known in preset_names():
        preset = _read(known)
        if wanted in {known.casefold(), *(hub_id.casefold() for hub_id in preset.hub_ids)}:
            return preset
    return None


def unknown_preset(name: str) -> UsageError:
    """The error for a name that is no preset, with names that come near."""
    known = preset_names()
    return UsageError(
        f"{name!r} is not a preset, a folder or a file",
        hint=f"{did_you_mean(name, known)}Give a preset ({', '.join(known)}), a folder with config.json, a hub id "
        "or file.py:factory",
    )


@cache
def _read(name: str) -> Preset:
    text = files(__package__).joinpath("presets", f"{name}.json").read_text(encoding="utf-8")
    return msgspec.convert({"name": name, **json.loads(text)}, Preset)


def _tiny_last_then_by_size(name: str) -> tuple[bool, int, str]:
    billions = re.search(r"(\d+)B", name)
    return name.endswith("-tiny"), int(billions[1]) if billions else 0, name
