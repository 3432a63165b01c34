"""Which attempts need no process of their own: plain layers of torch.nn, by the hundred in every model.

No code of a user's runs in one, and it has no state that an export could change. Should it fail all the same, it is
asked again in a fork of its own, like everything else.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.probe import Probe
from exportdoctor.worker.capture.session import PartCapture

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor, int, float, bool, type(None))


def is_harmless(part: PartCapture, probe: Probe) -> bool:
    """Whether the probe asks a plain export of a childless layer that torch brings, with tensors and numbers alone."""
    if (
        not EXPORTERS[probe.exporter].has_fast_path
        or probe.to != "export"
        or probe.shims
        or probe.watch
        or probe.fqn == part.prefix
    ):
        return False
    call = part.calls_of(probe.fqn)[probe.call]
    leaves = tree_leaves((call.args, call.kwargs))
    return _is_plain_layer(part.module_at(probe.fqn)) and all(type(leaf) in _PLAIN for leaf in leaves)


def _is_plain_layer(module: torch.nn.Module) -> bool:
    if not type(module).__module__.startswith("torch.nn.modules.") or "forward" in vars(module) or module.training:
        return False
    hooks = module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    parameters = all(type(value) in _PLAIN for value in module._parameters.values())
    return parameters and not (hooks or module._buffers or module._modules)
