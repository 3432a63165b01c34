"""A file whose operators this processor lacks in 16 bits, with just these computed in float32.

ONNX Runtime's CPU has few kernels for bfloat16. Such a file cannot be loaded there, though it is right for other
processors: it is verified in the form that can.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def widen_file(path: Path, output: Path) -> tuple[str, ...]:
    """Write the form that can be loaded; returns the operators that are computed in float32, sorted."""
    import onnx
    from onnx import TensorProto, helper, inliner, shape_inference

    model = onnx.load(str(path))
    if model.functions:
        model = inliner.inline_local_functions(model)
    large = model.ByteSize() > 2**30
    known = model if large else shape_inference.infer_shapes(model)
    graph = known.graph
    kinds = {one.name: one.data_type for one in graph.initializer}
    kinds |= {one.name: one.type.tensor_type.elem_type for one in (*graph.value_info, *graph.input, *graph.output)}
    low = (TensorProto.BFLOAT16, TensorProto.FLOAT16)
    opsets = {one.domain: one.version for one in model.opset_import}
    lacked: dict[tuple[Any, ...], bool] = {}
    nodes: list[Any] = []
    widened: set[str] = set()
    for node in graph.node:
        mine = [name for name in (*node.input, *node.output) if name and kinds.get(name) in low]
        key = (node.op_type, node.domain, *(kinds.get(name) for name in node.input))
        if mine and key not in lacked:
            lacked[key] = not _loads(node, kinds, opsets, model.ir_version)
        if not mine or not lacked[key]:
            nodes.append(node)
            continue
        widened.add(node.op_type)
        for name in [name for name in dict.fromkeys(node.input) if kinds.get(name) in low]:
            wide = f"{name}__{len(nodes)}__wide"
            nodes.append(helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT))
            node.input[:] = [wide if one == name else one for one in node.input]
        after = []
        for name in [name for name in node.output if kinds.get(name) in low]:
            wide = f"{name}__wide"
            node.output[:] = [wide if one == name else one for one in node.output]
            after.append(helper.make_node("Cast", [wide], [name], to=kinds[name]))
        nodes += [node, *after]
    made = onnx.ModelProto()
    made.CopyFrom(known)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    del made.graph.value_info[:]
    onnx.save(made, str(output), save_as_external_data=large, location=f"{output.name}.data")
    return tuple(sorted(widened))


def _loads(node: Any, kinds: Mapping[str, int], opsets: Mapping[str, int], version: int) -> bool:
    """Whether ONNX Runtime loads a model of this node alone."""
    import onnxruntime as ort
    from onnx import helper

    inputs = [
        helper.make_tensor_value_info(name, kinds[name], None) for name in dict.fromkeys(node.input) if name in kinds
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    imports = [helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs), opset_imports=imports, ir_version=version
    )
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return "NOT_IMPLEMENTED" not in str(error)
    return True
