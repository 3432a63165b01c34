"""The smallest submodule whose export fails by itself in the same later stage and in the same way.

Tried are the submodule that the node came from and then each of its parents, on the inputs of their captured calls; the
part itself is known to fail.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from exportdoctor.core.failure.identity import same_stage_failure
from exportdoctor.core.protocol.export import SCRATCH, StageFailure
from exportdoctor.core.records.outcome import Stage
from exportdoctor.shims import ExportCall
from exportdoctor.worker.capture.dynamic_dims import dynamic_shapes_of, each_dim, spell_out_kwargs, take_sizes_as_tuples
from exportdoctor.worker.capture.forward_hooks import Call, ModuleCalls, add_dims, record_calls
from exportdoctor.worker.capture.snapshot import CopyBudget
from exportdoctor.worker.translate.failed_node import describe_stage_failure
from exportdoctor.worker.translate.onnx_program import check_model, flat_inputs, save_model, translate
from exportdoctor.worker.translate.onnx_session import OnnxSession

_MOST_ASKED = 6


def find_smallest_submodule(
    found: StageFailure, call: ExportCall, *, prefix: str, opset: int, doing: Callable[[str], None]
) -> StageFailure:
    """The failure with the smallest submodule that shows it alone. Call it while the shims of `call` are active."""
    own = found.module.removeprefix(prefix).lstrip(".") if prefix else found.module
    chain = _ancestors(own)
    if not chain:
        return found
    calls = _record_calls(call)
    asked = 0
    for path in chain[:_MOST_ASKED]:
        seen = _call_of(call, calls, path)
        if seen is None:
            continue
        asked += 1
        full = ".".join(filter(None, (prefix, path)))
        doing(f"exporting {full} separately")
        again = _fails(call.module.get_submodule(path), seen, opset=opset, stage=found.stage)
        if again is not None and same_stage_failure(again, found):
            return msgspec.structs.replace(found, alone=full, asked=asked)
    return msgspec.structs.replace(found, asked=asked)


def _ancestors(path: str) -> list[str]:
    """The path and its parents, the deepest first, without the root."""
    names = path.split(".") if path else []
    return [".".join(names[:count]) for count in range(len(names), 0, -1)]


def _record_calls(call: ExportCall) -> dict[int, ModuleCalls]:
    calls = record_calls(call.module, call.args, call.kwargs, budget=CopyBudget())
    for args, kwargs in call.more_inputs[:1]:
        add_dims(calls, record_calls(call.module, args, kwargs, budget=CopyBudget()))
    return calls


def _call_of(call: ExportCall, calls: dict[int, ModuleCalls], path: str) -> Call | None:
    try:
        module = call.module.get_submodule(path)
    except AttributeError:
        return None
    kept = calls.get(id(module), ModuleCalls()).kept
    return kept[0] if kept else None


def _fails(module: torch.nn.Module, seen: Call, *, opset: int, stage: Stage) -> StageFailure | None:
    """How a submodule fails alone, `None` where it does not."""
    at: Stage = "export"
    path: Path | None = None
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get(SCRATCH)) as folder,
        take_sizes_as_tuples(module, seen.args, seen.kwargs) as (args, kwargs),
    ):
        try:
            program = _export(module, replace(seen, args=args, kwargs=kwargs))
            at = "translate"
            made = translate(program, opset=opset).made
            if stage == "translate":
                return None
            path = Path(folder) / "alone.onnx"
            save_model(made, path, external_data=False)
            at = "check"
            check_model(path)
            at = "load"
            session = OnnxSession(path, optimise=False)
            at = "run"
            session.run(flat_inputs(program, args, kwargs))
        except Exception as error:
            return describe_stage_failure(at, error, model=path)
    return None


def _export(module: torch.nn.Module, seen: Call) -> Any:
    with torch.no_grad(), spell_out_kwargs(module, seen.args, seen.kwargs):
        shapes = dynamic_shapes_of(
            module, seen.args, seen.kwargs, dict.fromkeys(each_dim(seen.dims), torch.export.Dim.DYNAMIC)
        )
        return torch.export.export(module, seen.args, seen.kwargs, dynamic_shapes=shapes, strict=False)
