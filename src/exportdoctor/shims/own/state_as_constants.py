"""Numbers and conditions that Python reads from the module's state and constants alone: the values at the export."""

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
    with following_state(call, KnownTensors) as (changed, runs):
        if not any(known.read for known in runs):
            raise NotApplicable("Python reads no value that follows from the module's own tensors alone")
        yield changed


SHIM = Shim(
    id="state-as-constants",
    title="Answers what Python reads from the module's own tensors with their values at the export",
    soundness="precondition",
    enter=_enter,
    does=(
        "`if self.initialised`, `int(self.groups)` and `self.scale.item()` depend on the module's state, and on no "
        "input. Python gets the values at the export of what follows from buffers, parameters and tensors in other "
        "attributes alone, and the program asserts that its own are the same. Not applicable where forward changes "
        "what Python reads."
    ),
    precondition="the module's own tensors that Python reads keep their values; the program refuses other buffers",
    cures=(Cure(kinds=("data_dependent_value", "data_dependent_guard")),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export takes the values of buffers that nothing writes for constants",
    rank=25,
    replaces=(
        Replacement(
            target="what Python reads from the module's own tensors",
            before="if not self.initialised:\n    ...\nx = x * self.scale.item()\n",
            after="if not True:\n    ...\nx = x * 3.0\n",
        ),
    ),
)
