"""Captures one call of one submodule, and no more of the model's forward than leads up to it.

A short cut where it is known which call is needed: an attention of the first of 32 blocks needs none of the others.
The result is what the whole capture gives for that call, but without the calls that it makes itself.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from exportdoctor.core.records.probe import Probe
from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.eager import restore_afterwards
from exportdoctor.worker.capture.forward_hooks import Call, ModuleCalls, add_dims
from exportdoctor.worker.capture.session import PartCapture, capture_root_only
from exportdoctor.worker.capture.snapshot import CopyBudget, snapshot


class _Reached(BaseException):
    """The call has been captured. A BaseException, so that `except Exception` in the model does not catch it."""


def can_be_captured_alone(probe: Probe) -> bool:
    """Whether a question needs nothing but the first call of its module."""
    return probe.call == 0 and not probe.opaque and probe.dynamic is None


def one_call(built: BuiltPart, fqn: str) -> PartCapture | None:
    """The part with the first call of `fqn` alone; None where that is never called. Raises what the forward raises."""
    part = capture_root_only(built)
    if fqn == part.prefix:
        return part
    module = part.module_at(fqn)
    with built.prepare():
        call = _first_call(built.module, built.args, built.kwargs, module)
        if call is None:
            return None
        if built.dynamic_shapes is not None and built.more_inputs:
            args, kwargs = built.more_inputs[0]
            other = _first_call(built.module, args, kwargs, module)
            if other is not None:
                add_dims({0: ModuleCalls([call], 1)}, {0: ModuleCalls([other], 1)})
    part.distinct[fqn] = [call]
    return part


def _first_call(
    root: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: torch.nn.Module
) -> Call | None:
    seen: list[Call] = []

    def before(_: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> NoReturn:
        seen.append(Call(*snapshot((given, named), budget=CopyBudget())))
        raise _Reached

    with restore_afterwards(root), torch.no_grad():
        handle = wanted.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        own_args, own_kwargs = snapshot((args, kwargs), budget=CopyBudget(left=2**62))
        try:
            root(*own_args, **own_kwargs)
        except _Reached:
            pass
        finally:
            handle.remove()
    return seen[0] if seen else None
