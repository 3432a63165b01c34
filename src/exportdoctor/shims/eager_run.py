"""One call of the untouched module, to see what it does."""

from __future__ import annotations

import copy
from typing import Any

from exportdoctor.shims.export_call import ExportCall, Inputs
from exportdoctor.targets.eager import restore_afterwards


def run_copy(call: ExportCall, inputs: Inputs | None = None) -> Any:
    """The module's outputs for `inputs`, which it may change, or for a copy of the example. The module is restored."""
    args, kwargs = copy.deepcopy((call.args, call.kwargs)) if inputs is None else inputs
    with restore_afterwards(call.module):
        return call.module(*args, **kwargs)
