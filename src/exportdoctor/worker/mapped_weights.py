"""Weights in files that are mapped into memory, which the kernel may drop from memory and read again.

A model and the loaded file that is made of it hold the weights twice. Where memory has no place for that, those of the
model move to disk, and only those of the file need memory.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from torch import nn

from exportdoctor.torch_internals.fake_tensors import is_fake

_SPARE = 2 * 2**30
"""Bytes of memory for everything that is no weight: values of a run, the program, torch.onnx's model."""
_SMALL = 2**20
"""Bytes of a storage that stays in memory."""
_PREFIX = ".weights."
"""Of the names of the files."""
_DONT_NEED = 4
"""MADV_DONTNEED of madvise(2)."""


def map_weights_if_short(model: nn.Module, folder: Path) -> int:
    """Move weights on the CPU into files in `folder`, where a second copy of them would not fit into memory.

    Returns the bytes moved: 0 where memory suffices, or the disk has no place for the weights and a file of them. The
    files have no names any more when this returns; their space is freed with the tensors, or when the process ends.
    """
    size = sum({one.data_ptr(): one.nbytes() for one in map(_storage, _large_tensors(model))}.values())
    if size + _SPARE <= psutil.virtual_memory().available or shutil.disk_usage(folder).free < 2 * size + _SPARE:
        return 0
    return map_weights(model, folder)


def map_weights(model: nn.Module, folder: Path) -> int:
    """Move weights on the CPU into files in `folder`, one after the other; returns the bytes moved.

    Tensors that share a storage share it afterwards. Raises OSError where the disk is full.
    """
    moved: dict[int, torch.UntypedStorage] = {}  # by their addresses before: all are there, so no two have one
    for tensor in _large_tensors(model):
        old = _storage(tensor)
        if old.data_ptr() not in moved:
            moved[old.data_ptr()] = _map_storage(old, folder)
        layout = tensor.storage_offset(), tensor.shape, tensor.stride()
        tensor.data = torch.empty(0, dtype=tensor.dtype).set_(moved[old.data_ptr()], *layout)  # type: ignore[call-overload]
    return sum(one.nbytes() for one in moved.values())


def release_mapped_weights() -> None:
    """Take the weights that this process has mapped out of its memory; they are read again when they are used.

    Raises OSError where there is no /proc.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, *_ = line.split()
        if access.endswith("s") and f"/{_PREFIX}" in line:  # shared: what was written is in the file
            start, end = (int(one, 16) for one in addresses.split("-"))
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)


def _large_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers with values on the CPU, whose storage is not small. A sparse one has no storage."""
    for tensor in (*model.parameters(), *model.buffers()):
        has_values = type(tensor) in (torch.Tensor, nn.Parameter) and not is_fake(tensor)
        is_here = has_values and tensor.device.type == "cpu" and tensor.layout == torch.strided
        if is_here and _storage(tensor).nbytes() >= _SMALL:
            yield tensor


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _map_storage(storage: torch.UntypedStorage, folder: Path) -> torch.UntypedStorage:
    """The storage's bytes in a file that has no name any more."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=_PREFIX) as file:
        made: Any = torch.UntypedStorage.from_file(file.name, True, storage.nbytes())
        made.copy_(storage)
    return cast(torch.UntypedStorage, made)
