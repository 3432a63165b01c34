"""Buffers of its own for the module of a program, which else shares them with the program."""

from __future__ import annotations

import torch

from exportdoctor.shims.state_run import memory_of
from exportdoctor.torch_internals.fake_tensors import is_fake


def own_buffers(ready: torch.nn.Module) -> None:
    """Give a program buffers of its own in place of the module's, as a file has them: else what a shim reads from the
    module would change with what the program writes. Those that share memory go on to do so."""
    storages: dict[int, torch.UntypedStorage] = {}
    made: dict[int, torch.Tensor] = {}

    def copy_of(buffer: torch.Tensor) -> torch.Tensor:
        if is_fake(buffer):
            return buffer
        is_plain = type(buffer) is torch.Tensor and buffer.layout == torch.strided and not buffer.is_nested
        if not is_plain or buffer.is_conj() or buffer.is_neg() or buffer.requires_grad:
            return buffer.clone()
        if (memory := memory_of(buffer)) not in storages:
            storages[memory] = buffer.untyped_storage().clone()
        empty = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
        return empty.set_(storages[memory], buffer.storage_offset(), buffer.shape, buffer.stride())

    with torch.no_grad():
        for child in ready.modules():
            for name, buffer in child._buffers.items():
                if buffer is not None:
                    if id(buffer) not in made:
                        made[id(buffer)] = copy_of(buffer)
                    child._buffers[name] = made[id(buffer)]
