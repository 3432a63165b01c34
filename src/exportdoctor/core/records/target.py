"""What to scan: the reference that the user typed, and how to build it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Device = Annotated[str, msgspec.Meta(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")]
"""`cuda:1` is the second GPU, as nvidia-smi numbers those that CUDA_VISIBLE_DEVICES shows; `cuda` is any of them."""
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

    @property
    def flags(self) -> tuple[str, ...]:
        """The options of the command line that give these values; none for a default."""
        size = f"{self.image_size[0]}x{self.image_size[1]}" if self.image_size else ""
        given = {
            "--device": self.device.replace("auto", ""),
            "--dtype": self.dtype.replace("auto", ""),
            "--weights": "" if self.weights == "fake" else self.weights,
            "--image-size": size,
            "--inputs": self.inputs,
        }
        words = [word for name, value in given.items() if value for word in (name, value)]
        return (*words, *(("--static",) if self.static else ()))


class TargetRef(msgspec.Struct, frozen=True, kw_only=True):
    """A target as typed, with the parts asked for (none = the target's default parts) and its build options."""

    ref: str
    parts: tuple[str, ...] = ()
    options: BuildOptions = BuildOptions()
