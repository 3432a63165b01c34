"""The plain loop that a scan must agree with: hook every module, then export each with each of its calls' inputs."""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import torch
from torch.utils import _pytree as pytree


def verdicts(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, bool]:
    """Whether each called module exports with the inputs of every one of its calls, by its first name."""
    calls: dict[str, list[tuple[Any, Any]]] = {}
    handles = [
        child.register_forward_pre_hook(_keep(calls.setdefault(name, [])), with_kwargs=True)
        for name, child in module.named_modules()
    ]
    with torch.no_grad():
        module(*_copied(args), **_copied(kwargs))
    for handle in handles:
        handle.remove()
    return {
        name: all(_exports(module.get_submodule(name), *call) for call in many) for name, many in calls.items() if many
    }


def _keep(kept: list[tuple[Any, Any]]) -> Any:
    def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        kept.append((_copied(args), _copied(kwargs)))

    return hook


def _copied(value: Any) -> Any:
    copied = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)
    return pytree.tree_map(lambda leaf: leaf if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf), copied)


def _exports(module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
    """In a child of its own, because a failed export leaves traces in the process."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = 1
        try:
            torch.export.export(module, args, kwargs, strict=False)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
