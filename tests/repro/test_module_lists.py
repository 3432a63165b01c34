"""A list of modules may hold None, as where a layer is left out: a script builds it so."""

from __future__ import annotations

import torch

from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.worker.repro.script.module_code import ModuleWriter
from exportdoctor.worker.repro.script.prune import CodeSelection
from exportdoctor.worker.repro.script.recorder import Record
from exportdoctor.worker.repro.script.script_text import ScriptText


class Gate(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_a_script_has_the_none_of_a_list_of_modules() -> None:
    gates = torch.nn.ModuleList([Gate(), None, Gate(), Gate()])  # type: ignore[list-item]
    names = {state_id(gate): str(place) for place, gate in enumerate(gates) if gate is not None}
    record = Record()
    record.methods |= {(name, "forward", 1) for name in ("0", "2")}
    for known, code in ((None, "[Gate(), None, Gate(), Gate()]"), (record, "[Gate(), None, Gate()]")):
        selection = CodeSelection.of(known, substitute=False, decorators=False)
        writer = ModuleWriter(ScriptText(), selection, names)
        assert writer.code_of(gates) == f"torch.nn.ModuleList({code})"
