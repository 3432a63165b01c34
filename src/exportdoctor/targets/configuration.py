"""Targets given by a configuration: a preset, a folder with a config.json or a hub id.

Of a hub id only the configuration is read, from the local cache first, so that a model that was downloaded once can be
scanned offline. Weights come from folders.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.limits import HUB_SECONDS
from exportdoctor.core.read_file import read_file
from exportdoctor.targets.inputs_file import check_inputs_file, inputs_identity
from exportdoctor.targets.model.checkpoint import checkpoint_identity, find_checkpoint
from exportdoctor.targets.recipes import Recipe, check_size, choose_parts, choose_recipe
from exportdoctor.targets.sizes.image_sizes import ImageSize, check_image_size, image_unit

if TYPE_CHECKING:
    from exportdoctor.core.records.target import BuildOptions, TargetRef
    from exportdoctor.targets.preset_files import Preset

_USUAL_IMAGE_SIZE = 672
_NAMES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class ConfigurationPlan:
    """A model that transformers can build from `config`; `folder` is where the configuration was found.

    `without_values`: random weights are left fake, for each attempt to draw those that it needs where it needs them.
    """

    ref: str
    title: str
    config: dict[str, Any]
    recipe: Recipe
    parts: tuple[str, ...]
    options: BuildOptions
    folder: Path | None = None
    without_values: bool = False

    @property
    def available_parts(self) -> tuple[str, ...]:
        """Every part that the recipe gives."""
        return self.recipe.available

    def identity(self) -> dict[str, object]:
        """The configuration, the options, the parts and the checkpoint's files."""
        return {
            "config": self.config,
            "recipe": self.recipe.name,
            "parts": list(self.parts),
            "options": msgspec.to_builtins(self.options),
            "checkpoint": checkpoint_identity(self.options.weights),
            "inputs": inputs_identity(self.options.inputs),
        }


def preset_plan(target: TargetRef, *, preset: Preset) -> ConfigurationPlan:
    """Plan a preset. Its own weights and image size hold where the options have none."""
    weights = preset.weights if target.options.weights in ("auto", "fake") else target.options.weights
    options = msgspec.structs.replace(target.options, weights=weights)
    return _plan(
        target,
        title=preset.name,
        config=preset.config,
        recipe=choose_recipe(preset.config, name=preset.recipe, has_inputs=bool(options.inputs)),
        options=options,
        image_size=preset.image_size,
    )


def folder_plan(target: TargetRef, *, folder: Path) -> ConfigurationPlan:
    """Plan a folder with a config.json. Weights are `auto` for those that it holds, fake where there are none."""
    if not folder.is_dir():
        raise UsageError(f"{target.ref!r} is a file", hint="Give its folder, or file.py:factory")
    return _plan_from_file(target, path=folder / "config.json", title=folder.resolve().name)


def hub_plan(target: TargetRef) -> ConfigurationPlan:
    """Plan a hub id: its configuration from the local cache, else from the hub."""
    return _plan_from_file(target, path=_hub_config(target.ref), title=target.ref)


def _plan_from_file(target: TargetRef, *, path: Path, title: str) -> ConfigurationPlan:
    config = read_config(path)
    weights = target.options.weights
    if weights == "auto":
        weights = str(path.parent) if any(path.parent.glob("*.safetensors")) else "fake"
    return _plan(
        target,
        title=title,
        config=config,
        recipe=choose_recipe(config, has_inputs=bool(target.options.inputs)),
        options=msgspec.structs.replace(target.options, weights=weights),
        folder=path.parent,
    )


