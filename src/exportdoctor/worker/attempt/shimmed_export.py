"""An export under shims, and how the numbers of its program agree with those of eager without shims.

The program runs while the shims are active, because a program that takes a cache needs its registration; eager runs
before they are applied.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.core.records.probe import Probe
from exportdoctor.shims import ExportCall, apply_shims, export_program, find, order_shims
from exportdoctor.targets.eager import run_in_a_row
from exportdoctor.torch_internals.graph_modules import finish_graphs
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.attempt.fast_export import ExportContext
from exportdoctor.worker.attempt.torchscript import export_torchscript
from exportdoctor.worker.prove.compare_outputs import compare_outputs, failed_run
from exportdoctor.worker.prove.cure_inputs import cure_inputs
from exportdoctor.worker.prove.input_set import InputSet


def shimmed_export(
    call: ExportCall, probe: Probe, *, files: Sequence[str], axes: Any, saving: ExportContext
) -> tuple[Agreement, ...]:
    """Export `call` under the probe's shims; with `to` = run, compare the program with eager on every input set.

    `saving` surrounds the export, not the runs. Raises what the export raises, NotApplicable and ShimTrouble.
    """
    shims = order_shims([find(name, files=files, axes=axes) for name in probe.shims])
    sets = tuple(cure_inputs(call)) if probe.to == "run" else ()
    with apply_shims(shims, dataclasses.replace(call, options=_options(call, probe))) as given:
        if not EXPORTERS[probe.exporter].makes_program:
            export_torchscript(given.module, given.args, given.kwargs, None)
            return ()
        with nullcontext() if given.options.strict else saving():
            program = export_program(given)
            finish_graphs(program)
        ready = functools.cache(program.module)  # a run leaves it as it was, and making it takes as long as a run
        return tuple(_compare_set(ready, given, one) for one in sets)


def _options(call: ExportCall, probe: Probe) -> Any:
    return dataclasses.replace(call.options, strict=EXPORTERS[probe.exporter].traces_with_dynamo)


def _compare_set(ready: Callable[[], Any], given: ExportCall, one: InputSet) -> Agreement:
    """How the program's outputs agree on this set: of the first call, or of the last if only that differs."""
    try:
        answers = run_in_a_row(ready(), given.convert(copy.deepcopy(one.inputs)), times=len(one.outputs))
    except Exception as error:
        return msgspec.structs.replace(failed_run(one.title, error), refused=True, made_up=one.made_up)
    pairs = zip(answers, one.outputs, strict=True)
    rows = [compare_outputs(one.title, tree_leaves(answer), tree_leaves(wanted)) for answer, wanted in pairs]
    row = rows[0]
    if row.holds and not rows[-1].holds:
        what = rows[-1].trouble or f"differs by {rows[-1].max_abs:.1e}"
        row = msgspec.structs.replace(rows[-1], trouble=f"the second call in a row {what}: eager keeps state")
    return msgspec.structs.replace(row, made_up=one.made_up)
