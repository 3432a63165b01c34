"""The exporters, and what each of them can do: code asks for these facts, never for an exporter's name.

To add an exporter: its name and its row here, and the function that calls it in worker/attempt/export_attempt.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Exporter = Literal["export", "export-strict", "torchscript"]
"""Spelled out for the type checker and the JSON decoder; the same names as the rows of `EXPORTERS`."""


@dataclass(frozen=True, kw_only=True)
class ExporterFacts:
    """What one exporter can do. `call` is how an issue names it, in Markdown; `script` is the call in a script.

    `script` is a format string: `inputs` are the module and its positional inputs, `kwargs` and `shapes` the further
    arguments, each with its comma or empty; `kwargs_argument` gives the keyword inputs as a dict; `non_strict` is empty
    where torch.export.export is not strict by default.

    - `makes_program`: it returns a torch.export.ExportedProgram, which can be translated, saved and run. One that does
      not translates to ONNX while it traces
    - `traces_with_dynamo`: dynamo interprets the model's bytecode: its Python does not run and cannot be watched
    - `bakes_values`: tensors have values while it traces, which may end up in the graph
    - `has_partial_graph`: after a failure, the graph traced so far can be read from the exception
    - `takes_opaque_submodules`: a submodule can be replaced by an opaque operator
    - `has_fast_path`: worker/attempt/fast_export.py knows what it may leave out
    """

    call: str
    script: str
    makes_program: bool = True
    traces_with_dynamo: bool = False
    bakes_values: bool = False
    has_partial_graph: bool = True
    takes_opaque_submodules: bool = True
    has_fast_path: bool = False


ONNX_CALL = "`torch.onnx.export(..., dynamo=True)`"
"""How an issue names the translation of an exported program."""

EXPORTERS: Mapping[str, ExporterFacts] = {
    "export": ExporterFacts(
        call="`torch.export.export(..., strict=False)`",
        script="torch.export.export({inputs}{kwargs}{shapes}{non_strict})",
        has_fast_path=True,
    ),
    "export-strict": ExporterFacts(
        call="`torch.export.export(..., strict=True)`",
        script="torch.export.export({inputs}{kwargs}{shapes}, strict=True)",
        traces_with_dynamo=True,
    ),
    "torchscript": ExporterFacts(
        call="`torch.onnx.export(..., dynamo=False)`",
        script="torch.onnx.export({inputs}, '/dev/null'{kwargs_argument}, dynamo=False)",
        makes_program=False,
        bakes_values=True,
        has_partial_graph=False,
        takes_opaque_submodules=False,
    ),
}
