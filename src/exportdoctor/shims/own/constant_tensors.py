"""Numbers and conditions that Python reads from tensors which forward makes of constants: known while it is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.known_tensors import KnownTensors
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.state_run import following_state


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    with following_state(call, lambda state, real: KnownTensors({}, {})) as (changed, runs):
        if not any(known.reads for known in runs):
            raise NotApplicable("Python reads no value that follows from constants alone")
        yield changed


SHIM = Shim(
    id="constants-as-numbers",
    title="Answers what Python reads from tensors that forward makes of constants with their values",
    soundness="exact",
    enter=_enter,
    does=(
        "`torch.linspace(0, 1, 5)` and what is computed from it alone hang on no tensor among the inputs, buffers and "
        "parameters, but a traced tensor has no values. Python gets their values, and the program asserts that its own "
        "are the same."
    ),
    cures=(Cure(kinds=("data_dependent_value", "data_dependent_guard"), of_constants=True),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export computes what follows from constants alone while it traces",
    rank=12,
    replaces=(
        Replacement(
            target="what Python reads from tensors of constants",
            before="times = torch.linspace(0, 1, 5)\nif times[0] < times[1]:\n    ...\n",
            after="times = torch.linspace(0, 1, 5)\nif True:\n    ...\n",
        ),
    ),
)
