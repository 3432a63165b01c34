"""The device and dtype that a target is built with, and moving values there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.torch_internals.trees import tree_map_only

if TYPE_CHECKING:
    import torch

    from exportdoctor.core.records.target import BuildOptions


def choose_device(options: BuildOptions) -> torch.device:
    """The device of the options. `auto` is the GPU where there is one, but the CPU for fake weights, which hold no
    values. Raises `UsageError` for a GPU that is not there."""
    import torch

    if options.device == "auto":
        return torch.device("cuda" if options.weights != "fake" and torch.cuda.is_available() else "cpu")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"Device {device} is not available to torch",
            hint="Use --device cpu; a scan without --to takes --device cuda without a GPU, and runs no kernel there",
        )
    if (device.index or 0) >= 1 and device.index >= torch.cuda.device_count():
        raise no_such_card(device, torch.cuda.device_count())
    return device


def no_such_card(device: torch.device, count: int) -> UsageError:
    """The error for a number that no GPU has."""
    return UsageError(f"There is no {device}: this machine shows {count} GPU(s)", hint="Give a lower number")


def choose_dtype(options: BuildOptions) -> torch.dtype | None:
    """The dtype of the options; `None` for `auto`."""
    import torch

    if options.dtype == "auto":
        return None
    dtype = getattr(torch, options.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def move(value: Any, *, device: torch.device | None, dtype: torch.dtype | None) -> Any:
    """Every tensor in `value` on the device, floating ones in the dtype; all else as it is."""
    import torch

    def move_tensor(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

    return tree_map_only(torch.Tensor, move_tensor, value)


def count_parameters(model: torch.nn.Module) -> int:
    """Elements of all parameters, tied ones counted once. Raises TargetError where one has no shape yet."""
    from torch.nn.parameter import is_lazy

    unset = next((name for name, value in (*model.named_parameters(), *model.named_buffers()) if is_lazy(value)), None)
    if unset is not None:
        raise TargetError(
            f"{unset} has no shape yet: torch.export.export takes no lazy module before its first call",
            hint="Call the module once in the factory",
        )
    return sum(parameter.numel() for parameter in model.parameters())


def dtype_name(model: torch.nn.Module) -> str:
    """The dtype of the first floating parameter, as `float32`."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return str(parameter.dtype).removeprefix("torch.")
    return "float32"
