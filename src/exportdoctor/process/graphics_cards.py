"""The NVIDIA cards of this machine as their management library (NVML) tells of them: it opens no CUDA context."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"
_UUID_LENGTH = 96


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card, or a slice of one (MIG), that CUDA would show to this process. Memory in MiB; `uuid` names it to CUDA."""

    uuid: str
    name: str
    total_mb: float
    free_mb: float


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def visible_cards() -> tuple[Card, ...]:
    """The cards in CUDA's order (CUDA_VISIBLE_DEVICES); none where NVML does not answer."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return ()
    if library.nvmlInit_v2() != 0:
        return ()
    try:
        return tuple(_read_card(library, handle) for handle in _visible_handles(library))
    except OSError:
        return ()
    finally:
        library.nvmlShutdown()


def _visible_handles(library: ctypes.CDLL) -> list[ctypes.c_void_p]:
    """As CUDA reads the variable: numbers or beginnings of UUIDs, up to the first that there is not."""
    count = ctypes.c_uint()
    _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
    handles = []
    for number in range(count.value):
        handle = ctypes.c_void_p()
        _check(library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)))
        handles.append(handle)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return handles
    chosen: list[ctypes.c_void_p] = []
    for word in map(str.strip, wanted.split(",")):
        found = _handle_of(library, word, handles)
        if found is None:
            break
        chosen.append(found)
    return chosen


def _handle_of(library: ctypes.CDLL, word: str, handles: list[ctypes.c_void_p]) -> ctypes.c_void_p | None:
    if word.isdecimal():
        return handles[int(word)] if int(word) < len(handles) else None
    if word.startswith("MIG-"):
        handle = ctypes.c_void_p()
        return None if library.nvmlDeviceGetHandleByUUID(word.encode(), ctypes.byref(handle)) else handle
    return next((one for one in handles if word.startswith("GPU-") and _uuid_of(library, one).startswith(word)), None)


def _read_card(library: ctypes.CDLL, handle: ctypes.c_void_p) -> Card:
    name, memory = ctypes.create_string_buffer(_UUID_LENGTH), _Memory()
    _check(library.nvmlDeviceGetName(handle, name, _UUID_LENGTH))
    _check(library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))
    return Card(
        uuid=_uuid_of(library, handle),
        name=name.value.decode(),
        total_mb=memory.total / 2**20,
        free_mb=memory.free / 2**20,
    )


def _uuid_of(library: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    uuid = ctypes.create_string_buffer(_UUID_LENGTH)
    _check(library.nvmlDeviceGetUUID(handle, uuid, _UUID_LENGTH))
    return uuid.value.decode()


def _check(status: int) -> None:
    if status:
        raise OSError(f"NVML answers with status {status}")
