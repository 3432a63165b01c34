"""One call of the untouched module, to see what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.export_call import ExportCall, Inputs
from exportdoctor.shims.function_caches import past_all_caches
from exportdoctor.targets.eager import copy_inputs, needs_gradients, restore_afterwards
from exportdoctor.targets.plain_state import plain_state


def run_copy(call: ExportCall, inputs: Inputs | None = None) -> Any:
    """The module's outputs for `inputs`, which it may change, or for a copy of the example. The module is restored."""
    import torch

    args, kwargs = copy_inputs((call.args, call.kwargs)) if inputs is None else inputs
    recorded = torch.is_grad_enabled() or needs_gradients(call.module)
    with restore_afterwards(call.module), torch.set_grad_enabled(recorded):
        return call.module(*args, **kwargs)


def calls_any(call: ExportCall, functions: Iterable[tuple[Any, str]]) -> bool:
    """Whether a call of the module calls one of these functions: each an object that has it, and its name there.

    True as well where the call raises, for then it is not known.
    """
    import torch

    called: list[str] = []

    def note(plain: Callable[..., Any], name: str, *args: Any, **how: Any) -> Any:
        called.append(name)
        return plain(*args, **how)

    changes = [(holder, name, partial(note, getattr(holder, name), name)) for holder, name in functions]
    with torch.no_grad(), patch_attributes(changes), past_all_caches():
        try:
            run_copy(call)
        except Exception:
            return True
    return bool(called)


def changed_number(call: ExportCall) -> str:
    """A plain attribute of a module that a call changes, other than the first, or that grows; empty if there is none.

    A tensor that forward assigns is seen by torch itself.
    """
    import torch

    with restore_afterwards(call.module), torch.set_grad_enabled(needs_gradients(call.module)):
        seen = []
        for _ in range(2):
            args, kwargs = copy_inputs((call.args, call.kwargs))
            call.module(*args, **kwargs)
            seen.append(plain_state(call.module))
    return next((name for name, value in seen[1].items() if seen[0].get(name, value) != value), "")
