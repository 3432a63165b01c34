"""An ONNX file that runs in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from exportdoctor.worker.child import fork
from exportdoctor.worker.translate.onnx_process import OnnxProcess, OnnxRuntimeError


def write_sum(path: Path) -> Path:
    """A file that adds two vectors in bfloat16."""
    given = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n"]) for name in ("x", "y")]
    cast = [helper.make_node("Cast", [name], [f"{name}32"], to=TensorProto.FLOAT) for name in ("x", "y")]
    added = [*cast, helper.make_node("Add", ["x32", "y32"], ["z32"])]
    nodes = [*added, helper.make_node("Cast", ["z32"], ["z"], to=TensorProto.BFLOAT16)]
    graph = helper.make_graph(nodes, "sum", given, [helper.make_tensor_value_info("z", TensorProto.BFLOAT16, ["n"])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, path)
    return path


def test_the_end_of_its_process_is_an_exception_and_the_next_run_starts_another(tmp_path: Path) -> None:
    process = OnnxProcess(write_sum(tmp_path / "sum.onnx"))
    ones = torch.ones(3, dtype=torch.bfloat16)
    assert torch.equal(process.run([ones, ones])[0], 2 * ones)
    with pytest.raises(OnnxRuntimeError, match=r"Error.*Add node"):
        process.run([ones, ones[:2]])
    assert process._child is not None
    os.kill(process._child.pid, signal.SIGKILL)
    with pytest.raises(OnnxRuntimeError, match="SIGKILL"):
        process.run([ones, ones])
    assert torch.equal(process.run([ones, ones])[0], 2 * ones)
    process.close()
    assert process.close() is None


def test_one_can_be_closed_while_another_that_was_started_later_lives(tmp_path: Path) -> None:
    path, ones = write_sum(tmp_path / "sum.onnx"), torch.ones(3, dtype=torch.bfloat16)
    first, second = OnnxProcess(path), OnnxProcess(path)
    for one in (first, second):
        assert torch.equal(one.run([ones, ones])[0], 2 * ones)
    first.close()  # the second holds the end of its pipe, too
    assert torch.equal(second.run([ones, ones])[0], 2 * ones)
    second.close()


def test_what_begins_after_one_was_closed_is_not_killed_as_something_left_behind(tmp_path: Path) -> None:
    process, ones = OnnxProcess(write_sum(tmp_path / "sum.onnx")), torch.ones(3, dtype=torch.bfloat16)
    process.run([ones, ones])
    process.close()
    beside = subprocess.Popen(["sleep", "60"])
    try:
        assert fork(lambda _: b"made").wait().data == b"made"
        assert beside.poll() is None
    finally:
        beside.kill()
        beside.wait()
