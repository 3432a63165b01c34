"""The command line's type for the size of an image."""

from __future__ import annotations

from typing import Any

import click


class ImageSizeType(click.ParamType[tuple[int, int]]):
    """HEIGHTxWIDTH in pixels, or one number for a square."""

    name = "HxW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """(height, width)."""
        if isinstance(value, tuple):
            return value
        height, _, width = str(value).lower().partition("x")
        try:
            size = int(height), int(width or height)
        except ValueError:
            self.fail(f"{value!r} is not a size such as 672x672", param, ctx)
        if min(size) <= 0:
            self.fail(f"{value!r} is not a size: both numbers must be above zero", param, ctx)
        return size
