"""The only place that reads weights from a checkpoint folder, through transformers' own loader.

Every name must fit: a parameter without a value would give numbers that mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import TargetError
from exportdoctor.targets.model_class import dtype_argument
from exportdoctor.targets.own_stack import blame_target

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

_COMPLAINTS = (
    ("missing_keys", "has no values for"),
    ("mismatched_keys", "has other shapes for"),
    ("unexpected_keys", "has values that the model has no place for"),
    ("error_msgs", "was refused"),
)


def load_checkpoint(model_class: Any, config: Any, *, folder: Path, dtype: torch.dtype | None) -> nn.Module:
    """The model with the folder's weights, on the CPU; `None` keeps the checkpoint's own dtype."""
    with blame_target(f"Loading {str(folder)!r} failed"):
        model, info = model_class.from_pretrained(
            str(folder),
            config=config,
            **dtype_argument(dtype or "auto"),
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    check_loaded(info, folder=folder)
    assert hasattr(model, "forward")
    return model  # type: ignore[no-any-return]


def check_loaded(info: dict[str, Any], *, folder: Path) -> None:
    """Raise `TargetError` in one line if any name or shape did not fit."""
    for key, complaint in _COMPLAINTS:
        names = sorted(map(_name, info.get(key) or ()))
        if names:
            raise TargetError(
                f"The checkpoint in {str(folder)!r} {complaint}: {_shorten(names)}",
                hint="Is it a checkpoint of this configuration?",
            )


def _name(entry: Any) -> str:
    """A parameter's name; mismatched ones come as (name, shape found, shape expected)."""
    if isinstance(entry, tuple) and len(entry) == 3:
        return f"{entry[0]} {tuple(entry[1])} instead of {tuple(entry[2])}"
    return str(entry)


def _shorten(names: Iterable[str]) -> str:
    shown, *rest = (list(names)[:3], list(names)[3:])
    more = f" and {len(rest[0])} more" if rest[0] else ""
    return f"{', '.join(shown)}{more}"
