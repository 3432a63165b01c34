"""Checkpoint folders: finds their files without reading them, and loads the weights with transformers' own loader.

Every parameter must get a value of its shape: without one the numbers would be meaningless. Values that the model has
no place for are left out, as transformers does, where the configuration names its class.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import TargetError, UnreadableCheckpointError, UsageError
from exportdoctor.core.exception_text import summary
from exportdoctor.targets.eager import blame_target
from exportdoctor.targets.model.model_class import dtype_argument

if TYPE_CHECKING:
    import torch
    from torch import nn

NO_CHECKPOINT = ("auto", "fake", "random")

_BROKEN = "Check that its files are all there and whole, or download them again"
_COMPLAINTS = (
    ("missing_keys", "has no values for"),
    ("mismatched_keys", "has other shapes for"),
    ("error_msgs", "was refused"),
    ("unexpected_keys", "has values that the model has no place for"),
)


def find_checkpoint(weights: str) -> Path | None:
    """The folder with *.safetensors that `weights` names; `None` for `fake` and `random`."""
    if weights in NO_CHECKPOINT:
        return None
    folder = Path(weights).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"Weights {weights!r} are neither `fake`, `random` nor an existing folder",
            hint="Give a folder with *.safetensors files",
        )
    if not any(folder.glob("*.safetensors")):
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        hint = "Give a folder with *.safetensors; other formats must be converted first"
        raise UsageError(f"No *.safetensors in {weights!r} (found: {found})", hint=hint)
    for file in folder.glob("*.safetensors"):
        if not file.is_file():
            raise UsageError(f"{str(file)!r} is no file", hint="Give a folder with complete weights")
    return folder


def checkpoint_identity(weights: str) -> list[list[object]]:
    """Name, size and times of each of the checkpoint's files: they are too large to hash."""
    folder = find_checkpoint(weights)
    if folder is None:
        return []
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")])
    stats = [(file.name, file.stat()) for file in files]
    return [[name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats]


def load_checkpoint(
    model_class: Any, config: Any, *, folder: Path, dtype: torch.dtype | None
) -> tuple[nn.Module, tuple[str, ...]]:
    """The model with the folder's weights, on the CPU, and the names of values that it has no place for.

    `None` keeps the checkpoint's own dtype. Raises TargetError where the checkpoint does not fit the class, and
    UnreadableCheckpointError where one of its files is not there or not whole.
    """
    from safetensors import SafetensorError

    what = f"Loading {str(folder)!r} failed"
    is_named = model_class.__name__ in (getattr(config, "architectures", None) or ())
    with blame_target(what):
        try:
            model, info = model_class.from_pretrained(
                str(folder),
                config=config,
                **dtype_argument(dtype or "auto"),
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        except (OSError, SafetensorError) as error:
            raise UnreadableCheckpointError(f"{what}: {summary(error)}", hint=_BROKEN) from error
    left_out = sorted(map(_name, info.pop("unexpected_keys", ()) or ())) if is_named else []
    _check_loaded(info, folder=folder)
    assert hasattr(model, "forward")
    return model, tuple(left_out)


def _check_loaded(info: dict[str, Any], *, folder: Path) -> None:
    """Raise `TargetError` in one line if any name or shape did not fit."""
    for key, complaint in _COMPLAINTS:
        names = sorted(map(_name, info.get(key) or ()))
        if names:
            raise TargetError(
                f"The checkpoint in {str(folder)!r} {complaint}: {shorten(names)}",
                hint="Check that the checkpoint belongs to this configuration",
            )


def _name(entry: Any) -> str:
    """A parameter's name; mismatched ones come as (name, shape found, shape expected)."""
    if isinstance(entry, tuple) and len(entry) == 3:
        return f"{entry[0]} {tuple(entry[1])} instead of {tuple(entry[2])}"
    return str(entry)


def shorten(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    shown, *rest = (list(names)[:3], list(names)[3:])
    more = f" and {len(rest[0])} more" if rest[0] else ""
    return f"{', '.join(shown)}{more}"
