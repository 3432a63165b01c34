"""What to scan: the reference that the user typed, and how to build it."""

from __future__ import annotations

from typing import Literal

import msgspec

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "float16", "bfloat16"]


class BuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a target is built. `image_size` is (height, width) in pixels; `weights` is `fake`, `random` or a folder.

    `inputs` is `FILE.py:FUNCTION`, `FILE.pt` or `FILE.safetensors`; empty: they are made.
    """

    device: Device = "auto"
    dtype: DType = "auto"
    weights: str = "fake"
    image_size: tuple[int, int] | None = None
    static: bool = False
    inputs: str = ""


class TargetRef(msgspec.Struct, frozen=True, kw_only=True):
    """A target as typed, with the parts asked for (none = the target's default parts) and its build options."""

    ref: str
    parts: tuple[str, ...] = ()
    options: BuildOptions = BuildOptions()
