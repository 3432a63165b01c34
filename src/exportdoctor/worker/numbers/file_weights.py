"""An ONNX file's graph without its weights, which are read from the disk one by one when they are asked for."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exportdoctor.worker.translate.onnx_session import torch_dtypes

_LEAST = 1 << 10
"""Bytes of a weight that stays in the file; smaller ones are read with the graph."""
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Fields of ModelProto, GraphProto and TensorProto in onnx.proto, version 1.23."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where the bytes of a weight are."""

    file: Path
    offset: int
    size: int


def read_graph(path: Path) -> tuple[Any, dict[str, _Place]]:
    """The model without the bytes of its large weights, and where these are. Raises what onnx raises."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor, uses_external_data

    model = onnx.ModelProto()
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
        kept, inside = _without_weights(data)
    model.ParseFromString(kept)
    places = {name: _Place(file=path, offset=start, size=end - start) for name, (start, end) in inside.items()}
    for one in model.graph.initializer:
        if uses_external_data(one):
            info = ExternalDataInfo(one)
            whole = Path(os.path.normpath(path.parent / info.location))
            if not whole.is_relative_to(os.path.normpath(path.parent)):
                raise ValueError(f"the weight {one.name} lies outside of the folder of {path.name}")
            if one.data_type not in torch_dtypes():
                load_external_data_for_tensor(one, str(path.parent))
                continue
            offset = info.offset or 0
            size = info.length if info.length is not None else os.path.getsize(whole) - offset
            places[one.name] = _Place(file=whole, offset=offset, size=size)
    return model, places


def _without_weights(data: Any) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The message without the raw data of large initializers, and where it was, by name."""
    inside: dict[str, tuple[int, int]] = {}
    whole = bytearray()
    for number, begin, start, end in _fields(data, 0, len(data)):
        if number != _GRAPH:
            whole += data[begin:end]
            continue
        graph = bytearray()
        for inner, first, value, last in _fields(data, start, end):
            lean = _lean_tensor(data, value, last, inside) if inner == _INITIALIZER else None
            graph += data[first:last] if lean is None else _field(_INITIALIZER, lean)
        whole += _field(_GRAPH, graph)
    return bytes(whole), inside


def _lean_tensor(data: Any, start: int, end: int, inside: dict[str, tuple[int, int]]) -> bytes | None:
    """An initializer without its bytes, which are noted; None if it has few, or others than raw ones."""
    import onnx

    raw = [one for one in _fields(data, start, end) if one[0] == _RAW_DATA]
    if end - start < _LEAST or len(raw) != 1 or raw[0][3] - raw[0][2] < _LEAST:
        return None
    _, begin, first, last = raw[0]
    lean = data[start:begin] + data[last:end]
    one = onnx.TensorProto.FromString(lean)
    if one.data_type not in torch_dtypes():
        return None
    inside[one.name] = (first, last)
    return lean


def _fields(data: Any, place: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Each field of a protobuf message: its number, where it begins, and where its value begins and ends."""
    while place < end:
        begin = place
        tag, place = _varint(data, place)
        match tag & 7:
            case 0:
                start, (_, place) = place, _varint(data, place)
            case 1:
                start, place = place, place + 8
            case 2:
                size, start = _varint(data, place)
                place = start + size
            case 5:
                start, place = place, place + 4
            case _:
                raise ValueError("it is no ONNX file")
        yield tag >> 3, begin, start, place


def _varint(data: Any, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def _field(number: int, value: bytes | bytearray) -> bytes:
    head, size = bytearray([number << 3 | 2]), len(value)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes(head) + bytes([size]) + bytes(value)


class FileWeights(Mapping[str, torch.Tensor]):
    """Tensors by name, some of which are read each time they are asked for. Nobody may write to them."""

    def __init__(self, known: Mapping[str, torch.Tensor], protos: Mapping[str, Any], places: Mapping[str, Any]) -> None:
        self._known, self._protos, self._places = dict(known), dict(protos), places

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._protos:
            return self._known[name]
        proto, place = self._protos[name], self._places[name]
        memory = torch.empty(place.size, dtype=torch.uint8)
        with place.file.open("rb", buffering=0) as file:
            file.seek(place.offset)
            view, done = memory.numpy().data, 0
            while done < place.size:
                got = file.readinto(view[done:])
                if not got:
                    raise ValueError(f"{place.file.name} ends before the weight {name}")
                done += got
        return memory.view(torch_dtypes()[proto.data_type]).view(tuple(proto.dims))

    def __contains__(self, name: object) -> bool:
        return name in self._protos or name in self._known

    def __iter__(self) -> Iterator[str]:
        yield from self._known
        yield from self._protos

    def __len__(self) -> int:
        return len(self._known) + len(self._protos)
