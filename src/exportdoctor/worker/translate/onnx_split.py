"""Cuts an ONNX file into several at block boundaries, which run one after the other, and merges them again.

Cuts lie where a numbered block begins (`blocks.3`), by the module names that torch.onnx writes to each node. A value
made before a cut and used after it is an output of one file and an input of a later one.

onnx's own tools do not fit (onnx 1.23): `onnx.utils.Extractor` does not see what subgraphs of If and Loop read, and
`onnx.compose.merge_models` refuses pieces that share an input or a weight, and models of more than 2 GB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.protocol.export import ExportedFile, ValueInfo
from exportdoctor.worker.translate.failed_node import onnx_fact
from exportdoctor.worker.translate.onnx_program import check_model
from exportdoctor.worker.translate.onnx_session import OnnxSession

_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")
_INLINE_LIMIT = 2**31 - 2**20


@dataclass(frozen=True, kw_only=True)
class SplitModel:
    """The files that a model was cut into. Both functions take the whole model's inputs and give its outputs."""

    files: list[ExportedFile]
    run_pieces: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    run_merged: Callable[[list[torch.Tensor]], list[torch.Tensor]]


def split_and_merge(path: Path, count: int, *, device: str, external_data: bool) -> SplitModel:
    """Cut the file at `path` into `count` files beside it, load them, and load what they merge into again."""
    whole = OnnxSession(path, device=device)
    names, outputs = whole.inputs, whole.outputs
    files = split(path, count, external_data=external_data)
    paths = [path.parent / file.name for file in files]
    chain = [OnnxSession(one, device=device) for one in paths]
    merged = [OnnxSession(merge(paths, outputs), device=device)]
    return SplitModel(
        files=files,
        run_pieces=lambda given: run_chain(chain, names, outputs, given),
        run_merged=lambda given: run_chain(merged, names, outputs, given),
    )


def run_chain(
    chain: Sequence[OnnxSession], inputs: Sequence[str], outputs: Sequence[str], given: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Run the files in turn; each takes what it needs of all that is known by then."""
    known = dict(zip(inputs, given, strict=True))
    for session in chain:
        known.update(zip(session.outputs, session.run_named(known), strict=True))
    return [known[name] for name in outputs]


def split(path: Path, count: int, *, external_data: bool = False) -> list[ExportedFile]:
    """Write the pieces beside `path`. Raises UsageError where there are not as many blocks."""
    import onnx

    model = onnx.load(str(path))
    nodes = list(model.graph.node)
    places = cuts([onnx_fact(node).module for node in nodes], count)
    inner = {value.name: value for value in model.graph.value_info}
    names = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    weights = {one.name: one for one in model.graph.initializer}
    pieces = []
    for number, (first, last) in enumerate(pairwise(places)):
        piece = _piece(model, nodes, first, last, {**inner, **names}, weights)
        name = f"{path.stem}.{number + 1}of{count}.onnx"
        pieces.append(_write(piece, path.with_name(name), external_data=external_data))
    return pieces


def cuts(paths: Sequence[str], count: int) -> list[int]:
    """Where the pieces begin, and the end: the first nodes of blocks, with about as many nodes in each piece. `paths`:
    the module of each node."""
    blocks = _blocks(paths, count)
    if len(blocks) < count:
        what = f"{len(blocks)} numbered blocks" if blocks else "no numbered blocks"
        hint = f"Give --split {len(blocks)} or less" if len(blocks) > 1 else "Leave out --split"
        raise UsageError(f"The graph has {what} and cannot be split into {count} files", hint=hint)
    places = [0]
    for piece in range(1, count):
        left = blocks[piece : len(blocks) - (count - 1 - piece)]  # each piece has a block, and so have those behind it
        wanted = len(paths) * piece / count
        places.append(min((place for place in left if place > places[-1]), key=lambda place: abs(place - wanted)))
    return [*places, len(paths)]


def _blocks(paths: Sequence[str], count: int) -> list[int]:
    """The first node of each numbered module, `blocks.3`, in their order; with the numbered modules inside of these,
    `blocks.3.net.0`, where they are fewer than `count`, and so on."""
    first: dict[tuple[int, str], int] = {}
    for place, path in enumerate(paths):
        for depth, found in enumerate(_NUMBER.finditer(path)):
            first.setdefault((depth, path[: found.end()]), place)
    begins = set[int]()
    for depth in range(max((depth for depth, _ in first), default=-1) + 1):
        begins |= {place for (at, _), place in first.items() if at == depth}
        if len(begins) >= count:
            break
    return sorted(begins)


def _piece(
    model: Any, nodes: Sequence[Any], first: int, last: int, known: dict[str, Any], weights: dict[str, Any]
) -> Any:
    """The model of nodes[first:last]: its inputs are made before, its outputs are needed behind it or at the end."""
    own = nodes[first:last]
    made = [name for node in own for name in node.output if name]
    needed = list(dict.fromkeys(name for node in own for name in _reads(node) if name))
    behind = {name for node in nodes[last:] for name in _reads(node)} | {one.name for one in model.graph.output}
    inputs = [name for name in needed if name not in set(made) and name not in weights]
    inputs += [one.name for one in model.graph.input if first == 0 and one.name not in inputs]
    outputs = [name for name in made if name in behind]
    piece = _like(model, f"{model.graph.name}_{first}")
    piece.graph.node.extend(own)
    piece.graph.input.extend(_value(known, name) for name in inputs)
    piece.graph.output.extend(_value(known, name) for name in outputs)
    piece.graph.initializer.extend(weights[name] for name in needed if name in weights)
    piece.graph.value_info.extend(known[name] for name in made if name in known and name not in set(outputs))
    return piece


def _like(model: Any, name: str) -> Any:
    """An empty model of the same versions. It is filled in place: a whole graph of more than 2 GB cannot be copied."""
    import onnx

    made = onnx.ModelProto(
        ir_version=model.ir_version, producer_name=model.producer_name, producer_version=model.producer_version
    )
    made.opset_import.extend(model.opset_import)
    made.functions.extend(model.functions)
    made.graph.name = name
    return made


def _reads(node: Any) -> Iterator[str]:
    """What a node reads, in its subgraphs too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)