def _plan(
    target: TargetRef,
    *,
    title: str,
    config: dict[str, Any],
    recipe: Recipe,
    options: BuildOptions,
    image_size: ImageSize | None = None,
    folder: Path | None = None,
) -> ConfigurationPlan:
    find_checkpoint(options.weights)
    check_size(config)
    if options.inputs:
        check_inputs_file(options.inputs)
    size = _image_size(options.image_size, config=config, recipe=recipe, default=image_size)
    return ConfigurationPlan(
        ref=target.ref,
        title=title,
        config=config,
        recipe=recipe,
        parts=choose_parts(
            target.parts, available=recipe.available, default=recipe.default, has_inputs=bool(options.inputs)
        ),
        options=msgspec.structs.replace(options, image_size=size),
        folder=folder,
    )


def _image_size(
    asked: ImageSize | None, *, config: dict[str, Any], recipe: Recipe, default: ImageSize | None
) -> ImageSize | None:
    """The size of the options, checked; else the recipe's usual one. `None` leaves it to the configuration."""
    unit = image_unit(config)
    if asked is None:
        usual = max(1, _USUAL_IMAGE_SIZE // unit) * unit
        return (default or (usual, usual)) if recipe.chooses_image_size else None
    if not recipe.takes_images:
        raise UsageError("This model takes no images", hint="Leave out the image size")
    return check_image_size(asked, unit=unit)


def read_config(path: Path) -> dict[str, Any]:
    """A configuration as JSON. Raises `UsageError` where there is none, `TargetError` where it is broken."""
    try:
        config = json.loads(read_file(path).decode())
    except FileNotFoundError:
        hint = "Give the folder that has the model's config.json"
        raise UsageError(f"There is no config.json in {str(path.parent)!r}", hint=hint) from None
    except OSError as error:
        raise TargetError(f"Cannot read {str(path)!r}: {error.strerror}", hint="Fix the file") from error
    except json.JSONDecodeError as error:
        what = f"{error.msg}, line {error.lineno}, column {error.colno}"
        raise TargetError(f"{str(path)!r} is not JSON: {what}", hint="Fix the file") from error
    except (ValueError, RecursionError) as error:  # other encodings, numbers without end, a nesting without end
        raise TargetError(f"{str(path)!r} is not JSON: {first_line(error)}", hint="Fix the file") from error
    if not isinstance(config, dict) or not ("model_type" in config or "architectures" in config):
        found = ", ".join(list(config)[:_NAMES_SHOWN]) if isinstance(config, dict) else type(config).__name__
        raise TargetError(
            f"{str(path)!r} names no model_type and no architectures (found: {found or 'nothing'})",
            hint="Give the configuration of a model",
        )
    names = config.get("architectures")
    if not (names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))):
        raise TargetError(f"{str(path)!r}: `architectures` is no list of names", hint="Fix the file")
    return config


def _hub_config(hub_id: str) -> Path:
    """The path of the model's config.json in the local cache, after a download where needed and possible."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError as error:
        raise UsageError(f"A hub id ({hub_id}) needs huggingface_hub", hint="Install transformers") from error
    cached = try_to_load_from_cache(hub_id, "config.json")
    if isinstance(cached, str):
        return Path(cached)
    try:
        return _download(hub_id)
    except Exception as error:
        line = first_line(error) or type(error).__name__
        raise UsageError(
            f"{hub_id!r} is not a folder, not in the local hub cache, and could not be downloaded: {line}",
            hint=f"Download it first (hf download {hub_id} config.json), or give a folder with config.json",
        ) from error


def _download(hub_id: str) -> Path:
    from huggingface_hub import constants, hf_hub_download

    _check_reachable(constants.ENDPOINT)
    return Path(hf_hub_download(hub_id, "config.json", etag_timeout=HUB_SECONDS))


def _check_reachable(address: str) -> None:
    """Raise `OSError` at once where the hub cannot be reached: its own client retries for half a minute."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    if getproxies():
        return
    endpoint = urlsplit(address)
    try:
        socket.create_connection((endpoint.hostname or "", endpoint.port or 443), timeout=HUB_SECONDS).close()
    except OSError as error:
        raise OSError(f"{endpoint.hostname} cannot be reached from here") from error
