"""The TorchScript exporter, `torch.onnx.export(dynamo=False)`: it runs on real values, so fake ones get storage."""

from __future__ import annotations

import io
import mmap
from typing import Any

import torch

from exportdoctor.torch_internals.fake_tensors import fake_tensor_class, is_fake
from exportdoctor.torch_internals.trees import tree_map_only

_LARGE = 1 << 20  # bytes


def export_torchscript(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any) -> bytes:
    """Trace and translate `module`, without its weights. `shapes` is ignored: a trace has the example's sizes.

    Fake parameters and inputs are replaced by zeros of the same shape, strides and dtype: the tracer records
    operators, and control flow on fake values would already have failed in the capture.
    """
    with _real_parameters(module):
        args, kwargs = tree_map_only(fake_tensor_class(), _real, (args, kwargs))
        buffer: Any = io.BytesIO()
        torch.onnx.export(
            module, args, buffer, kwargs=kwargs, dynamo=False, export_params=False, do_constant_folding=False,
            verbose=False,
        )  # fmt: skip
        return buffer.getvalue()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros. Pages that are only read take no memory, so that the parameters of a large model fit."""
    size, stride = tuple(tensor.shape), tensor.stride()
    if tensor.device.type != "cpu" or tensor.numel() * tensor.element_size() < _LARGE:
        return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).zero_()
    elements = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    pages = mmap.mmap(-1, elements * tensor.element_size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=tensor.dtype).as_strided(size, stride)


class _real_parameters:
    """For its duration, every fake parameter and buffer of `module` is a real one; tied ones stay tied."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.replaced: list[tuple[dict[str, Any], str, Any]] = []

    def __enter__(self) -> None:
        made: dict[int, torch.Tensor] = {}
        for child in self.module.modules():
            tables: tuple[dict[str, Any], ...] = (child._parameters, child._buffers)
            for table in tables:
                for name, tensor in table.items():
                    if is_fake(tensor):
                        self.replaced.append((table, name, tensor))
                        if id(tensor) not in made:
                            made[id(tensor)] = self._make_real(tensor)
                        table[name] = made[id(tensor)]

    @staticmethod
    def _make_real(tensor: torch.Tensor) -> torch.Tensor:
        real = _real(tensor)
        return torch.nn.Parameter(real, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else real

    def __exit__(self, *_: object) -> None:
        for table, name, tensor in self.replaced:
            table[name] = tensor
