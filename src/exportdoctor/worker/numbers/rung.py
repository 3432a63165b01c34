"""A stage of the ladder that can be run and walked: an exported program or an ONNX file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exportdoctor.targets.built import Inputs
from exportdoctor.torch_internals.pytree_registry import inputs_in_traced_order
from exportdoctor.worker.numbers.file_names import match_file
from exportdoctor.worker.numbers.onnx_steps import onnx_steps
from exportdoctor.worker.numbers.program_steps import program_steps
from exportdoctor.worker.numbers.step_graph import StepGraph
from exportdoctor.worker.prove.compare_outputs import tensors_in
from exportdoctor.worker.translate.onnx_process import OnnxProcess
from exportdoctor.worker.translate.onnx_program import flat_inputs, runnable
from exportdoctor.worker.translate.onnx_session import OnnxSession


@dataclass(kw_only=True)
class Rung:
    """A stage that can be run. `run` gives its output for inputs of the program; `holder` has its buffers.

    `program` is the exported program of a stage that is one, `file` the ONNX file of the others. `reader` is the
    program whose inputs the file takes. `named`: its values have the names of the stage before, or say where they come
    from; else they are matched by numbers, and `pairs` says how. `read` is its file, read once; `release` gives the
    memory of what runs back until it runs again.
    """

    name: str
    run: Callable[[Inputs], Any]
    program: Any = None
    file: Path | None = None
    reader: Any = None
    dtypes: Sequence[torch.dtype | None] = ()
    holder: torch.nn.Module = field(default_factory=torch.nn.Module)
    named: bool = True
    pairs: dict[str, str] | None = None
    read: StepGraph | None = None
    release: Callable[[], None] = lambda: None

    def steps(self, state: Mapping[str, torch.Tensor]) -> StepGraph:
        """Its graph, with buffers as earlier calls left them."""
        if self.program is not None:
            return program_steps(self.program, state)
        assert self.file is not None
        if self.read is None:
            self.read = onnx_steps(self.file)
        return self.read

    @property
    def computes_in(self) -> torch.dtype | None:
        """The lowest dtype of fewer than 32 bits in which a file computes something, where that is known."""
        return None if self.program is not None else self.steps({}).lowest

    def inputs(self, graph: StepGraph, inputs: Inputs) -> dict[str, Any]:
        """A call's inputs by their names in the graph."""
        if self.program is not None:
            leaves = inputs_in_traced_order(self.program, *inputs)
            return {name: leaf for name, leaf in zip(graph.inputs, leaves, strict=True) if name}
        return dict(zip(graph.inputs, _file_inputs(self.reader, inputs, self.dtypes), strict=True))


def program_rung(name: str, program: Any, *, check_guards: bool = False) -> Rung:
    """A stage that is an exported program."""
    module = program.module() if check_guards else runnable(program)
    return Rung(name=name, run=lambda inputs: module(*inputs[0], **inputs[1]), program=program, holder=module)


def file_rung(
    name: str,
    path: Path,
    reader: Any,
    *,
    optimise: bool,
    given: Path | None = None,
    named: bool = True,
    own_process: bool = False,
) -> Rung:
    """A stage that is an ONNX file; with `optimise` as ONNX Runtime changes it, which is written to `path`.

    With `own_process` it may end that when it runs, and not this one.
    """

    def load() -> OnnxSession:
        return OnnxSession(given or path, optimise=optimise)

    if given:
        OnnxSession(given, optimise=optimise, save_as=path)
    held = [load()]
    dtypes = held[0].input_dtypes
    process = OnnxProcess(path) if own_process else None

    def run(inputs: Inputs) -> list[torch.Tensor]:
        if process is None and not held:
            held.append(load())
        return (process or held[0]).run(_file_inputs(reader, inputs, dtypes))

    return Rung(name=name, run=run, file=path, reader=reader, dtypes=dtypes, named=named, release=held.clear)


def has_names_of(path: Path, rung: Rung | None) -> bool:
    """Whether an ONNX file calls its values as a program does: at least a third of those that make numbers."""
    if rung is None:
        return False
    file, program = onnx_steps(path), rung.steps({})
    there = {name for step in file.steps for name in step.outputs} - set(file.outputs)  # those are named by callers
    names = [step.name for step in program.steps if step.effect == "new" and step.op.startswith("aten.")]
    names = [name for name in names if name not in program.outputs]
    return 3 * sum(name in there for name in names) >= len(names)


def has_scopes(path: Path) -> bool:
    """Whether an ONNX file says of its values which submodules gave them."""
    return bool(match_file(onnx_steps(path)))


def _file_inputs(reader: Any, inputs: Inputs, dtypes: Sequence[torch.dtype | None]) -> list[torch.Tensor]:
    """The inputs in the order of the file's, floats in the file's dtypes."""
    leaves = flat_inputs(reader, *inputs) if reader is not None else tensors_in(inputs)
    given = [torch.as_tensor(leaf) for leaf in leaves]
    if len(given) != len(dtypes):
        raise ValueError(f"the file takes {len(dtypes)} inputs, and there are {len(given)}")
    return [
        one.to(dtype) if dtype is not None and one.is_floating_point() and dtype.is_floating_point else one
        for one, dtype in zip(given, dtypes, strict=True)
    ]