def _value(known: dict[str, Any], name: str) -> Any:
    import onnx

    if name not in known:
        raise UsageError(f"Cannot split at {name}: its type is not in the file", hint="Give another --split")
    value = onnx.ValueInfoProto()
    value.CopyFrom(known[name])
    return value


def _write(made: Any, path: Path, *, external_data: bool) -> ExportedFile:
    import onnx

    graph = made.graph
    large = external_data or sum(len(one.raw_data) for one in graph.initializer) > _INLINE_LIMIT
    inputs, outputs = tuple(map(_input, graph.input)), tuple(map(_input, graph.output))
    onnx.save(made, str(path), save_as_external_data=large, location=f"{path.name}.data", size_threshold=1024)
    check_model(path)
    data = (f"{path.name}.data",) if path.with_name(f"{path.name}.data").exists() else ()
    for name in data:  # onnx writes it for its owner alone
        path.with_name(name).chmod(path.stat().st_mode)
    return ExportedFile(
        name=path.name,
        bytes=path.stat().st_size + sum((path.parent / one).stat().st_size for one in data),
        data=data,
        inputs=inputs,
        outputs=outputs,
        nodes=len(graph.node),
    )


def _input(value: Any) -> ValueInfo:
    import onnx

    kind = value.type.tensor_type
    shape = tuple(size.dim_param or size.dim_value for size in kind.shape.dim)
    return ValueInfo(name=value.name, dtype=onnx.TensorProto.DataType.Name(kind.elem_type).lower(), shape=shape)


def merge(paths: Sequence[Path], outputs: Sequence[str]) -> Path:
    """The pieces as one file again, beside them, with these outputs."""
    import onnx

    pieces = [onnx.load(str(path)).graph for path in paths]
    made = {one.name for piece in pieces for one in piece.output}
    ends = {one.name: one for piece in pieces for one in piece.output}
    whole = _like(onnx.load(str(paths[0]), load_external_data=False), "merged")
    graph = whole.graph
    graph.node.extend(node for piece in pieces for node in piece.node)
    graph.input.extend(one for one in _distinct(one for piece in pieces for one in piece.input) if one.name not in made)
    graph.output.extend(ends[name] for name in outputs)
    graph.initializer.extend(_distinct(one for piece in pieces for one in piece.initializer))
    graph.value_info.extend(_distinct(one for piece in pieces for one in (*piece.value_info, *piece.output)))
    merged = paths[0].with_name("merged.onnx")
    onnx.save(whole, str(merged), save_as_external_data=True, location="merged.onnx.data")
    check_model(merged)
    return merged


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list({value.name: value for value in values}.values())
