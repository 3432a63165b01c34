"""The operator behind "a fake tensor in the exported program's constants", which torch reports when tracing is over.

`torch.export._trace._export_for_training` then holds the program as `export_artifact` and the constant's name as
`const` (torch 2.9 to 2.13); the operator that writes into the constant, or reads it first, is what went round tracing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from exportdoctor.worker.describe.frames import tracebacks


def leaked_constant_user(error: BaseException) -> torch.fx.Node | None:
    """The node that writes into the leaked constant, else the first that reads it; None for any other error."""
    for link in tracebacks(error):
        local = link.tb_frame.f_locals
        name, artifact = local.get("const"), local.get("export_artifact")
        if isinstance(name, str) and artifact is not None:
            calls = list(_operators_on(name, artifact.aten))
            writers = [node for node in calls if node.target._schema.is_mutable]  # type: ignore[union-attr]
            return next(iter(writers or calls), None)
    return None


def _operators_on(name: str, program: Any) -> Iterator[torch.fx.Node]:
    """The operators that the constant's value reaches, in order."""
    inputs = {spec.arg.name for spec in program.sig.input_specs if spec.target == name}
    reached: set[torch.fx.Node] = set()
    for node in program.gm.graph.nodes:
        if node.op == "placeholder" and node.name in inputs:
            reached.add(node)
        elif reached.intersection(node.all_input_nodes):
            reached.add(node)
            if isinstance(node.target, torch._ops.OpOverload):
                yield node
