"""Examples in which one tensor is several inputs: torch.export takes them for one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from exportdoctor.core.failure.messages import ONE_FOR_SEVERAL
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.targets.input_objects import separate_tensors


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    separate = separate_tensors((call.args, call.kwargs))
    if separate is None:
        raise NotApplicable("each input of the example is a tensor of its own")
    args, kwargs = separate
    more = tuple(separate_tensors(one) or one for one in call.more_inputs)
    yield replace(call, args=args, kwargs=kwargs, more_inputs=more)


SHIM = Shim(
    id="separate-inputs",
    title="Exports with a tensor of its own for each input, where the example has one for several",
    soundness="exact",
    enter=_enter,
    does=(
        "torch.export takes a tensor that the example has at several places for one input: the program has them all "
        "among its inputs, and reads one of them. Here each place after the first has a copy while the export lasts."
    ),
    cures=(Cure(kinds=("numbers",), message=re.escape(ONE_FOR_SEVERAL)),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#torch.export.export",
    retire="torch.export tells inputs apart that are one tensor in the example",
    rank=10,
    replaces=(
        Replacement(
            target="the example",
            before="torch.export.export(attention, (x, x, x))\n",
            after="torch.export.export(attention, (x, x.clone(), x.clone()))\n",
        ),
    ),
)
