"""What `sensitivity` takes beside ONNX Runtime's own loop: one quantised file and its debug pass for each layer.

    python benchmarks/sensitivity_cost.py                 # 4 blocks of width 192: 20 layers
    python benchmarks/sensitivity_cost.py WIDTH BLOCKS

Both ask the same file on the same four input sets. `sensitivity` lowers each layer alone, keeps each alone, searches
the smallest set and proves it. The loop writes one file for each layer with `quantize_static`, runs it beside the plain
one, and matches all activations by `qdq_loss_debug`; it keeps no layer alone, and searches nothing. On one thread, in
one process.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy
import onnx
import onnxruntime as ort
import torch
from numbers_cost import stack
from onnxruntime.quantization import QuantFormat, QuantType, qdq_loss_debug, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader

from exportdoctor.core.protocol.sensitivity import SensitivityRequest, SensitivityResult
from exportdoctor.worker.sensitivity.quantisers import quiet_quantiser
from exportdoctor.worker.sensitivity.sensitivity_server import find_sensitivity

SETS = 12
BATCH, LENGTH = 2, 32


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Input sets, one after the other."""

    def __init__(self, sets: list[dict[str, Any]]) -> None:
        self.rest = iter(sets)

    def get_next(self) -> Any:
        return next(self.rest, None)


def write(folder: Path, width: int, layers: int) -> tuple[Path, list[dict[str, Any]]]:
    """The file, every node with a name, and its input sets."""
    module, x = stack(width, layers, batch=BATCH, length=LENGTH)
    path = folder / "stack.onnx"
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    assert program is not None
    program.save(str(path))
    model = onnx.load(str(path))
    for place, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{place}"
    onnx.save(model, str(path))
    chance, name = numpy.random.default_rng(0), model.graph.input[0].name
    return path, [{name: chance.standard_normal(tuple(x.shape)).astype("float32")} for _ in range(SETS)]


def ask_sensitivity(path: Path) -> SensitivityResult:
    """The whole command's work, without its process."""
    return find_sensitivity(SensitivityRequest(file=str(path), to="int8"), lambda _: None)


def ask_loop(path: Path, nodes: list[str], sets: list[dict[str, Any]], folder: Path) -> dict[str, float]:
    """SQNR of the output, by layer: a file that has this one lowered, and `qdq_loss_debug` on it."""
    found = {}
    calibration, search = sets[0::3], sets[1::3]
    plain, lowered, watched = folder / "watched.onnx", folder / "lowered.onnx", folder / "watched_lowered.onnx"
    output = onnx.load(str(path), load_external_data=False).graph.output[0].name
    with quiet_quantiser():
        qdq_loss_debug.modify_model_output_intermediate_tensors(str(path), str(plain))
        wanted = qdq_loss_debug.collect_activations(str(plain), Reader(search), options())
        for node in nodes:
            quantize_static(
                str(path), str(lowered), Reader(calibration), quant_format=QuantFormat.QDQ, nodes_to_quantize=[node],
                op_types_to_quantize=["MatMul", "Gemm"], activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            )  # fmt: skip
            qdq_loss_debug.modify_model_output_intermediate_tensors(str(lowered), str(watched))
            made = qdq_loss_debug.collect_activations(str(watched), Reader(search), options())
            matched = qdq_loss_debug.create_activation_matching(made, wanted)
            qdq_loss_debug.compute_activation_error(matched)
            pairs = zip(made[output], wanted[output], strict=True)
            found[node] = min(qdq_loss_debug.compute_signal_to_quantization_noice_ratio(*pair) for pair in pairs)
    return found


def options() -> ort.SessionOptions:
    """One thread, as everything here."""
    made = ort.SessionOptions()
    made.intra_op_num_threads = 1
    made.log_severity_level = 3
    return made


def main(width: int = 192, layers: int = 4) -> None:
    """Print both."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        path, sets = write(Path(name), width, layers)
        began = time.perf_counter()
        result = ask_sensitivity(path)
        ours = time.perf_counter() - began
        nodes = [node for one in result.layers for node in one.nodes]
        began = time.perf_counter()
        found = ask_loop(path, nodes, sets, Path(name))
        theirs = time.perf_counter() - began
    count = len(result.layers)
    print(f"{layers} blocks of width {width}: {count} layers, {len(nodes)} nodes")
    searched = f"{result.questions} questions of the search"
    print(f"  sensitivity                       {ours:6.1f} s  each alone, each kept, {searched}")
    print(f"  quantize_static, qdq_loss_debug   {theirs:6.1f} s  each alone")
    print(f"  ratio                             {ours / theirs:6.2f}")
    by_loop = sorted(found, key=lambda node: found[node])[:10]
    ranked = sorted(result.layers, key=lambda one: -one.alone)[:10]
    print(f"  of the ten dearest {len(set(by_loop) & {node for one in ranked for node in one.nodes})} in both")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
