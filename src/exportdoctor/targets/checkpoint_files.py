"""The only place that finds a checkpoint's files, without reading the weights in them."""

from __future__ import annotations

from pathlib import Path

from exportdoctor.core.errors import UsageError

NO_CHECKPOINT = ("auto", "fake", "random")


def find_checkpoint(weights: str) -> Path | None:
    """The folder with *.safetensors that `weights` names; `None` for `fake` and `random`."""
    if weights in NO_CHECKPOINT:
        return None
    folder = Path(weights).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"Weights {weights!r} are neither `fake` nor `random` nor a folder that exists",
            hint="Give the folder that has the *.safetensors files",
        )
    if not any(folder.glob("*.safetensors")):
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        hint = "Give a folder with *.safetensors; other formats must be converted first"
        raise UsageError(f"No *.safetensors in {weights!r} (found: {found})", hint=hint)
    return folder


def checkpoint_identity(weights: str) -> list[list[object]]:
    """Name, size and modification time of each of the checkpoint's files: they are too large to hash."""
    folder = find_checkpoint(weights)
    if folder is None:
        return []
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")])
    stats = [(file.name, file.stat()) for file in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
