"""A capture that was made in a child, as bytes for its parent: a forward that needs the GPU runs where it may open one.

Modules are named, since the parent has them. Tensors arrive on the CPU: whole numbers and small ones with their values,
others as fake tensors.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from exportdoctor.torch_internals.fake_tensors import fake_tensor_class, is_fake, new_fake_mode
from exportdoctor.worker.capture.session import PartCapture

_CARRIED = ("distinct", "questions", "left_out", "notes", "fixed", "root", "returned")
_EXACT_BYTES = 4096


def pack_capture(part: PartCapture) -> bytes:
    """What the forward has shown of the part. Raises what pickle raises for inputs that cannot leave the process."""
    target = io.BytesIO()
    _Packer(target, part).dump({name: getattr(part, name) for name in _CARRIED})
    return target.getvalue()


def unpack_capture(data: bytes, part: PartCapture) -> None:
    """Add it to the same part, whose forward has not run in this process."""
    for name, value in _Unpacker(io.BytesIO(data), part).load().items():
        setattr(part, name, value)


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, part: PartCapture) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._names = {id(module): fqn for fqn, module in part.fqns.items()}

    def persistent_id(self, obj: Any) -> Any:
        """What the parent has, or makes again, in place of the object itself."""
        if isinstance(obj, torch.nn.Module) and id(obj) in self._names:
            return "module", self._names[id(obj)]
        if isinstance(obj, torch.device):
            return "device", str(obj)
        if isinstance(obj, torch.Tensor) and not _travels(obj):
            dtype = str(obj.dtype).removeprefix("torch.")
            return "fake", tuple(obj.size()), obj.stride(), dtype, obj.requires_grad
        return None

    def reducer_override(self, obj: Any) -> Any:
        """A tensor of the GPU as one of the CPU."""
        if isinstance(obj, torch.Tensor) and obj.device.type != "cpu":
            return _same, (obj.detach().cpu().requires_grad_(obj.requires_grad),)
        return NotImplemented


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, part: PartCapture) -> None:
        super().__init__(file)
        self._part, self._mode = part, new_fake_mode()

    def persistent_load(self, pid: Any) -> Any:
        """The module of that name, the CPU in place of a GPU, or a fake tensor of that shape."""
        kind, *told = pid
        if kind == "module":
            return self._part.fqns[told[0]]
        if kind == "device":
            return torch.device("cpu" if told[0].startswith("cuda") else told[0])
        size, stride, dtype, grad = told
        meta = torch.empty_strided(size, stride, dtype=getattr(torch, dtype), device="meta")
        return fake_tensor_class()(self._mode, meta, torch.device("cpu")).requires_grad_(grad)


def _travels(tensor: torch.Tensor) -> bool:
    """Whether a tensor takes its values along."""
    if is_fake(tensor):
        return False
    return not tensor.is_floating_point() or tensor.numel() * tensor.element_size() <= _EXACT_BYTES


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
